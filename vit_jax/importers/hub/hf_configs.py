"""JSON files that hubs store next to weights: the files of Transformers for ViTs, and of timm for all its families.

timm builds a model from the name of an architecture and arguments. If timm cannot build a model in this way, its file
contains no name.
"""

from collections import Counter
from typing import Any

from vit_jax.importers.hub import preprocessing, preprocessor, timm_arguments
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.importers.layout import Layout
from vit_jax.models import Description, table
from vit_jax.schema import Choice, show
from vit_jax.schema.errors import format_names

# Names of the first convolution and of the head in timm.
_ENDS = {"vit": ("patch_embed.proj", "head"), "swin": ("patch_embed.proj", "head.fc"), "mixer": ("stem.proj", "head")}
_ENDS |= {"efficientnet": ("conv_stem", "classifier")}


def create_sidecar_files(
  chosen: Layout, description: Description, metadata: ImageMetadata
) -> dict[str, dict[str, Any]]:
  """Returns the JSON files to write next to a weight file.

  Args:
    chosen: layout of the weight file.
    description: the model.
    metadata: metadata of images and classes.

  Returns:
    {file name: JSON values}. Empty if the readers of the layout do not use such files.
  """
  if chosen.create_config:
    return _create_transformers_files(chosen.create_config(description), description, metadata)
  return {"config.json": _create_timm_files(description, metadata)} if chosen.name == "timm" else {}


def describe_unsaved(chosen: Layout, description: Description, metadata: ImageMetadata) -> list[str]:
  """Returns notes about facts that these files cannot store.

  Args:
    chosen: layout of the weight file.
    description: the model.
    metadata: metadata of images and classes.
  """
  if not chosen.create_config and chosen.name != "timm":
    return []
  unnamed = chosen.name == "timm" and find_architecture(description) is None
  result = ["timm has no architecture with these arguments; config.json names none"] if unnamed else []
  bound = description.settings()
  if chosen.create_config and bound.get("head") == "gap" and bound.get("head.class_token"):
    result.append("head=gap is not in the file: pooler_output of Transformers is the normalised class token")
  if chosen.create_config and (same := sorted(name for name, count in Counter(metadata.labels).items() if count > 1)):
    text = f"several classes are called {format_names(map(show, same), 3)}: label2id has one number for each name"
    result.append(f"{text}; id2label contains every class and is the table that is read")
  if not _is_square(description, metadata):
    return [*result, "image preprocessing is not written: it is defined only for square RGB images"]
  return [*result, *preprocessing.describe_crop_limits(metadata, transformers=bool(chosen.create_config))]


def _is_square(description: Description, metadata: ImageMetadata) -> bool:
  return description.channels == 3 and description.image_size == metadata.size


def _create_transformers_files(
  config: dict[str, Any], description: Description, metadata: ImageMetadata
) -> dict[str, Any]:
  names = metadata.labels or tuple(f"LABEL_{i}" for i in range(description.classes))
  numbers = {name: i for i, name in enumerate(names)}
  config |= {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": numbers}
  if description.classes:
    several = metadata.loss not in (None, "softmax")
    config["problem_type"] = "multi_label_classification" if several else "single_label_classification"
  prepared = preprocessor.create_processor_config(metadata) if _is_square(description, metadata) else None
  return {"config.json": config} | ({"preprocessor_config.json": prepared} if prepared else {})


def _create_timm_files(description: Description, metadata: ImageMetadata) -> dict[str, Any]:
  named = find_architecture(description)
  first, head = _ENDS[description.published.family]
  size = description.image_size
  height, width = (size, size) if isinstance(size, int) else size
  prepared: dict[str, Any] = {"input_size": [description.channels, height, width]}
  if _is_square(description, metadata):
    prepared |= preprocessing.create_timm_keys(metadata)
    prepared |= {key: list(values) for key, values in metadata.normalised.items()}
  prepared |= {"num_classes": description.classes, "first_conv": first}
  prepared |= {"fixed_input_size": description.published.family != "efficientnet"}
  distilled = description.settings().get("head") == "distilled"
  prepared["classifier"] = [head, f"{head}_dist"] if distilled else head
  return {
    **({"architecture": named.name} if named else {}),
    "num_classes": description.classes,
    **({"label_names": list(metadata.labels)} if metadata.labels else {}),
    "pretrained_cfg": prepared,
    **({"model_args": dict(named.args)} if named and named.args else {}),
  }


def find_architecture(description: Description) -> Choice | None:
  """Returns timm's name of a model with the arguments that it needs, or None if timm cannot build the model."""
  published, essential = description.published, description.essential()
  if published.family == "vit":
    return timm_arguments.create_arguments(description)
  size: dict[str, Any] = {}
  if published.family != "efficientnet" and description.image_size != published.image_size:
    size["img_size"] = description.image_size
  name = description.model.name.removeprefix("timm/").partition(".")[0]
  if published.family == "mixer":
    same = [other for other in table.names("mixer_*") if table.find(other).row == published.row]
    name = next(iter(same), "")
    gelu = description.settings()["gelu"]
    size |= {"act_layer": "gelu_tanh"} if gelu == "tanh" else {}
    essential.pop("gelu", None)
  known = name in table.names() and (name.islower() or "_" in name)
  return Choice(name, size) if known and not essential else None
