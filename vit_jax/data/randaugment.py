"""RandAugment on the host, in two published versions: policies that draw operations on uint8 images.

A policy is a function (image, draw) that returns an image. `draw` is a `random.Random`, and policies call only its
method `random`. Two tables map published names to operations. An operation's argument is a function of the magnitude.
The module `policies` contains the policies by name.
"""

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np

from vit_jax.data import operations
from vit_jax.data.operations import MatrixOf, Policy
from vit_jax.schema import Fraction, NonNegative, Range

T = TypeVar("T")
Argument = Callable[[float, int], Any]  # (magnitude, sign) -> argument of an operation
Apply = Callable[[np.ndarray, Any, tuple[int, int, int], Any], np.ndarray]  # (image, argument, fill, choice)

Level = Annotated[int, Range(0, 255)]


class Operation(NamedTuple):
  """An operation and its argument.

  Attributes:
    argument: function (magnitude, sign) that returns a number or None.
    apply: function (image, argument, fill, choice) that returns an image. `choice` is the interpolation in INCREASING.
      In PUBLISHED it is a position (down, right) in [0, 1), which Cutout requires.
  """

  argument: Argument
  apply: Apply


# Tables of operations.


def _no_argument(magnitude: float, sign: int) -> None:
  return None


def _scale_signed(limit: float) -> Argument:
  """Returns a function that computes the argument sign * magnitude / 10 * limit."""
  return lambda magnitude, sign: sign * (magnitude / 10 * limit)


def _scale_rounded(limit: int) -> Argument:
  """Returns a function that computes the argument magnitude / 10 * limit, rounded down."""
  return lambda magnitude, sign: int(magnitude / 10 * limit)


def _signed_factor(magnitude: float, sign: int) -> float:
  """Returns the factor 1 +- 0.09 magnitude, at least 0.1."""
  return max(0.1, 1 + sign * (magnitude / 10 * 0.9))


def _positive_factor(magnitude: float, sign: int) -> float:
  """Returns the factor 0.1 + 0.18 magnitude, which is 1 at magnitude 5."""
  return magnitude / 10 * 1.8 + 0.1


def _colour_operation(function: Callable[[np.ndarray, Any], np.ndarray]) -> Apply:
  return lambda image, argument, fill, choice: function(image, argument)


def _smooth_operation(matrix: MatrixOf) -> Apply:
  return functools.partial(operations.warp_interpolated, matrix)


def _nearest_operation(matrix: MatrixOf) -> Apply:
  return lambda image, argument, fill, place: operations.warp_nearest(matrix, image, argument, fill)


INCREASING = {  # timm's `inc1`, in the arithmetic of Pillow
  "AutoContrast": Operation(_no_argument, _colour_operation(operations.autocontrast)),
  "Equalize": Operation(_no_argument, _colour_operation(operations.equalize)),
  "Invert": Operation(_no_argument, _colour_operation(operations.invert)),
  "Rotate": Operation(_scale_signed(30), _smooth_operation(operations.rotation)),
  "PosterizeIncreasing": Operation(
    lambda magnitude, sign: 4 - int(magnitude / 10 * 4), _colour_operation(operations.posterize)
  ),
  "SolarizeIncreasing": Operation(
    lambda magnitude, sign: 256 - min(256, int(magnitude / 10 * 256)), _colour_operation(operations.solarize)
  ),
  "SolarizeAdd": Operation(
    lambda magnitude, sign: min(128, int(magnitude / 10 * 110)), _colour_operation(operations.solarize_add)
  ),
  "ColorIncreasing": Operation(_signed_factor, _colour_operation(operations.color)),
  "ContrastIncreasing": Operation(_signed_factor, _colour_operation(operations.contrast)),
  "BrightnessIncreasing": Operation(_signed_factor, _colour_operation(operations.brightness)),
  "SharpnessIncreasing": Operation(_signed_factor, _colour_operation(operations.sharpness)),
  "ShearX": Operation(_scale_signed(0.3), _smooth_operation(operations.shear_x)),
  "ShearY": Operation(_scale_signed(0.3), _smooth_operation(operations.shear_y)),
  "TranslateXRel": Operation(_scale_signed(0.45), _smooth_operation(operations.translation_x_relative)),
  "TranslateYRel": Operation(_scale_signed(0.45), _smooth_operation(operations.translation_y_relative)),
}

# big_vision's `randaug`, from EfficientNet's TPU code, in the arithmetic of TensorFlow; lengths in pixels.
PUBLISHED = {
  "AutoContrast": Operation(
    _no_argument, _colour_operation(lambda image, argument: operations.autocontrast(image, precision=np.float32))
  ),
  "Equalize": Operation(_no_argument, _colour_operation(operations.equalize)),
  "Invert": Operation(_no_argument, _colour_operation(operations.invert)),
  "Rotate": Operation(_scale_signed(30), _nearest_operation(operations.rotation)),
  "Posterize": Operation(_scale_rounded(4), _colour_operation(operations.posterize_wrapped)),
  "Solarize": Operation(_scale_rounded(256), _colour_operation(operations.solarize_wrapped)),
  "Color": Operation(_positive_factor, _colour_operation(operations.color_tensorflow)),
  "Contrast": Operation(_positive_factor, _colour_operation(operations.contrast_published)),
  "Brightness": Operation(_positive_factor, _colour_operation(operations.brightness)),
  "Sharpness": Operation(_positive_factor, _colour_operation(operations.sharpness_tensorflow)),
  "ShearX": Operation(_scale_signed(0.3), _nearest_operation(operations.shear_x)),
  "ShearY": Operation(_scale_signed(0.3), _nearest_operation(operations.shear_y)),
  "TranslateX": Operation(_scale_signed(100), _nearest_operation(operations.translation_x)),
  "TranslateY": Operation(_scale_signed(100), _nearest_operation(operations.translation_y)),
  "Cutout": Operation(_scale_rounded(40), operations.cutout),
  "SolarizeAdd": Operation(_scale_rounded(110), _colour_operation(operations.solarize_add)),
}
MENDED = PUBLISHED | {"Contrast": Operation(_positive_factor, _colour_operation(operations.contrast_corrected))}


# Policies.


def none() -> Policy:
  """Returns a policy that does not change images."""
  return lambda image, draw: image


def randaugment(
  *,
  layers: Annotated[int, Range(0, 100)] = 2,
  magnitude: Annotated[float, Range(0, 30)] = 10.0,
  contrast: Literal["published", "mended"] = "published",
) -> Policy:
  """Returns the policy `randaug(layers, magnitude)` of big_vision, pp/archive/autoaugment.py.

  It applies `layers` operations of PUBLISHED. The operation, its sign and its position are drawn with equal
  probability. Translations and Cutout are in pixels and are designed for about 224 pixels.

  Args:
    layers: number of operations per image.
    magnitude: magnitude of all operations.
    contrast: "published" uses `contrast_published`, including its error. "mended" uses the mean of the image.
  """
  ops = list({"published": PUBLISHED, "mended": MENDED}[contrast].values())

  def plan(draw: random.Random) -> Iterator[tuple[Any, ...]]:
    for _ in range(layers):
      yield choose_one(ops, draw), magnitude, choose_one((-1, 1), draw), (draw.random(), draw.random())

  return _build_policy(plan, (128, 128, 128)) if layers else none()


def randaugment_increasing(
  *,
  layers: Annotated[int, Range(0, 100)] = 2,
  magnitude: Annotated[float, Range(0, 10)] = 9.0,
  magnitude_std: NonNegative = 0.5,
  probability: Fraction = 0.5,
  fill: tuple[Level, Level, Level] = (128, 128, 128),
  interpolation: Literal["random", "bilinear", "bicubic"] = "random",
) -> Policy:
  """Returns the policy `rand-m9-mstd0.5-inc1` of timm, data/auto_augment.py.

  It draws `layers` operations of INCREASING with equal probability. Signs are also drawn.

  Args:
    layers: number of operations per image.
    magnitude: mean of the magnitudes.
    magnitude_std: standard deviation of the magnitudes, which are clipped to 0 to 10.
    probability: probability that an operation is applied.
    fill: colour outside of the image, 0 to 255. Often the mean colour of the dataset.
    interpolation: interpolation of the operations. "random" draws "bilinear" or "bicubic".
  """
  ops = list(INCREASING.values())
  allowed = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)

  def plan(draw: random.Random) -> Iterator[tuple[Any, ...]]:
    for _ in range(layers):
      if draw.random() < probability:
        strength = min(max(magnitude + magnitude_std * draw_normal(draw), 0), 10)
        yield choose_one(ops, draw), strength, choose_one((-1, 1), draw), choose_one(allowed, draw)

  return _build_policy(plan, fill) if layers else none()


def _build_policy(plan: Callable[[random.Random], Iterator[tuple[Any, ...]]], fill: tuple[int, int, int]) -> Policy:
  """Returns the policy that applies each (operation, magnitude, sign, choice) of `plan(draw)`."""

  def policy(image: np.ndarray, draw: random.Random) -> np.ndarray:
    for op, magnitude, sign, choice in plan(draw):
      image = op.apply(image, op.argument(magnitude, sign), fill, choice)
    return image

  return policy


def choose_one(values: Sequence[T], draw: random.Random) -> T:
  """Returns one of the values, with equal probability.

  Args:
    values: sequence of values.
    draw: a `random.Random`.
  """
  return values[int(draw.random() * len(values))]


def draw_normal(draw: random.Random) -> float:
  """Returns a draw from N(0, 1), from two uniform numbers (Box and Muller 1958)."""
  return math.sqrt(-2 * math.log(1 - draw.random())) * math.cos(2 * math.pi * draw.random())
