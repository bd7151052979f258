"""Preprocessing of a single image file or pixel array to the square input of a model, as in evaluations."""

import dataclasses
from collections.abc import Callable

import numpy as np

from vit_jax.data import crops, decoding
from vit_jax.data.bound_data import EvalData
from vit_jax.data.images import ImageError
from vit_jax.schema import make


@dataclasses.dataclass(frozen=True)
class Preparation:
  """The preprocessing that converts an image to a uint8 array (S, S, 3).

  Attributes:
    size: side S of the result in pixels.
    cut: function (image (H, W, 3), None) -> (S, S, 3).
    max_pixels: maximum number of pixels of an image.
    max_aspect: maximum aspect ratio of an image.
    exif: whether photographs are rotated as their EXIF data specify.
  """

  size: int
  cut: Callable[..., np.ndarray]
  max_pixels: int
  max_aspect: float
  exif: bool

  @classmethod
  def from_data(cls, data: EvalData) -> "Preparation":
    """Returns the preprocessing of a bound choice of data."""
    cut = make(data.test_crop, crops.TEST_CROPS, data.image_size)
    return cls(data.image_size, cut, data.max_pixels, data.max_aspect, data.exif)

  def prepare_file(self, data: bytes) -> np.ndarray:
    """Returns the preprocessed image of an image file, within the limits of a run.

    Args:
      data: bytes of the image file.

    Returns:
      A uint8 array (S, S, 3).

    Raises:
      ValueError: if the image cannot be decoded or exceeds a limit. Errors of OpenCV are passed on.
    """
    with decoding.use_core():
      header = decoding.check_image(data, self.max_pixels, self.max_aspect, self.exif)
      with decoding.MEMORY.share(header.memory + 2 * len(data)):
        return self.cut(decoding.LazyImage(data, header), None)

  def prepare_pixels(self, image: np.ndarray) -> np.ndarray:
    """Returns the preprocessed image of an array of pixels.

    Args:
      image: uint8 array (H, W, 3) in RGB, or (H, W) in grey.

    Returns:
      A uint8 array (S, S, 3).

    Raises:
      ImageError: if the array has another shape or type, or too many pixels.
    """
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
      raise ImageError(
        f"an image of shape {image.shape} and type {image.dtype}. Allowed: [H, W, 3] or [H, W] of uint8, RGB 0 to 255"
      )
    if not 0 < image.shape[0] * image.shape[1] <= self.max_pixels:
      raise ImageError(f"an image of shape {image.shape}. Allowed: 1 to {self.max_pixels:,} pixels")
    return self.cut(np.stack([image] * 3, axis=-1) if image.ndim == 2 else image, None)
