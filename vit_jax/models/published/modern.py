"""Published Vision Transformers with modern blocks: sizes, and the names of timm and ViT-5.

The models are DeiT III, DINOv2, DINOv3, SigLIP, SigLIP 2, timm's recipes with registers (SBB), rope-vit, EVA-02 and
ViT-5.
"""

import itertools
from typing import Any

from vit_jax.models.published.model import Published, make_published
from vit_jax.models.published.vit import SIZES
from vit_jax.schema import Choice

# Rotary positions by publisher.
DINOV3 = Choice("dinov3", {"temperature": 100.0})
EVA02 = Choice("axial", {"temperature": 10_000.0, "reference": 16})  # also of timm's own models
ROPE_VIT = Choice("axial", {"temperature": 100.0, "first": "columns"})
MIXED = Choice("mixed", {"temperature": 10.0})
VIT5 = Choice("axial", {"temperature": 10_000.0, "reference": 0, "registers": 100.0})

_PATCHES, _ALL = Choice("learned_patches"), Choice("learned_all")
_NO_BIAS, _NO_KEY_BIAS = Choice("xla", {"bias": "none"}), Choice("xla", {"bias": "query_value"})
_DIFFERENTIAL = Choice("differential")
_PARALLEL, _POOLED = Choice("layer", {"order": "parallel", "pooled": True}), Choice("layer", {"pooled": True})
_SWIGLU = Choice("swiglu")
_GAP, _MAP, _GAP_WITH_TOKEN = Choice("gap"), Choice("map"), Choice("gap", {"class_token": True})
_EVA02_ALONE = Choice("none", {"rotary": EVA02})


def _vit(
  row: tuple[int, int, int, int], patch: int, image_size: int, classes: int = 1000, **defaults: object
) -> Published:
  defaults = {"gelu": "erf", "resampling": "bicubic_antialiased"} | defaults
  return make_published("vit:vit", row, patch, image_size=image_size, classes=classes, **defaults)


_DEIT3 = {
  f"deit3_{word}_patch{patch}_{side}": _vit(SIZES[size], patch, side, position=_PATCHES, layer_scale=1e-6)
  for word, size, patch, sides in (
    ("small", "S", 16, (224, 384)),
    ("medium", "M", 16, (224,)),
    ("base", "B", 16, (224, 384)),
    ("large", "L", 16, (224, 384)),
    ("huge", "H", 14, (224,)),
  )
  for side in sides
}

_GIANT = (1536, 40, 24, 4096)
_DINOV2 = {
  f"vit_{word}_patch14_{registers}dinov2": _vit(
    row,
    14,
    518,
    0,
    layer_scale=1e-5,
    **({"mlp": _SWIGLU} if row is _GIANT else {}),
    **({"registers": 4, "position": _PATCHES} if registers else {}),
  )
  for word, row in (("small", SIZES["S"]), ("base", SIZES["B"]), ("large", SIZES["L"]), ("giant", _GIANT))
  for registers in ("", "reg4_")
}

# timm pools the patches. The authors' code uses the class token.
_DINOV3 = {
  f"vit_{word}_patch16_dinov3{biased}": _vit(
    row,
    16,
    256,
    0,
    head=_GAP_WITH_TOKEN,
    registers=4,
    position=Choice("none", {"rotary": DINOV3}),
    layer_scale=1e-5,
    norm=Choice("layer", {"eps": 1e-5}),
    **({"mlp": Choice(mlp)} if mlp != "gelu" else {}),
    attention=_NO_KEY_BIAS if biased else _NO_BIAS,
  )
  for word, row, mlp, kinds in (
    ("tiny", SIZES["Ti"], "gelu", ("_qkvb",)),
    ("small", SIZES["S"], "gelu", ("", "_qkvb")),
    ("small_plus", SIZES["S"], "swiglu", ("", "_qkvb")),
    ("base", SIZES["B"], "gelu", ("", "_qkvb")),
    ("large", SIZES["L"], "gelu", ("", "_qkvb")),
    ("huge_plus", (1280, 32, 20, 5120), "swiglu", ("", "_qkvb")),
    ("7b", (4096, 40, 32, 8192), "swiglu", ("",)),
  )
  for biased in kinds
}

# timm computes the erf form of GELU, except for its newest names. The authors' code always computes the tanh form.
_SIGLIP = {
  f"vit_{word}_patch{patch}_siglip_{gap}{side}": _vit(
    SIZES[size], patch, side // patch * patch, 0, head=_GAP if gap else _MAP, gelu=gelu
  )
  for word, size, patch, gelu, sides, only_gap in (
    ("base", "B", 32, "tanh", (256,), ()),
    ("base", "B", 16, "erf", (224, 256, 384, 512), ()),
    ("large", "L", 16, "erf", (256, 384), ()),
    ("large", "L", 16, "tanh", (512,), ()),
    ("so400m", "So400m", 14, "erf", (224, 378, 384), (448, 896)),
    ("so400m", "So400m", 16, "tanh", (256, 384, 512), ()),
    ("giantopt", "g-opt", 16, "tanh", (256, 384), ()),
  )
  for gap in ("", "gap_")
  for side in (*sides, *(only_gap if gap else ()))
}

_WEE, _WEE_DEEP = (256, 14, 4, 1280), (256, 16, 4, 1280)
_LITTLE, _BETWIXT = (320, 14, 5, 1792), (640, 12, 10, 2560)
_MEDIUM_DEEP, _SO150M, _SO150M2 = (512, 20, 8, 2048), (896, 18, 14, 2304), (832, 21, 13, 2176)
_Row = tuple[str, tuple[int, int, int, int], str, tuple[int, ...], int, dict[str, Any]]
_SBB_ROWS: tuple[_Row, ...] = (  # word, sizes, suffix, image sizes, classes, arguments
  *(
    (word, row, f"reg{registers}_gap", sides, 1000, {"registers": registers, "layer_scale": 1e-5})
    for word, row, registers, sides in (
      ("wee", _WEE, 1, (256,)),
      ("little", _LITTLE, 1, (256,)),
      ("little", _LITTLE, 4, (256,)),
      ("medium", SIZES["M"], 1, (256,)),
      ("medium", SIZES["M"], 4, (256,)),
      ("mediumd", _MEDIUM_DEEP, 4, (256, 384)),
      ("betwixt", _BETWIXT, 1, (256,)),
      ("betwixt", _BETWIXT, 4, (256, 384)),
    )
  ),
  ("dwee", _WEE, "reg1_gap", (256,), 1000, {"registers": 1, "layer_scale": 1e-5, "attention": _DIFFERENTIAL}),
  ("dlittle", _LITTLE, "reg1_gap", (256,), 1000, {"registers": 1, "layer_scale": 1e-5, "attention": _DIFFERENTIAL}),
  ("pwee", _WEE_DEEP, "reg1_gap", (256,), 1000, {"registers": 1, "layer_scale": 1e-5, "norm": _PARALLEL}),
  ("dpwee", _WEE_DEEP, "reg1_gap", (256,), 1000,
   {"registers": 1, "layer_scale": 1e-5, "norm": _PARALLEL, "attention": _DIFFERENTIAL}),
  ("base", SIZES["B"], "reg4_gap", (256,), 1000, {"registers": 4}),
  ("so150m", _SO150M, "reg4_gap", (256, 384), 1000,
   {"registers": 4, "position": _ALL, "norm": Choice("layer")}),
  ("so150m", _SO150M, "reg4_map", (256,), 1000,
     {"registers": 4, "position": _ALL, "norm": Choice("layer"), "head": _MAP}),
  ("so150m2", _SO150M2, "reg1_gap", (256, 384, 448), 1000,
   {"registers": 1, "position": _ALL, "layer_scale": 1e-5, "attention": _NO_BIAS}),
  *(
    (word, row, "gap", sides, classes,
     {"position": Choice("learned"), "norm": Choice("layer"), "layer_scale": 1e-6, "attention": _NO_BIAS})
    for word, row, sides, classes in (
      ("medium", SIZES["M"], (240,), 11821),
      ("medium", SIZES["M"], (256, 384), 1000),
      ("betwixt", _BETWIXT, (256,), 1000),
    )
  ),
  *(
    (word, row, f"rope_reg{registers}_gap", (256,), 1000,
     {"registers": registers, "position": _EVA02_ALONE, "layer_scale": 1e-5, "attention": attention})
    for word, row, registers, attention in (
      ("medium", SIZES["M"], 1, _NO_KEY_BIAS),
      ("mediumd", _MEDIUM_DEEP, 1, _NO_BIAS),
      ("betwixt", _BETWIXT, 4, _NO_KEY_BIAS),
      ("base", SIZES["B"], 1, _NO_KEY_BIAS),
    )
  ),
)  # fmt: skip
_SBB = {
  f"vit_{word}_patch16_{kind}_{side}": _vit(
    row, 16, side, classes, **{"head": _GAP, "norm": _POOLED, "position": _PATCHES, **defaults}
  )
  for word, row, kind, sides, classes, defaults in _SBB_ROWS
  for side in sides
}  # fmt: skip

_ROPE_VIT = {
  f"vit_{word}_patch16_rope{mixed}{table}_224": _vit(
    SIZES[size],
    16,
    224,
    position=Choice("learned_patches" if table else "none", {"rotary": MIXED if mixed else ROPE_VIT}),
    layer_scale=1e-5,
  )
  for (word, size), mixed, table in itertools.product(
    (("small", "S"), ("base", "B"), ("large", "L")), ("", "_mixed"), ("", "_ape")
  )
}

_EVA02_SIZES = {
  "tiny": (192, 12, 3, 512),
  "small": (384, 12, 6, 1024),
  "base": (768, 12, 12, 2048),
  "large": (1024, 24, 16, 2730),
}
_EVA02_POSITION = Choice("learned", {"rotary": EVA02})
_EVA02 = {
  **{
    f"eva02_{word}_patch14_{side}": _vit(
      _EVA02_SIZES[word],
      14,
      side,
      1000 if side > 224 else 0,
      head=_GAP_WITH_TOKEN,
      norm=_POOLED,
      position=_EVA02_POSITION,
      attention=_NO_KEY_BIAS,
      mlp=_SWIGLU if word in ("tiny", "small") else Choice("swiglu_normed"),
    )
    for word, larger in (("tiny", 336), ("small", 336), ("base", 448), ("large", 448))
    for side in (224, larger)
  },
  **{
    f"eva02_{word}_patch{patch}_clip_{side}": _vit(
      _EVA02_SIZES[word],
      patch,
      side,
      classes,
      position=_EVA02_POSITION,
      attention=Choice("xla", {"bias": "query_value", "output": Choice("normed")}),
      mlp=Choice("swiglu_normed"),
    )
    for word, patch, side, classes in (("base", 16, 224, 512), ("large", 14, 224, 768), ("large", 14, 336, 768))
  },
  "eva02_enormous_patch14_clip_224": _vit(
    (1792, 64, 16, 15360), 14, 224, 1024, attention=_NO_KEY_BIAS, norm=Choice("layer", {"order": "post"})
  ),
}

_VIT5 = {
  f"vit5_{word}": _vit(
    SIZES[size],
    16,
    224,
    registers=4,
    position=Choice("learned_patches", {"rotary": VIT5}),
    attention=Choice("xla", {"qk_norm": "rms", "bias": "none"}),
    norm=Choice("rms"),
    layer_scale=1e-4,
    resampling="bicubic",
  )
  for word, size in (("small", "S"), ("base", "B"), ("large", "L"))
}

NAMES = {**_DEIT3, **_DINOV2, **_DINOV3, **_SIGLIP, **_SBB, **_ROPE_VIT, **_EVA02, **_VIT5}
