"""Published EfficientNets: the stages of the smallest size, the factors of all sizes, and timm's names."""

import math
from typing import Any, NamedTuple

from vit_jax.models.published.model import make_published


class Size(NamedTuple):
  """A published size.

  Args:
    width: factor of all widths.
    depth: factor of the number of blocks of each stage.
    image_size: side of the images in pixels.
    dropout: dropout rate before the head.
  """

  width: float
  depth: float
  image_size: int
  dropout: float


class Stage(NamedTuple):
  """A stage of equal blocks in the smallest size (Tan & Le 2019, table 1). Only the first block has the stride.

  Args:
    kernel: size of the depthwise kernels.
    stride: stride of the first block.
    expansion: expansion factor of the blocks.
    width: number of output channels.
    blocks: number of blocks.
  """

  kernel: int
  stride: int
  expansion: int
  width: int
  blocks: int


SIZES = {
  "b0": Size(1.0, 1.0, 224, 0.2),
  "b1": Size(1.0, 1.1, 240, 0.2),
  "b2": Size(1.1, 1.2, 260, 0.3),
  "b3": Size(1.2, 1.4, 300, 0.3),
  "b4": Size(1.4, 1.8, 380, 0.4),
  "b5": Size(1.6, 2.2, 456, 0.4),
  "b6": Size(1.8, 2.6, 528, 0.5),
  "b7": Size(2.0, 3.1, 600, 0.5),
  "l2": Size(4.3, 5.3, 800, 0.5),  # Xie et al. 2020; trained at 475, tested at 800
}
STEM, TOP = 32, 1280
STAGES = (
  Stage(3, 1, 1, 16, 1),
  Stage(3, 2, 6, 24, 2),
  Stage(5, 2, 6, 40, 2),
  Stage(3, 2, 6, 80, 3),
  Stage(5, 1, 6, 112, 3),
  Stage(5, 2, 6, 192, 4),
  Stage(3, 1, 6, 320, 1),
)


def round_channels(base: int, factor: float) -> int:
  """Returns `base` channels times `factor`, rounded to a multiple of 8.

  Rounding down by more than a tenth is replaced by rounding up.

  Args:
    base: number of channels of the smallest size.
    factor: factor of all widths.
  """
  wanted = base * factor
  rounded = max(8, int(wanted + 4) // 8 * 8)
  return rounded + 8 if rounded < 0.9 * wanted else rounded


def count_blocks(depth_factor: float) -> tuple[int, ...]:
  """Returns the number of blocks of each stage, rounded up.

  Args:
    depth_factor: factor of the numbers of blocks.
  """
  return tuple(math.ceil(stage.blocks * depth_factor) for stage in STAGES)


_SOURCES: dict[str, dict[str, Any]] = {
  "": {"padding": "symmetric", "eps": 1e-5},
  "tf_": {"padding": "same", "eps": 1e-3, "momentum": 0.01},
}
NAMES = {
  f"{prefix}efficientnet_{name}": make_published(
    "efficientnet:efficientnet",
    image_size=size.image_size,
    width_factor=size.width,
    depth_factor=size.depth,
    dropout=size.dropout,
    **computes,
  )
  for prefix, computes in _SOURCES.items()
  for name, size in SIZES.items()
}
