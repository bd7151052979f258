"""Where pixels are, in images that are whole, [B, H, W, 3], or cut into patches, [B, N, P*P*3]."""

import math

import numpy as np

from vit_jax.shapes import Bool, Count, Int, Integer, Shaped, Tensor


def sides(images: Shaped[Tensor, " B *image"], patch: int | None) -> tuple[int, int]:
  """Height and width of images in either layout; images that are cut into patches are square."""
  if patch is None:
    return images.shape[1:3]
  count = math.isqrt(images.shape[1])
  assert count**2 == images.shape[1] and images.shape[2] == 3 * patch**2
  return count * patch, count * patch


def pixels(
  images: Shaped[Tensor, " B *image"], patch: int | None
) -> tuple[Int[np.ndarray, "..."], Int[np.ndarray, "..."]]:
  """Row and column of the pixel that each value of one image belongs to: two arrays that broadcast with an image."""
  height, width = sides(images, patch)
  if patch is None:
    return np.arange(height)[:, None, None], np.arange(width)[:, None]
  patch_row, patch_column = np.divmod(np.arange(images.shape[1])[:, None], width // patch)
  row, column = np.divmod(np.arange(images.shape[2]) // 3, patch)
  return patch_row * patch + row, patch_column * patch + column


def inside(
  place: tuple[Int[np.ndarray, "..."], Int[np.ndarray, "..."]],
  box: tuple[Count, Count, Count, Count] | Integer[Tensor, "4"],
) -> Bool[Tensor, "..."]:
  """Where the pixels at `place` (rows, columns) are inside of the box (top, left, height, width)."""
  (rows, columns), (top, left, height, width) = place, box
  return (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
