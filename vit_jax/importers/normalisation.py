"""Normalisation of the images for weights: from the files of the weights, or the usual values of their publisher."""

import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.checkpoints import provenance
from vit_jax.importers.hub import preprocessing
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.models import Description
from vit_jax.schema import ConfigError

Channels = tuple[float, float, float]

HALVES = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # values of Google, and of timm for the same weights
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
# Compact models for small images, by their number of classes. Source: training files of Compact-Transformers.
_COMPACT = {
  10: {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)},
  100: {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)},
  102: {"mean": (0.4353, 0.3773, 0.2872), "std": (0.2966, 0.2455, 0.2698)},
}


def find_normalisation(recognised: Any) -> dict[str, Channels]:
  """Returns mean and std of the images for recognised weights.

  Args:
    recognised: the `importers.RecognisedModel` weights.

  Returns:
    {"mean", "std"} from the files next to the weights, or the usual values of the publisher.
  """
  usual = find_usual_normalisation(recognised.layout.name, recognised.description, bool(recognised.task))
  return {**usual, **recognised.image_metadata.normalised}


def read_workdir_image_metadata(workdir: pathlib.Path, about: Mapping[str, Any]) -> ImageMetadata:
  """Returns normalisation, test crop and size of the images for the weights of a workdir.

  They come from the config of its run, or from the metadata that `convert` wrote.

  Args:
    workdir: the workdir.
    about: metadata of its newest checkpoint.

  Raises:
    ConfigError: if a value is invalid.
  """
  if not (data := (provenance.read_stored_config(workdir, about) or {}).get("data")):
    return preprocessing.from_json(about["use"]) if "use" in about else ImageMetadata()
  try:
    return preprocessing.from_json(
      {key: data[key] for key in ("mean", "std", "test_crop", "image_size") if key in data}
    )
  except ConfigError as error:
    raise ConfigError(f"{workdir}: data of its config: {error}") from error


def find_usual_normalisation(layout: str, description: Description, has_heads: bool = False) -> dict[str, Channels]:
  """Returns the usual mean and std of a layout and a model, for pixels of 0..1.

  The sources are listed in docs/models/index.md. A ViT in timm's layout may come from several publishers. The names of
  DeiT are unique. A model with layer scale and a class token is from DeiT III, DINOv2, DINOv3 or rope-vit. A model with
  a bias only for queries and values, or with norms after the branches, is from EVA-02. For all other models, the values
  of Google are used, which timm uses for its own training.

  Args:
    layout: name of the layout.
    description: the model.
    has_heads: whether the file contains heads of self-distillation. It is then from DINO, iBOT, DINOv2 or DINOv3.

  Returns:
    {"mean": values, "std": values}, one value per channel.
  """
  name, family = description.model.name, description.published.family
  if has_heads:
    return IMAGENET
  if layout in ("vit_jax", "big_vision", "bit"):
    return HALVES
  if family == "compact":
    return _COMPACT.get(description.classes, IMAGENET)
  if family != "vit":
    return IMAGENET if family in ("swin", "efficientnet") else HALVES
  bound = description.settings()
  token = bound["head"] in ("cls", "distilled") or bound.get("head.class_token")
  scaled = bound["layer_scale"] is not None
  if name.startswith("vit_betwixt_patch16_rope") or (
    token and not scaled and (bound["attention.bias"] == "query_value" or bound["norm.order"] == "post")
  ):
    return CLIP
  return IMAGENET if name.startswith("deit") or (scaled and token) else HALVES
