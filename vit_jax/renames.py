"""Words that stored configs have and that are others now: workdirs and files of weights of before go on being read."""

from collections.abc import Mapping

_DECAYS = {"adamw": "times_lr", "decoupled": "independent"}
_AUGMENTATION = ("crop", "flip", "policy", "warp", "mixing", "erasing")


def run(values: Mapping) -> dict:
  """A run as a workdir stores it, in today's words, so that workdirs of before can be continued and measured.

  Keys and values that have another name now get it; keys that were accepted without effect are left out. Configs and
  flags of users do not come here: there a word of before is an error.
  """
  result = dict(values)
  if isinstance(stored := result.get("model"), Mapping):
    result["model"] = model(stored)
  if isinstance(optim := result.get("optim"), Mapping) and "decay" in optim:
    result["optim"] = {**optim, "decay": _DECAYS.get(str(optim["decay"]), optim["decay"])}
  if isinstance(data := result.get("data"), Mapping):
    result["data"] = _without_idle(data)
  if isinstance(evals := result.get("evals"), Mapping):
    result["evals"] = {name: _evaluation(choice) for name, choice in evals.items()}
  return result


def _evaluation(choice):
  if isinstance(choice, Mapping) and isinstance(data := choice.get("data"), Mapping):
    return {**choice, "data": _without_idle(data, *_AUGMENTATION)}
  return choice


def model(values: Mapping) -> dict:
  """A model's name and arguments as a workdir or a file of weights stores them, in today's words."""
  return {{"head": "pool"}.get(key, key): value for key, value in values.items()}


def _without_idle(data, *idle):
  """Data without the keys that their reader never looked at."""
  idle += () if data.get("name") == "folder" else ("holdout", "split_seed")
  idle += tuple(key for key in ("builder", "labels") if data.get(key) is None)
  return {key: value for key, value in data.items() if key not in idle}
