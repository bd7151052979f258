"""Published Swin Transformers: sizes, and the names of timm and Microsoft."""

from typing import NamedTuple

from vit_jax.models.published.model import make_published

PATCH = 4


class Size(NamedTuple):
  """A published size.

  Args:
    width: number of channels of the first stage, which doubles in each stage.
    depths: number of blocks of each stage.
    heads: number of attention heads of each stage.
  """

  width: int
  depths: tuple[int, ...]
  heads: tuple[int, ...]


SIZES = {
  "tiny": Size(96, (2, 2, 6, 2), (3, 6, 12, 24)),
  "small": Size(96, (2, 2, 18, 2), (3, 6, 12, 24)),
  "base": Size(128, (2, 2, 18, 2), (4, 8, 16, 32)),
  "large": Size(192, (2, 2, 18, 2), (6, 12, 24, 48)),
}
VARIANTS = {  # name -> size, window, image size
  f"swin_{size}_patch{PATCH}_window{window}_{image_size}": (size, window, image_size)
  for size, window, image_size in (
    ("tiny", 7, 224),
    ("small", 7, 224),
    ("base", 7, 224),
    ("base", 12, 384),
    ("large", 7, 224),
    ("large", 12, 384),
  )
}

NAMES = {
  name: make_published("swin:swin", SIZES[size], window, image_size=image_size)
  for name, (size, window, image_size) in VARIANTS.items()
}
