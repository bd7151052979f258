"""Types for sizes in configs, and functions that derive sizes from them."""

from typing import Annotated, Literal

from vit_jax import schema

Dtype = Literal["float32", "bfloat16"]
# The bounds are far above any sensible model. They turn a typing error into a clear message instead of a failed
# allocation.
Width = Annotated[int, schema.Range(1, 2**15)]
Depth = Annotated[int, schema.Range(1, 1024)]
Hidden = Annotated[int, schema.Range(1, 2**17)]
Blocks = Annotated[int, schema.Range(1, 256)]  # number of blocks of one stage


def size(row: tuple[int, int, int, int], **overrides: int | None) -> tuple[int, int, int, int]:
  """Returns (width, depth, heads, hidden) of a row, with overrides applied.

  Args:
    row: published sizes.
    **overrides: width, depth, heads and hidden. None keeps the published value.

  Raises:
    ConfigError: if the width is not a multiple of the number of heads.
  """
  names = ("width", "depth", "heads", "hidden")
  width, depth, heads, hidden = (
    value if (other := overrides[name]) is None else other for name, value in zip(names, row, strict=True)
  )
  if width % heads:
    divisors = [str(h) for h in range(1, min(width, 64) + 1) if width % h == 0]
    raise schema.ConfigError(
      f"model: width {width} is not a multiple of heads {heads}. Allowed heads: {', '.join(divisors)}"
    )
  return width, depth, heads, hidden


def sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
  """Returns (height, width) of an image size that may be a single side."""
  height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
  return height, width


def grid(image_size: int | tuple[int, int], patch: int) -> tuple[int, int]:
  """Returns the numbers of rows and columns of patches.

  Args:
    image_size: side of square images in pixels, or (height, width).
    patch: side of a patch in pixels.

  Raises:
    ConfigError: if a side is not a multiple of the patch.
  """
  for side in sides(image_size):
    if side % patch:
      below = side // patch * patch
      allowed = [str(near) for near in (below, below + patch) if near]
      raise schema.ConfigError(
        f"model: image size {side} is not a multiple of patch {patch}; nearest image sizes: {', '.join(allowed)}"
      )
  height, width = sides(image_size)
  return height // patch, width // patch
