"""Settings that a run adopts from the weights that it starts from, unless its config sets them.

The settings are the activation, the epsilon of the norms, the padding, and the normalisation and crop of the images.
With other settings, the same weights give different logits. Shapes do not differ, so other checks cannot detect this
mistake.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import checkpoints, schema
from vit_jax.config import Run
from vit_jax.importers import normalisation, weights
from vit_jax.importers.hub import preprocessing
from vit_jax.models import Description, table
from vit_jax.schema import Choice, ConfigError, texts
from vit_jax.storage import hub_files

KEYS = {"model": ("gelu", "eps", "norm.eps", "padding", "resampling"), "data": ("mean", "std", "test_crop")}
Settings = dict[str, dict[str, Any]]  # {group of the config: {key: value}}


def adopt_settings(run: Run) -> Run:
  """Returns the run with the settings of the weights in `init.from`, unless the config sets them.

  Args:
    run: a resolved run that is not completed. Its choices contain only the arguments that the config sets.

  Returns:
    The run. It is unchanged if it does not start from weights, or if the weights cannot be read. The error is then
    raised when the run loads them.
  """
  size = str(run.data.args.get("image_size", ""))
  settings = find_weight_settings(run.init.from_, run.model.name, int(size) if size.isdecimal() else None)
  if run.task.name == "distill" and isinstance(path := run.task.args.get("teacher"), str):
    settings["task"] = find_teacher_settings(path)
  return add_settings(run, settings)


def find_teacher_settings(path: str) -> dict[str, Any]:
  """Returns mean and std of a teacher's images as arguments of the task, or {} if its file cannot be read."""
  try:
    _, data = _inspect_weights(hub_files.resolve_weights(path), None)
  except (ConfigError, OSError):
    return {}
  return {f"teacher_{key}": tuple(data[key]) for key in ("mean", "std") if key in data}


def add_settings(run: Run, settings: Settings) -> Run:
  """Returns the run with the given settings for all keys that the run does not set.

  Args:
    run: a resolved run that is not completed.
    settings: {group of the config: {key: value}}.
  """
  changed: dict[str, Any] = {group: _complete(group, getattr(run, group), values) for group, values in settings.items()}
  return dataclasses.replace(run, **changed)


def _complete(group: str, choice: Choice, values: Mapping[str, object]) -> Choice:
  """Returns a choice with the given values for all keys that it does not set."""
  if group != "model":
    return Choice(choice.name, {**values, **choice.args})
  args = dict(table.migrate(choice).args)
  for key, value in values.items():
    outer, dot, inner = key.partition(".")
    if not dot:
      args.setdefault(key, value)
    else:
      args[outer] = {inner: value} | schema.convert_to_group(args.get(outer, {}))
  return Choice(choice.name, args)


def find_recorded_settings(stored: Mapping[str, Any]) -> Settings:
  """Returns the recorded settings of a run for the keys that it may have adopted.

  Args:
    stored: the config of a workdir as JSON values.

  Returns:
    {group: {key: value}}, or {} if the run adopted no settings. In older runs, the normalisation of a teacher is None,
    which selects the normalisation of the student.
  """
  result = {}
  if (task := stored.get("task") or {}).get("name") == "distill":
    result["task"] = {key: task.get(key) for key in ("teacher_mean", "teacher_std")}
  if not (stored.get("init") or {}).get("from"):
    return result
  groups = {group: stored.get(group) or {} for group in KEYS}
  if model := groups["model"]:
    groups["model"] = _settings(Choice(model["name"], {key: model[key] for key in model if key != "name"}))
  return result | {
    group: {key: groups[group][key] for key in keys if key in groups[group]} for group, keys in KEYS.items()
  }


def find_weight_settings(path: str | None, model: str, image_size: int | None) -> Settings:
  """Returns the settings with which weights were trained.

  Args:
    path: weight file or workdir. None returns no settings.
    model: name of the model that starts from the weights. A model of another family adopts no settings.
    image_size: side of the run's images in pixels, for a crop in pixels.

  Returns:
    {group: {key: value}} from the weights or from the JSON file next to them, or {} if they cannot be read.
  """
  if path is None:
    return {}
  try:
    description, data = _inspect_weights(hub_files.resolve_weights(path), image_size)
    if description.published.family != table.find(model).family:
      return {}
  except (ConfigError, OSError):
    return {}
  bound = description.settings()
  return {"model": {key: bound[key] for key in KEYS["model"] if key in bound}, "data": data}


def _settings(choice: Choice) -> dict[str, Any]:
  """Returns the arguments of a stored model with dotted keys."""
  args = table.migrate(choice).args
  nested = {key: Choice("", value) for key, value in args.items() if isinstance(value, Mapping)}
  return schema.flatten_choices({**args, **nested})


def _select_arguments(run: Run, group: str) -> Mapping[str, Any]:
  """Returns the arguments of a group, with dotted keys for a model."""
  return schema.flatten_choices(run.model.args) if group == "model" else getattr(run, group).args


def describe_settings(path: str, own: Run, run: Run) -> list[str]:
  """Returns notes about the settings that a run adopts from weights, and about settings that its config overrides.

  Args:
    path: path of the weights.
    own: the completed run without adoption.
    run: the completed run.
  """
  settings = find_weight_settings(path, run.model.name, run.data.args["image_size"])
  adopted, kept = [], []
  for group, key in [(group, key) for group, values in settings.items() for key in values]:
    before, now = (_select_arguments(one, group)[key] for one in (own, run))
    if before != now:
      adopted.append((f"{group}.{key}", now, before))
    elif _is_different(settings[group][key], now):
      kept.append((f"{group}.{key}", settings[group][key], now))
  result = []
  if adopted:
    taken = " ".join(format_setting_flags(key, now) for key, now, _ in adopted)
    others = " ".join(format_setting_flags(key, before) for key, _, before in adopted)
    result.append(f"adopted from {path}: {taken.replace('--config.', '')}. To override: {others}")
  if kept:
    theirs = " ".join(format_setting_flags(key, value) for key, value, _ in kept)
    ours = " ".join(format_setting_flags(key, now) for key, _, now in kept).replace("--config.", "")
    result.append(f"the config sets {ours}, unlike {path}. To adopt its values: {theirs}")
  return ["; ".join(result)] if result else []


def format_setting_flags(key: str, value: object) -> str:
  """Returns the flags that set a key of the config, such as "--config.model.gelu=erf".

  Args:
    key: key of the config.
    value: value of the key. A choice gives several flags.
  """
  if isinstance(value, Choice):
    return " ".join(
      [f"--config.{key}.name={value.name}", *(format_setting_flags(f"{key}.{k}", v) for k, v in value.args.items())]
    )
  return texts.format_flag(f"config.{key}", value)


def _is_different(theirs: object, ours: Any) -> bool:
  """Returns true if values differ. For a choice, only the arguments that the weights specify are compared."""
  if isinstance(theirs, Choice):
    return theirs.name != ours.name or any(
      _is_different(value, ours.args.get(key)) for key, value in theirs.args.items()
    )
  return schema.to_plain(theirs) != schema.to_plain(ours)


def _inspect_weights(path: pathlib.Path, image_size: int | None) -> tuple[Description, dict[str, Any]]:
  """Returns the model of weights, and mean, std and test crop of their images."""
  if weights.is_workdir(path):
    about = checkpoints.read_description(path) or {}
    description = Description.from_json(about.get("model")).unscan()
    images = normalisation.read_workdir_image_metadata(path, about)
    return description, _collect_data_arguments(images.normalised, images.crop, images.size, image_size)
  recognised = weights.inspect(path)
  image_metadata = recognised.image_metadata
  crop_size = image_metadata.size or recognised.description.image_size
  return recognised.description, _collect_data_arguments(
    normalisation.find_normalisation(recognised), image_metadata.crop, crop_size, image_size
  )


def _collect_data_arguments(
  normalised: Mapping[str, Sequence[float]],
  crop: Choice | None,
  size: int | tuple[int, int] | None,
  image_size: int | None,
) -> dict[str, Any]:
  """Returns data arguments: mean and std of three channels, and the crop for images of a size."""
  result: dict[str, Any] = {key: tuple(values) for key, values in normalised.items() if len(values) == 3}
  if crop is not None:
    result["test_crop"] = (
      preprocessing.scale_crop(crop, size, image_size) if image_size and isinstance(size, int) else crop
    )
  return result
