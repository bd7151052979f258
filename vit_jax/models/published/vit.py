"""Published Vision Transformers: sizes, and the names of Google, timm, DeiT and Hugging Face."""

import re

from vit_jax import schema
from vit_jax.models.published.model import Published, make_published

SIZES = {  # width, depth, heads, hidden: one row is one model
  "mu": (32, 1, 2, 128),
  "Ti": (192, 12, 3, 768),
  "S": (384, 12, 6, 1536),
  "M": (512, 12, 8, 2048),
  "B": (768, 12, 12, 3072),
  "L": (1024, 24, 16, 4096),
  "So400m": (1152, 27, 16, 4304),
  "H": (1280, 32, 16, 5120),
  "g": (1408, 40, 16, 6144),
  "g-opt": (1536, 40, 16, 6144),
  "G": (1664, 48, 16, 8192),
  "G-opt": (1536, 48, 16, 8192),
  "e": (1792, 56, 16, 15360),
}
PATCHES = (8, 14, 16, 32)  # patch sizes that are listed; any other is also supported
HYBRIDS = {  # name -> size, patch on the ResNet's feature map, units of its stages (empty: only the root)
  "R+Ti/16": ("Ti", 8, ()),
  "R26+S/32": ("S", 1, (2, 2, 2, 2)),
  "R26+B/32": ("B", 1, (2, 2, 2, 2)),
  "R50+B/16": ("B", 1, (3, 4, 9)),
  "R50+L/32": ("L", 1, (3, 4, 6, 3)),
}

_HUGGING_FACE = schema.Choice("layer", {"eps": 1e-12})
_TIMM = {  # timm's size -> size, patches and image sizes in timm's names
  "tiny": ("Ti", (16,), (224, 384)),
  "small": ("S", (8, 16, 32), (224, 384)),
  "medium": ("M", (16, 32), (224, 256)),
  "base": ("B", (8, 16, 32), (224, 256, 384)),
  "large": ("L", (14, 16, 32), (224, 384)),
  "huge": ("H", (14, 16), (224, 378)),
  "giant": ("g", (14,), (224,)),
  "gigantic": ("G", (14,), (224,)),
}

NAMES = {
  **{f"ViT-{size}/{patch}": make_published("vit:vit", row, patch) for size, row in SIZES.items() for patch in PATCHES},
  **{
    name: make_published("vit:vit", SIZES[size], patch, stages=stages)
    for name, (size, patch, stages) in HYBRIDS.items()
  },
  **{
    f"vit_{word}_patch{patch}_{side}": make_published(
      "vit:vit", SIZES[size], patch, gelu="erf", resampling="bicubic_antialiased", image_size=side
    )
    for word, (size, patches, sides_) in _TIMM.items()
    for patch in patches
    for side in sides_
    if side % patch == 0
  },
  **{
    f"deit_{word}{distilled and '_distilled'}_patch16_{side}": make_published(
      "vit:vit",
      SIZES[size],
      16,
      gelu="erf",
      resampling="bicubic_antialiased",
      head=schema.Choice(distilled or "cls"),
      image_size=side,
    )
    for word, size in (("tiny", "Ti"), ("small", "S"), ("base", "B"))
    for distilled in ("", "distilled")
    for side in ((224, 384) if word == "base" else (224,))
  },
  **{
    f"google/vit-{word}-patch{patch}-{side}": make_published(
      "vit:vit", SIZES[size], patch, gelu="erf", norm=_HUGGING_FACE, resampling="bicubic", image_size=side
    )
    for word, size, patch, side in (
      ("base", "B", 16, 224),
      ("base", "B", 16, 384),
      ("base", "B", 32, 384),
      ("large", "L", 16, 224),
      ("large", "L", 16, 384),
      ("large", "L", 32, 384),
    )
  },
  **{
    f"google/vit-{word}-patch{patch}-224-in21k": make_published(
      "vit:vit",
      SIZES[size],
      patch,
      gelu="erf",
      norm=_HUGGING_FACE,
      resampling="bicubic",
      head=schema.Choice("cls", {"pre_logits": SIZES[size][0]}),
      classes=0,
    )
    for word, size, patch in (
      ("base", "B", 16),
      ("base", "B", 32),
      ("large", "L", 16),
      ("large", "L", 32),
      ("huge", "H", 14),
    )
  },
}

_ANY_PATCH = re.compile(r"ViT-([A-Za-z0-9-]+)/(.*)")


def find_any_patch(name: str) -> Published | None:
  """Returns the model of "ViT-<size>/<patch>" for any patch size, or None for a name of another form.

  Args:
    name: name of a model.

  Raises:
    ConfigError: if the size is unknown, or if the patch is not a positive integer.
  """
  match = _ANY_PATCH.fullmatch(name)
  if not match:
    return None
  size, patch = match.groups()
  if size not in SIZES:
    raise schema.ConfigError(f"{name!r} has unknown size {size!r}.{schema.suggest_nearest(size, SIZES)}", "name")
  if not re.fullmatch("[1-9][0-9]{0,5}", patch):
    raise schema.ConfigError(f"{name!r} has patch {patch!r}. Allowed: a positive integer, as in ViT-S/16", "name")
  return make_published("vit:vit", SIZES[size], int(patch))
