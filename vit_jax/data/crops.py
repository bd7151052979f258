"""From an image to a square of the wanted size, on the host, in uint8 RGB.

A crop is `(image [H, W, 3], draw) -> [S, S, 3]`; the image may be a `decoding.Picture`, and `draw` is a
`random.Random`, of which `random()` is called, and only for chance. The table's functions take the size S and the
arguments of the config, and return the crop.
"""

from typing import Annotated, Literal

import cv2
import numpy as np
from PIL import Image

from vit_jax.schema import ConfigError, Fraction, Range

# One thread per image: the stream already decodes many at once.
cv2.setNumThreads(1)

Size = Annotated[int, Range(1, 4096)]
Aspect = Annotated[float, Range(1e-3, 1e3)]
Interpolation = Literal["area", "bilinear", "bicubic", "lanczos", "bilinear_aliased", "bicubic_aliased"]
_PILLOW = {  # whose kernels widen where an image shrinks
  "bilinear": Image.Resampling.BILINEAR,
  "bicubic": Image.Resampling.BICUBIC,
  "lanczos": Image.Resampling.LANCZOS,
}
_ALIASED = {"bilinear_aliased": cv2.INTER_LINEAR, "bicubic_aliased": cv2.INTER_CUBIC}

# Bytes that a scaled image may have before it is cut: a square of 224 needs 20 MB for an image of 1:100.
SCALED = 2**28


def scale(image: np.ndarray, height: int, width: int, interpolation: Interpolation = "area") -> np.ndarray:
  """[H, W, C] -> [height, width, C].

  "area" averages pixels where the image shrinks and is bilinear where it grows, as big_vision scales. "bilinear",
  "bicubic" and "lanczos" are Pillow's own, as timm, DeiT and Swin scale. "..._aliased" look at the nearest two or four
  pixels of each axis also where the image shrinks: bilinear as TensorFlow and the published ViTs, bicubic as PyTorch,
  with a = -0.75.
  """
  image = np.asarray(image)
  if (height, width) == image.shape[:2]:
    return image
  if interpolation in _PILLOW:
    return np.array(Image.fromarray(image).resize((width, height), _PILLOW[interpolation]))
  if interpolation in _ALIASED:
    return cv2.resize(image, (width, height), interpolation=_ALIASED[interpolation])
  low = (min(height, image.shape[0]), min(width, image.shape[1]))
  if low != image.shape[:2]:
    image = cv2.resize(image, low[::-1], interpolation=cv2.INTER_AREA)
  if (height, width) != image.shape[:2]:
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
  return image


def small(image: np.ndarray, side: int) -> np.ndarray:
  """A copy of an image whose longer side has so many pixels at most."""
  height, width = image.shape[:2]
  if (share := side / max(height, width)) >= 1:
    return np.array(image)
  return scale(image, max(1, round(height * share)), max(1, round(width * share)))


def inception(
  size: int,
  *,
  area: tuple[Annotated[float, Range(0, 1, open_low=True)], Fraction] = (0.05, 1.0),
  ratio: tuple[Aspect, Aspect] = (3 / 4, 4 / 3),
  interpolation: Literal[Interpolation, "random"] = "bilinear_aliased",
):
  """A random box, squashed to the square: uniform share of the image's area, log-uniform width / height.

  Ten tries to fit the box into the image, then the largest central box of an allowed ratio (Szegedy et al. 2014;
  torchvision's form of the box). The published ViT recipes scale without antialiasing, DeiT with Pillow's "bicubic";
  "random" is timm's: "bilinear" or "bicubic", drawn.
  """
  _ordered("area", area)
  _ordered("ratio", ratio)

  def crop(image, draw):
    top, left, height, width = inception_box(draw, *image.shape[:2], area, ratio)
    box = image[top : top + height, left : left + width]
    kind = interpolation
    if kind == "random":
      kind = "bilinear" if draw.random() < 0.5 else "bicubic"
    return scale(box, size, size, kind)

  return crop


def inception_box(draw, height, width, area, ratio) -> tuple[int, int, int, int]:
  """Top, left, height and width of the box; draws area and ratio until one fits, then top and left."""
  for _ in range(10):
    target = height * width * (area[0] + draw.random() * (area[1] - area[0]))
    aspect = ratio[0] * (ratio[1] / ratio[0]) ** draw.random()
    w, h = round((target * aspect) ** 0.5), round((target / aspect) ** 0.5)
    if 0 < w <= width and 0 < h <= height:
      return int(draw.random() * (height - h + 1)), int(draw.random() * (width - w + 1)), h, w
  aspect = min(max(width / height, ratio[0]), ratio[1])
  w, h = max(min(width, round(height * aspect)), 1), max(min(height, round(width / aspect)), 1)
  return (height - h) // 2, (width - w) // 2, h, w


def resize(size: int, *, interpolation: Interpolation = "area"):
  """The whole image squashed to the square, whatever its shape."""
  return lambda image, draw: scale(image, size, size, interpolation)


def centre(size: int, *, resize: Size | None = None, squash: bool = False, interpolation: Interpolation = "area"):
  """The smaller side scaled to `resize` (S / 0.875 unless given: 256 for 224), then the central square.

  With `squash` both sides are scaled to it, whatever the image's shape, as big_vision's few-shot evaluation does.
  """
  small = resize or round(size / 0.875)
  if small < size:
    raise ConfigError(f"{small} is smaller than image_size {size}; the smaller side must cover the crop", "resize")

  def crop(image, draw):
    image = scale(image, small, small, interpolation) if squash else _small_side(image, small, interpolation)
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return image[top : top + size, left : left + size]

  return crop


def torchvision(
  size: int,
  *,
  ratio: Annotated[float, Range(0.1, 1)] = 0.875,
  interpolation: Interpolation = "bicubic",
):
  """The smaller side scaled to S / `ratio`, cut to a whole number, then the central square.

  As timm, DeiT and Swin measure, with torchvision's rounding, which may differ from that of `centre` by a pixel: of the
  longer side down, and of the margins to the nearest whole number, of two the even one.
  """
  small = int(size / ratio)

  def crop(image, draw):
    image = _small_side(image, small, interpolation, whole=int)
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return image[top : top + size, left : left + size]

  return crop


def random_crop(
  size: int,
  *,
  padding: Annotated[int, Range(0, 4096)] = 4,
  border: Literal["black", "mirrored"] = "black",
  interpolation: Interpolation = "area",
):
  """The smaller side scaled to S, a border of `padding` on all sides, then a square at a uniformly random place.

  The simple random crop of DeiT III (Touvron et al. 2022, section 3.2) has a "mirrored" border and "bicubic".
  """
  mode = {"black": "constant", "mirrored": "reflect"}[border]

  def crop(image, draw):
    image = _small_side(image, size, interpolation)
    image = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode)
    top, left = (int(draw.random() * (side - size + 1)) for side in image.shape[:2])
    return image[top : top + size, left : left + size]

  return crop


def _small_side(image, size, interpolation, whole=round):
  height, width = image.shape[:2]
  small = min(height, width)
  scaled = max(size, whole(height * size / small)), max(size, whole(width * size / small))
  if (needed := 3 * scaled[0] * scaled[1]) > SCALED:
    raise ValueError(
      f"{width:,} x {height:,} pixels, which take {needed >> 20:,} MiB where the smaller side is scaled to {size}; "
      f"allowed: {SCALED >> 20} MiB"
    )
  return scale(image, *scaled, interpolation)


def _ordered(name, pair):
  if pair[0] > pair[1]:
    raise ConfigError(f"{pair} goes from high to low; write (low, high)", name)


TEST_CROPS = {"resize": resize, "centre": centre, "torchvision": torchvision}
CROPS = {"inception": inception, "random_crop": random_crop, **TEST_CROPS}
