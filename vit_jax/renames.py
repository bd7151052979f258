"""Words that stored configs have and that are others now: workdirs and files of weights of before go on being read."""

from collections.abc import Mapping

_DECAYS = {"adamw": "times_lr", "decoupled": "independent"}
_CAMERAS = ("folder", "manifest")  # data whose EXIF counts by default, and did not before the key was there
_HELD_OUT = ("folder",)  # data with a validation share, which was no key before
# Readers that take the classes from the data. They sorted names by their characters before the key was there.
_NAMED = ("folder", "manifest", "tars", "parquet")
_EVERY = "10%"  # from one evaluation to the next, before the default was 20 %
_AUGMENTATION = ("crop", "flip", "policy", "warp", "mixing", "erasing")


def run(values: Mapping) -> dict:
  """A run as a workdir stores it, in today's words, so that workdirs of before can be continued and measured.

  Keys and values that have another name now get it; keys that were accepted without effect are left out. Configs and
  flags of users do not come here: there a word of before is an error.
  """
  result = {**values, **{key: _selection(values[key]) for key in ("init", "task") if key in values}}
  if isinstance(stored := result.get("model"), Mapping):
    result["model"] = model(stored)
  if isinstance(optim := result.get("optim"), Mapping) and "decay" in optim:
    result["optim"] = {**optim, "decay": _DECAYS.get(str(optim["decay"]), optim["decay"])}
  if isinstance(data := result.get("data"), Mapping):
    result["data"] = _as_split(_as_read(_without_idle(data)))
  if isinstance(evals := result.get("evals"), Mapping):
    result["evals"] = {name: _evaluation(choice) for name, choice in evals.items()}
  return result


def _selection(values):
  """Removes `ema=False` from `init` or a task without `prefix`: False was the default before `prefix` existed."""
  if not isinstance(values, Mapping) or values.get("ema") is not False or "prefix" in values:
    return values
  return {key: value for key, value in values.items() if key != "ema"}


def _evaluation(choice):
  if isinstance(choice, Mapping) and isinstance(data := choice.get("data"), Mapping):
    return {**choice, "data": _as_read(_without_idle(data, *_AUGMENTATION))}
  return choice


def model(values: Mapping) -> dict:
  """A model's name and arguments as a workdir or a file of weights stores them, in today's words."""
  return {{"head": "pool"}.get(key, key): value for key, value in values.items()}


def _without_idle(data, *idle):
  """Data without the keys that their reader never looked at."""
  idle += () if data.get("name") == "folder" else ("holdout", "split_seed")
  idle += tuple(key for key in ("builder", "labels") if data.get(key) is None)
  return {key: value for key, value in data.items() if key not in idle}


def _as_read(data):
  """Returns data with the values of keys that did not exist when the run was started."""
  before = {"exif": False} if data.get("name") in _CAMERAS else {}
  before |= {"class_order": "text"} if data.get("name") in _NAMED else {}
  return before | data


def _as_split(data):
  """Returns data with `validation` 0 if the key is missing: its present default did not exist before."""
  missing = data.get("name") in _HELD_OUT and "validation" not in data
  return {**data, "validation": 0.0} if missing else data


def kept(stored: Mapping) -> dict[str, str]:
  """{key: text} of what a run as a workdir stores it has no key for, or another default, and what it goes on with."""
  now, keys = run(stored), {}
  groups = {"data": (stored.get("data"), now.get("data"))}
  for name, choice in now["evals"].items() if isinstance(now.get("evals"), Mapping) else ():
    if isinstance(choice, Mapping):
      if choice.get("every") == _EVERY:
        keys[f"evals.{name}.every"] = _EVERY
      groups[f"evals.{name}.data"] = stored["evals"][name].get("data"), choice.get("data")
  if isinstance(data := now.get("data"), Mapping) and "validation" in data and "validation" not in stored["data"]:
    keys["data.validation"] = "0"
  for group, (before, data) in groups.items():
    for key in ("exif", "class_order") if isinstance(data, Mapping) else ():
      if key in data and key not in before:
        keys[f"{group}.{key}"] = str(data[key]).lower()
  return keys
