"""Default normalisation of images for published weights, by publisher. It is used if no file states the values."""

from typing import Any

from vit_jax.models import Description

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
  return {
    **find_usual_normalisation(recognised.layout.name, recognised.description),
    **recognised.image_metadata.normalised,
  }


def find_usual_normalisation(layout: str, description: Description) -> dict[str, Channels]:
  """Returns the usual mean and std of a layout and a model, for pixels of 0..1.

  The sources are listed in docs/models/index.md. A ViT in timm's layout may come from several publishers. The names of
  DeiT are unique. A model with layer scale and a class token is from DeiT III, DINOv2, DINOv3 or rope-vit. A model with
  a bias only for queries and values, or with norms after the branches, is from EVA-02. For all other models, the values
  of Google are used, which timm uses for its own training.

  Args:
    layout: name of the layout.
    description: the model.

  Returns:
    {"mean": values, "std": values}, one value per channel.
  """
  name, family = description.model.name, description.published.family
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
