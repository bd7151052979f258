"""From an image file, or pixels, to the square that a model sees: what evaluations do, for one image by itself."""

import dataclasses
from collections.abc import Callable

import numpy as np

from vit_jax.data import crops, decoding
from vit_jax.data.images import ImageError
from vit_jax.schema import Choice, make


@dataclasses.dataclass(frozen=True)
class Preparation:
  """How images become [S, S, 3], uint8."""

  size: int
  cut: Callable  # (image [H, W, 3], None) -> [S, S, 3]
  max_pixels: int
  max_aspect: float
  exif: bool  # whether photographs are turned upright

  @classmethod
  def of(cls, data: Choice) -> "Preparation":
    """That of bound data."""
    size = data.args["image_size"]
    cut = make(data.args["test_crop"], crops.TEST_CROPS, size)
    return cls(size, cut, data.args["max_pixels"], data.args["max_aspect"], data.args["exif"])

  def file(self, data: bytes) -> np.ndarray:
    """The square of an image file's bytes, within the bounds of a run. Raises ValueError and what OpenCV raises."""
    with decoding.core():
      header = decoding.check(data, self.max_pixels, self.max_aspect, self.exif)
      with decoding.MEMORY.share(header.memory + 2 * len(data)):
        return self.cut(decoding.Picture(data, header), None)

  def pixels(self, image: np.ndarray) -> np.ndarray:
    """The square of pixels [H, W, 3] or [H, W], uint8; ImageError for others."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
      raise ImageError(
        f"an image of shape {image.shape} and type {image.dtype}; allowed: [H, W, 3] or [H, W] of uint8, RGB 0 to 255"
      )
    if not 0 < image.shape[0] * image.shape[1] <= self.max_pixels:
      raise ImageError(f"an image of shape {image.shape}; allowed: 1 to {self.max_pixels:,} pixels")
    return self.cut(np.stack([image] * 3, axis=-1) if image.ndim == 2 else image, None)
