"""Migrations of stored configs to the current keys, values and defaults."""

from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from vit_jax.schema import Choice, ConfigError, Text, convert_to_group, show

_GROUP = Mapping | ml_collections.ConfigDict

_DECAYS = {"adamw": "times_lr", "decoupled": "independent"}
# data with EXIF orientation applied by default, which were read without it before the key existed
_CAMERAS = ("folder", "manifest")
_HELD_OUT = ("folder",)  # data with a validation share, which did not exist before the key
_OF_ALL = {"holdout", "split_seed", "builder", "labels"}  # keys that data of any reader had
_INSIDE = ("parts", "labelled", "images")  # keys with data, or lists of data, as values
# Readers that take the classes from the data. Before the key existed, they sorted names by characters.
_NAMED = ("folder", "manifest", "tars", "parquet")
_EVERY = "10%"  # default interval of evaluations before it became 20 %
_AUGMENTATION = ("crop", "flip", "policy", "warp", "mixing", "erasing")


def migrate_run(values: Mapping[str, Any]) -> dict[str, Any]:
  """Converts a stored run to the current schema, so that older workdirs can be continued and evaluated.

  Renamed keys and values get their new names. Keys that had no effect are removed. Configs and flags of users are not
  migrated: an old name is an error, except the flat keys of Vision Transformers, see `nest_vit`.

  Args:
    values: config of the run as stored in a workdir.
  """
  result = {**values, **{key: _migrate_selection(values[key]) for key in ("init", "task") if key in values}}
  if isinstance(stored := result.get("model"), Mapping):
    result["model"] = migrate_model(stored)
  if isinstance(optim := result.get("optim"), Mapping) and "decay" in optim:
    result["optim"] = {**optim, "decay": _DECAYS.get(str(optim["decay"]), optim["decay"])}
  if isinstance(data := result.get("data"), Mapping):
    result["data"] = _add_validation(_add_effective_values(_drop_ignored_keys(data)))
  if isinstance(evals := result.get("evals"), Mapping):
    result["evals"] = {name: _migrate_evaluation(choice) for name, choice in evals.items()}
  return result


def _migrate_selection(values: Mapping[str, object]) -> Mapping[str, Any]:
  """Migrates the keys of `init` or a task that select weights of a file.

  `teacher_ema` of `dinov2` was renamed to `ema`. Other groups without `prefix` were stored before `prefix` existed. In
  these groups, `ema=False` was the default and is removed.
  """
  if isinstance(values, Mapping) and "teacher_ema" in values:
    return {"ema" if key == "teacher_ema" else key: value for key, value in values.items()} | {"prefix": None}
  if not isinstance(values, Mapping) or values.get("ema") is not False or "prefix" in values:
    return values
  return {key: value for key, value in values.items() if key != "ema"}


def _migrate_evaluation(choice: object) -> Any:
  if isinstance(choice, Mapping) and isinstance(data := choice.get("data"), Mapping):
    return {**choice, "data": _add_effective_values(_drop_ignored_keys(data, *_AUGMENTATION))}
  return choice


def migrate_model(values: Mapping[str, object]) -> dict[str, Any]:
  """Converts a stored choice of a model to the current schema.

  Args:
    values: name and arguments of the model, as stored in a workdir or weight file.
  """
  is_pool = isinstance(values.get("head"), str)  # before `head` became a choice with arguments
  return {"pool" if key == "head" and is_pool else key: value for key, value in values.items()}


def migrate_source(values: Mapping[str, object]) -> dict[str, Any]:
  """Converts a stored data choice that only opens images, such as the choice of pseudo labels.

  Args:
    values: name and arguments of a reader, as stored.
  """
  return _add_class_order(values)


def _drop_ignored_keys(data: Mapping[str, object], *idle: str) -> Mapping[str, Any]:
  """Removes keys that the reader ignored.

  Data stored by newer versions contain `exif`, and only keys that their reader uses.
  """
  if "exif" in data and not data.keys() >= _OF_ALL:
    return data
  idle += () if data.get("name") == "folder" else ("holdout", "split_seed")
  idle += tuple(key for key in ("builder", "labels") if data.get(key) is None)
  return {key: value for key, value in data.items() if key not in idle}


def _add_effective_values(data: Mapping[str, object]) -> dict[str, Any]:
  """Adds the effective values of keys that did not exist when the run started."""
  before = {"exif": False} if data.get("name") in _CAMERAS else {}
  return before | _add_class_order(data)


def _add_class_order(data: Mapping[str, object]) -> dict[str, Any]:
  """Adds the former order of classes to data and nested data."""
  before = {"class_order": "text"} if data.get("name") in _NAMED else {}
  return {**before, **data} | {key: _apply_to_each(_add_class_order, data[key]) for key in _INSIDE if key in data}


def _apply_to_each(function: Callable[[Mapping[str, Any]], dict[str, Any]], value: object) -> Any:
  """Applies a function to a mapping, or to each mapping in a list. Other values are unchanged."""
  if isinstance(value, list | tuple):
    return [function(each) if isinstance(each, Mapping) else each for each in value]
  return function(value) if isinstance(value, Mapping) else value


def _add_validation(data: Mapping[str, object]) -> Mapping[str, Any]:
  """Sets `validation` to 0 if the key is missing, because its current default did not exist when the run started."""
  missing = data.get("name") in _HELD_OUT and "validation" not in data
  return {**data, "validation": 0.0} if missing else data


def list_former_defaults(stored: Mapping[str, Any]) -> dict[str, str]:
  """Returns settings of a stored run for keys that did not exist, or had a different default, when the run started.

  Args:
    stored: config of the run as stored in a workdir.

  Returns:
    Maps keys to texts, as flags would set them. A key inside a list has an index, such as "data.parts[0].class_order".
  """
  now, keys = migrate_run(stored), {}
  groups = {"data": (stored.get("data"), now.get("data"))}
  for name, choice in now["evals"].items() if isinstance(now.get("evals"), Mapping) else ():
    if isinstance(choice, Mapping):
      if choice.get("every") == _EVERY:
        keys[f"evals.{name}.every"] = _EVERY
      groups[f"evals.{name}.data"] = stored["evals"][name].get("data"), choice.get("data")
  if isinstance(data := now.get("data"), Mapping) and "validation" in data and "validation" not in stored["data"]:
    keys["data.validation"] = "0"
  for group, (before, data) in groups.items():
    keys |= _list_added_values(group, before, data)
  return keys


def _list_added_values(group: str, before: Any, data: object) -> dict[str, str]:
  """Returns {key: text} for the values that `_add_effective_values` has added to data and nested data."""
  if not isinstance(data, Mapping):
    return {}
  keys = {f"{group}.{key}": str(data[key]).lower() for key in ("exif", "class_order") if key in data.keys() - before}
  for key in data.keys() & set(_INSIDE):
    one, several = f"{group}.{key}", isinstance(data[key], list)
    pairs = zip(before[key], data[key], strict=True) if several else [(before[key], data[key])]
    for i, pair in enumerate(pairs):
      keys |= _list_added_values(f"{one}[{i}]" if several else one, *pair)
  return keys


# Flat keys of Vision Transformers: {old key: (group, key in the group)}.
_NESTED = {
  "qk_norm": ("attention", "qk_norm"),
  "qkv_bias": ("attention", "bias"),
  "attention_dropout": ("attention", "dropout"),
  "context_norm": ("attention", "output"),
  "differential": ("attention", "name"),
  "hidden_multiple": ("mlp", "multiple"),
  "norm_order": ("norm", "order"),
  "norm_pooled": ("norm", "pooled"),
  "eps": ("norm", "eps"),
  "position_at": ("position", "at"),
  "rotary": ("position", "rotary"),
  "pool": ("head", "name"),
  "class_token": ("head", "class_token"),
  "pre_logits": ("head", "pre_logits"),
  "head_bias": ("head", "bias"),
  "head_std": ("head", "std"),
}
# Old keys that had no effect with some names: {key: (value without effect or None for all values, names with the key)}.
_PARTIAL = {
  "attention_dropout": ("0", ("xla", "differential")),
  "class_token": (None, ("gap", "map", "seqpool")),
  "pre_logits": ("none", ("cls", "gap", "map", "seqpool")),
  "hidden_multiple": ("none", ("swiglu", "swiglu_normed")),
  "position_at": ("input", ("learned", "learned_patches", "learned_all", "sincos2d", "factored")),
}


def nest_vit(arguments: Mapping[str, object], published: Mapping[str, object]) -> dict[str, Any]:
  """Converts flat arguments of a Vision Transformer to groups: `qk_norm="rms"` becomes `attention=dict(qk_norm="rms")`.

  Flat arguments are valid in configs, flags, workdirs and weight files. A flag replaces a value of the config file.

  Args:
    arguments: arguments of the model, as a user or a file specifies them.
    published: arguments that the name of the model implies.

  Returns:
    Arguments without flat keys.

  Raises:
    ConfigError: in these cases:
      - A flat key and its group set different values, unless exactly one of the two is a flag.
      - `context_norm` or `differential` is neither true nor false.
      - Differential attention is also fused.
  """
  result = {key: value for key, value in arguments.items() if key not in _NESTED}
  for old in _NESTED:
    group, key = _NESTED[old]
    # A group of another type is reported when the arguments are bound.
    if old in arguments and isinstance(result.get(group, {}), Choice | str | _GROUP):
      inner = convert_to_group(result.get(group, {}))
      value = _rename_value(old, arguments[old], inner.get("name"))
      name = inner.get("name") or convert_to_group(published.get(group, {})).get("name")
      idle, names = _PARTIAL.get(old, (None, ()))
      if old not in _PARTIAL or name in names or not _is_idle(value, idle):
        result[group] = inner | _one_of(old, f"{group}.{key}", key, inner, value)
  return result


def _is_idle(value: object, idle: str | None) -> bool:
  return idle is None or str(value).lower() in (idle, f"{idle}.0")


def _rename_value(old: str, value: object, name: str | None) -> Any:
  """Returns the value of a flat key under its new key."""
  if old == "class_token" and str(value).lower() == "none":
    return Text("false") if isinstance(value, Text) else False
  if old not in ("context_norm", "differential"):
    return value
  is_set = str(value).lower() == "true"
  if not is_set and str(value).lower() != "false":
    raise ConfigError(f"expected true or false, got {show(value)}", old)
  if old == "context_norm":
    text = "normed" if is_set else "plain"
  elif is_set and name == "fused":
    raise ConfigError("attention 'fused' does not support differential=true. Use attention='differential'")
  else:
    text = "differential" if is_set else "xla" if name in (None, "differential") else str(name)
  return Text(text) if isinstance(value, Text) else text


def _one_of(old: str, new: str, key: str, group: Mapping[str, Any], value: object) -> dict[str, Any]:
  """Returns {key: value} with the value of a flat key, or of the group if only that value is a flag."""
  if key not in group or old == "differential" or _leaves(group[key]) == _leaves(value):
    return {key: value}
  if isinstance(group[key], _GROUP) and isinstance(value, _GROUP):
    return {key: {**group[key], **value}}
  flags = [isinstance(one, Text) for one in (group[key], value)]
  if flags[0] == flags[1]:
    raise ConfigError(f"{show(value)} contradicts {new}, which is {show(group[key])}. Remove {old}", old)
  return {key: value if flags[1] else group[key]}


def _leaves(value: object) -> str:
  return str(convert_to_group(value) if isinstance(value, Choice | _GROUP) else value)
