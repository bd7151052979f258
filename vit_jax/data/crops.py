"""Crops: functions from an image to a square of the required size, on the host, in uint8 RGB.

A crop is a function (image, draw) from an image (H, W, 3) to an image (S, S, 3). The image may be a
`decoding.LazyImage`.
`draw` is a `random.Random`. Random crops call its method `random`. Other crops ignore it. The functions in the tables
take the size S and the arguments of the config, and return the crop.
"""

import random
from collections.abc import Callable
from typing import Annotated, Literal

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.decoding import AnyImage
from vit_jax.schema import ConfigError, Fraction, Range

Crop = Callable[[AnyImage, random.Random], np.ndarray]

# One thread per image, because the stream decodes many images in parallel.
cv2.setNumThreads(1)

Size = Annotated[int, Range(1, 4096)]
Aspect = Annotated[float, Range(1e-3, 1e3)]
Interpolation = Literal["area", "bilinear", "bicubic", "lanczos", "bilinear_aliased", "bicubic_aliased"]
_PILLOW = {  # kernels that become wider if the image is reduced
  "bilinear": Image.Resampling.BILINEAR,
  "bicubic": Image.Resampling.BICUBIC,
  "lanczos": Image.Resampling.LANCZOS,
}
_ALIASED = {"bilinear_aliased": cv2.INTER_LINEAR, "bicubic_aliased": cv2.INTER_CUBIC}

# Largest size in bytes of a scaled image before it is cut. A square of 224 pixels needs 20 MB for an image of 1:100.
SCALED = 2**28


def scale(image: AnyImage, height: int, width: int, interpolation: Interpolation = "area") -> np.ndarray:
  """Returns an image scaled to another size.

  Args:
    image: uint8 (H, W, C), or a `decoding.LazyImage`.
    height: height of the result in pixels.
    width: width of the result in pixels.
    interpolation: "area" averages pixels along reduced axes and is bilinear along enlarged ones, as in big_vision.
      "bilinear", "bicubic" and "lanczos" are Pillow's, as in timm, DeiT and Swin. "bilinear_aliased" and
      "bicubic_aliased" use the nearest two or four pixels of each axis, even if the image is reduced. The first
      matches TensorFlow and the published ViTs, the second PyTorch with a = -0.75.

  Returns:
    uint8 (height, width, C).
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


def shrink(image: np.ndarray, side: int) -> np.ndarray:
  """Returns a copy of an image, reduced if necessary.

  Args:
    image: uint8 (H, W, C).
    side: largest length of the longer side of the result, in pixels.
  """
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
) -> Crop:
  """Returns the crop of a random box, which is scaled to the square (Szegedy et al. 2014).

  The share of the image's area is uniform, and the ratio of width and height is log-uniform. If ten drawn boxes do not
  fit into the image, the largest central box with an allowed ratio is used. Boxes are drawn as in torchvision.

  Args:
    size: side S of the result in pixels.
    area: smallest and largest share of the image's area.
    ratio: smallest and largest ratio of width to height.
    interpolation: see `scale`. The published ViT recipes use "bilinear_aliased", DeiT "bicubic". "random" draws
      "bilinear" or "bicubic", as in timm.

  Raises:
    ConfigError: if `area` or `ratio` is not in the order (low, high).
  """
  _check_ordered("area", area)
  _check_ordered("ratio", ratio)

  def crop(image: AnyImage, draw: random.Random) -> np.ndarray:
    top, left, height, width = draw_inception_box(draw, image.shape[0], image.shape[1], area, ratio)
    box = image[top : top + height, left : left + width]
    kind = interpolation
    if kind == "random":
      kind = "bilinear" if draw.random() < 0.5 else "bicubic"
    return scale(box, size, size, kind)

  return crop


def draw_inception_box(
  draw: random.Random, height: int, width: int, area: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
  """Returns (top, left, height, width) of a random box.

  Draws area and ratio until a box fits, then top and left.

  Args:
    draw: a `random.Random`.
    height: height of the image in pixels.
    width: width of the image in pixels.
    area: smallest and largest share of the image's area.
    ratio: smallest and largest ratio of width to height.
  """
  for _ in range(10):
    target = height * width * (area[0] + draw.random() * (area[1] - area[0]))
    aspect = ratio[0] * (ratio[1] / ratio[0]) ** draw.random()
    w, h = round((target * aspect) ** 0.5), round((target / aspect) ** 0.5)
    if 0 < w <= width and 0 < h <= height:
      return int(draw.random() * (height - h + 1)), int(draw.random() * (width - w + 1)), h, w
  aspect = min(max(width / height, ratio[0]), ratio[1])
  w, h = max(min(width, round(height * aspect)), 1), max(min(height, round(width / aspect)), 1)
  return (height - h) // 2, (width - w) // 2, h, w


def resize(size: int, *, interpolation: Interpolation = "area") -> Crop:
  """Returns the crop that scales the whole image to the square. The ratio of width and height is not kept.

  Args:
    size: side S of the result in pixels.
    interpolation: see `scale`.
  """
  return lambda image, draw: scale(image, size, size, interpolation)


def centre(
  size: int, *, resize: Size | None = None, squash: bool = False, interpolation: Interpolation = "area"
) -> Crop:
  """Returns the crop that scales the smaller side and cuts out the central square.

  Args:
    size: side S of the result in pixels.
    resize: length of the smaller side in pixels. Default: S / 0.875, which is 256 for 224.
    squash: whether both sides are scaled to `resize` without keeping their ratio, as in big_vision's few-shot
      evaluation.
    interpolation: see `scale`.

  Raises:
    ConfigError: if `resize` is smaller than S.
  """
  small = resize or round(size / 0.875)
  if small < size:
    raise ConfigError(f"{small} is smaller than image_size {size}; the smaller side must cover the crop", "resize")

  def crop(image: AnyImage, draw: random.Random) -> np.ndarray:
    image = scale(image, small, small, interpolation) if squash else _scale_small_side(image, small, interpolation)
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return image[top : top + size, left : left + size]

  return crop


def torchvision(
  size: int,
  *,
  ratio: Annotated[float, Range(0.1, 1)] = 0.875,
  interpolation: Interpolation = "bicubic",
) -> Crop:
  """Returns the crop that scales the smaller side to S / `ratio`, rounded down, and cuts out the central square.

  timm, DeiT and Swin use it for evaluation. Rounding follows torchvision, so the result may differ from `centre` by a
  pixel. The longer side is rounded down. Margins are rounded to the nearest whole number, or to the even one if two are
  equally near.

  Args:
    size: side S of the result in pixels.
    ratio: S divided by the length of the smaller side.
    interpolation: see `scale`.
  """
  small = int(size / ratio)

  def crop(image: AnyImage, draw: random.Random) -> np.ndarray:
    image = _scale_small_side(image, small, interpolation, to_integer=int)
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return image[top : top + size, left : left + size]

  return crop


def random_crop(
  size: int,
  *,
  padding: Annotated[int, Range(0, 4096)] = 4,
  border: Literal["black", "mirrored"] = "black",
  interpolation: Interpolation = "area",
) -> Crop:
  """Returns the crop that scales the smaller side to S, adds a border, and cuts out a square at a uniform position.

  With border="mirrored" and interpolation="bicubic" it is the simple random crop of DeiT III (Touvron et al. 2022,
  section 3.2).

  Args:
    size: side S of the result in pixels.
    padding: width of the border in pixels.
    border: "black", or "mirrored" pixels of the image.
    interpolation: see `scale`.
  """
  mode: Literal["constant", "reflect"] = "constant" if border == "black" else "reflect"

  def crop(image: AnyImage, draw: random.Random) -> np.ndarray:
    image = _scale_small_side(image, size, interpolation)
    image = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode)
    top, left = (int(draw.random() * (side - size + 1)) for side in image.shape[:2])
    return image[top : top + size, left : left + size]

  return crop


def _scale_small_side(
  image: AnyImage, size: int, interpolation: Interpolation, to_integer: Callable[[float], int] = round
) -> np.ndarray:
  height, width = image.shape[:2]
  small = min(height, width)
  scaled = max(size, to_integer(height * size / small)), max(size, to_integer(width * size / small))
  if (needed := 3 * scaled[0] * scaled[1]) > SCALED:
    raise ValueError(
      f"{width:,} x {height:,} pixels, which need {needed >> 20:,} MiB if the smaller side is scaled to {size}. "
      f"Allowed: {SCALED >> 20} MiB"
    )
  return scale(image, *scaled, interpolation)


def _check_ordered(name: str, pair: tuple[float, float]) -> None:
  if pair[0] > pair[1]:
    raise ConfigError(f"{pair} goes from high to low. Write (low, high)", name)


TEST_CROPS: dict[str, Callable[..., Crop]] = {"resize": resize, "centre": centre, "torchvision": torchvision}
CROPS: dict[str, Callable[..., Crop]] = {"inception": inception, "random_crop": random_crop, **TEST_CROPS}
