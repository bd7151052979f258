"""Model names of other libraries and the closest names in this package, for suggestions in error messages."""

import re
from collections.abc import Collection

_SIZES = {
  "ti": "tiny", "tiny": "tiny", "t": "tiny", "s": "small", "small": "small", "m": "medium", "medium": "medium",
  "b": "base", "base": "base", "l": "large", "large": "large", "h": "huge", "huge": "huge", "g": "giant",
  "giant": "giant", "gigantic": "gigantic", "bigg": "gigantic", "so400m": "so400m",
}  # fmt: skip
_LETTERS = {
  "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G",
  "so400m": "So400m",
}  # fmt: skip
_SIZE = f"({'|'.join(sorted(_SIZES, key=len, reverse=True))})"
# (pattern for a lower-case name with underscores, template of the name here, default patch). The first match counts.
_RULES = (
  (rf"dinov2_with_registers_{_SIZE}.*", "vit_{size}_patch14_reg4_dinov2", 14),
  (rf"dinov2_(?:vit_?)?{_SIZE}(?:_?14)?(?:_(?:reg|with_registers).*)", "vit_{size}_patch14_reg4_dinov2", 14),
  (rf"(?:dinov2_(?:vit_?)?|vit_){_SIZE}(?:_?14)?.*", "vit_{size}_patch14_dinov2", 14),
  (rf"dinov3_(?:vit_?)?{_SIZE}.*", "vit_{size}_patch16_dinov3", 16),
  (rf"deit3_{_SIZE}.*", "deit3_{size}_patch16_224", 16),
  (rf"deit_{_SIZE}_.*distilled.*", "deit_{size}_distilled_patch16_224", 16),
  (rf"deit_?{_SIZE}(?:_.*)?", "deit_{size}_patch16_224", 16),
  (rf"siglip2?_{_SIZE}_patch(\d+)_(\d+)", "vit_{size}_patch{patch}_siglip_{pixels}", 16),
  (rf"swin(?:v2)?_{_SIZE}(?:_.*)?", "swin_{size}_patch4_window7_224", 4),
  (r"(?:tf_)?efficientnet_?(?:v2_)?(b\d)(?:_.*)?", "efficientnet_{0}", 0),
  (rf"(?:mlp_)?mixer_?{_SIZE}_?(\d+)?(?:_.*)?", "Mixer-{letter}/{patch}", 16),
  (r"(?:wide_)?resne(?:x|s)?t(?:v2)?_?(\d+).*", "{resnet}", 0),
  (rf".*?(?:vit|vision_transformer|beit|mae)_?{_SIZE}_?(?:patch|p)?_?(\d+)?(?:_.*)?", "ViT-{letter}/{patch}", 16),
)
_RESNETS = {18: "R26x1", 26: "R26x1", 34: "R26x1", 50: "R50x1", 101: "R101x1", 152: "R152x2"}


def find_nearest(name: str, names: Collection[str]) -> str | None:
  """Returns the name in this package that most likely corresponds to a name of another library, or None.

  Args:
    name: a name such as "vit_b_16" (torchvision), "ViT-B-16" (open_clip), "facebook/dinov2-base" (Hugging Face) or
      "vit_tiny".
    names: existing names. A Vision Transformer may also have any other patch size.
  """
  spelt, alike = _normalise_name(name), {_normalise_name(other): other for other in reversed(list(names))}
  if spelt in alike:
    return alike[spelt]
  for pattern, form, patch in _RULES:
    if "dinov2" in form and "dinov2" not in spelt:
      continue
    if (match := re.fullmatch(pattern, spelt)) is None:
      continue
    found = _fill(form, match, patch)
    if found in names or found.startswith("ViT-"):
      return found
  return None


def _normalise_name(name: str) -> str:
  """Returns a name in lower case, without its owner, and with underscores between words."""
  own = name if re.search(r"/\d+$", name) else name.rpartition("/")[2]  # ViT-B/16 has no owner
  return re.sub(r"[-/. ]", "_", own.partition(":")[2] or own).lower()


def _fill(form: str, match: re.Match[str], patch: int) -> str:
  """Fills the groups of a match into a name template."""
  groups = [group for group in match.groups() if group]
  size = _SIZES.get(groups[0], groups[0])
  large = size in ("huge", "giant", "gigantic") and patch == 16
  numbers = [int(group) for group in groups[1:] if group.isdecimal()]
  resnet = int(groups[0]) if groups[0].isdecimal() else 0
  return form.format(
    groups[0],
    size=size,
    letter=_LETTERS.get(size, ""),
    patch=numbers[0] if numbers else 14 if large else patch,
    pixels=numbers[-1] if numbers else 224,
    resnet=_RESNETS.get(resnet, "R50x1"),
  )
