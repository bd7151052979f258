"""Coordinates of pixels in images (B, H, W, 3), or in images that are divided into patches (B, N, P * P * 3)."""

import math

import numpy as np

from vit_jax.shapes import Bool, Count, Int, Integer, Shaped, Tensor


def get_image_sides(images: Shaped[Tensor, " B *image"], patch: int | None) -> tuple[int, int]:
  """Returns the height and width of images in pixels. Images that are divided into patches are square.

  Args:
    images: images or patches.
    patch: side P of a patch in pixels. None: images are not divided.
  """
  if patch is None:
    height, width = images.shape[1:3]
    return height, width
  count = math.isqrt(images.shape[1])
  assert count**2 == images.shape[1] and images.shape[2] == 3 * patch**2
  return count * patch, count * patch


def compute_pixel_coordinates(
  images: Shaped[Tensor, " B *image"], patch: int | None
) -> tuple[Int[np.ndarray, "..."], Int[np.ndarray, "..."]]:
  """Returns the row and the column of the pixel to which each value of an image belongs.

  Args:
    images: images or patches.
    patch: side P of a patch in pixels. None: images are not divided.

  Returns:
    (rows, columns), two arrays that broadcast with one image.
  """
  height, width = get_image_sides(images, patch)
  if patch is None:
    return np.arange(height)[:, None, None], np.arange(width)[:, None]
  patch_row, patch_column = np.divmod(np.arange(images.shape[1])[:, None], width // patch)
  row, column = np.divmod(np.arange(images.shape[2]) // 3, patch)
  return patch_row * patch + row, patch_column * patch + column


def is_inside(
  place: tuple[Int[np.ndarray, "..."], Int[np.ndarray, "..."]],
  box: tuple[Count, Count, Count, Count] | Integer[Tensor, "4"],
) -> Bool[Tensor, "..."]:
  """Returns whether each pixel is inside of a box.

  Args:
    place: rows and columns of the pixels, as returned by `compute_pixel_coordinates`.
    box: (top, left, height, width).
  """
  (rows, columns), (top, left, height, width) = place, box
  return (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
