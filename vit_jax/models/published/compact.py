"""Published compact transformers: ViT-Lite, CVT and CCT, with the sizes and names of the official code."""

from typing import Literal, NamedTuple

from vit_jax.models.published.model import make_published

SIZES = {  # width, depth, heads, hidden
  2: (128, 2, 2, 128),
  4: (128, 4, 2, 128),
  6: (256, 6, 4, 512),
  7: (256, 7, 4, 512),
  14: (384, 14, 6, 1152),
}


class Variant(NamedTuple):
  """A published compact transformer.

  Args:
    size: key of `SIZES`.
    kernel: kernel size of the tokenizer.
    convolutions: number of convolutions of the tokenizer. 0 means patches.
    pool: pooling of the tokens.
    image_size: side of the images in pixels.
    classes: number of classes.
  """

  size: int
  kernel: int
  convolutions: int
  pool: Literal["cls", "seqpool"]
  image_size: int
  classes: int


_pools: dict[str, Literal["cls", "seqpool"]] = {"vit": "cls", "cvt": "seqpool"}
_patch_variants = {
  f"{family}_{size}_4_32": Variant(size, 4, 0, pool, 32, 10) for family, pool in _pools.items() for size in (2, 4, 6, 7)
}
_conv_variants = {
  "cct_2_3x2_32": Variant(2, 3, 2, "seqpool", 32, 10),
  "cct_4_3x2_32": Variant(4, 3, 2, "seqpool", 32, 10),
  "cct_6_3x1_32": Variant(6, 3, 1, "seqpool", 32, 10),
  "cct_6_3x2_32": Variant(6, 3, 2, "seqpool", 32, 10),
  "cct_7_3x1_32": Variant(7, 3, 1, "seqpool", 32, 10),
  "cct_7_3x1_32_c100": Variant(7, 3, 1, "seqpool", 32, 100),
  "cct_7_3x2_32": Variant(7, 3, 2, "seqpool", 32, 10),
  "cct_7_7x2_224": Variant(7, 7, 2, "seqpool", 224, 102),
  "cct_14_7x2_224": Variant(14, 7, 2, "seqpool", 224, 1000),
  "cct_14_7x2_384": Variant(14, 7, 2, "seqpool", 384, 1000),
  "cct_14_7x2_384_fl": Variant(14, 7, 2, "seqpool", 384, 102),
}
# All variants except the largest also exist with a fixed table: cct_7_3x1_32_sine, cct_7_3x1_32_sine_c100.
VARIANTS = {  # name -> variant, position
  **{name: (variant, "learned") for name, variant in (_patch_variants | _conv_variants).items()},
  **{
    name.removesuffix("_c100") + "_sine" + ("_c100" if name.endswith("_c100") else ""): (variant, "sine")
    for name, variant in (_patch_variants | _conv_variants).items()
    if variant.size != 14
  },
}

NAMES = {
  name: make_published(
    "compact:compact", variant, position=table, image_size=variant.image_size, classes=variant.classes
  )
  for name, (variant, table) in VARIANTS.items()
}
