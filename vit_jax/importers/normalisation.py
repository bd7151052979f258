"""How images of published weights are normalised where no file says it: by who published them."""

from vit_jax.models import Description

Channels = tuple[float, float, float]

HALVES = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # Google's, and timm's of the same weights
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
# The compact models of small images, by the classes of their heads: Compact-Transformers' training files.
_COMPACT = {
  10: {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)},
  100: {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)},
  102: {"mean": (0.4353, 0.3773, 0.2872), "std": (0.2966, 0.2455, 0.2698)},
}


def published(recognised) -> dict[str, Channels]:
  """{"mean", "std"} of the images of `importers.Recognised` weights: as files beside them say, or else as is usual."""
  return {**usual(recognised.layout.name, recognised.description), **recognised.beside.normalised}


def usual(layout: str, description: Description) -> dict[str, Channels]:
  """{"mean", "std"} of values in 0..1 with which files of this layout and model are published.

  The sources are those of docs/models.md. A ViT in timm's layout may be any: DeiT's have names of their own, or layer
  scale and a class token (DeiT III, DINOv2, DINOv3, rope-vit), EVA-02's a bias for queries and values or norms after
  the branches; all others are taken for Google's, as timm trains its own.
  """
  name, family = description.model.name, description.published.family
  if layout in ("vit_jax", "big_vision", "bit"):
    return HALVES
  if family == "compact":
    return _COMPACT.get(description.classes, IMAGENET)
  if family != "vit":
    return IMAGENET if family in ("swin", "efficientnet") else HALVES
  bound = description.arguments()
  token = bound["pool"] in ("cls", "distilled") or bound["class_token"]
  scaled = bound["layer_scale"] is not None
  if name.startswith("vit_betwixt_patch16_rope") or (
    token and not scaled and (bound["qkv_bias"] == "query_value" or bound["norm_order"] == "post")
  ):
    return CLIP
  return IMAGENET if name.startswith("deit") or (scaled and token) else HALVES
