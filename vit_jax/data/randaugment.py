"""RandAugment on the host, in two published versions: policies that draw operations on uint8 images.

A policy is a function (image, draw) that returns an image. `draw` is a `random.Random`, and policies call only its
method `random`. Two tables map published names to operations. An operation's argument is a function of the magnitude.
The module `policies` contains the policies by name.
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np

from vit_jax.data import operations
from vit_jax.schema import Fraction, NonNegative, Range

Level = Annotated[int, Range(0, 255)]


class Op(NamedTuple):
  """An operation and its argument.

  Attributes:
    argument: function (magnitude, sign) that returns a number or None.
    apply: function (image, argument, fill, choice) that returns an image. `choice` is the interpolation in INCREASING.
      In PUBLISHED it is a position (down, right) in [0, 1), which Cutout requires.
  """

  argument: Callable
  apply: Callable


# Tables of operations.


def _none(magnitude, sign):
  return None


def _signed(limit):
  """Returns a function that computes the argument sign * magnitude / 10 * limit."""
  return lambda magnitude, sign: sign * (magnitude / 10 * limit)


def _whole(limit):
  """Returns a function that computes the argument magnitude / 10 * limit, rounded down."""
  return lambda magnitude, sign: int(magnitude / 10 * limit)


def _away(magnitude, sign):
  """Returns the factor 1 +- 0.09 magnitude, at least 0.1."""
  return max(0.1, 1 + sign * (magnitude / 10 * 0.9))


def _factor(magnitude, sign):
  """Returns the factor 0.1 + 0.18 magnitude, which is 1 at magnitude 5."""
  return magnitude / 10 * 1.8 + 0.1


def _colours(function):
  return lambda image, argument, fill, choice: function(image, argument)


def _smooth(matrix):
  return functools.partial(operations.interpolated, matrix)


def _nearest(matrix):
  return lambda image, argument, fill, place: operations.nearest(matrix, image, argument, fill)


INCREASING = {  # timm's `inc1`, in the arithmetic of Pillow
  "AutoContrast": Op(_none, _colours(operations.autocontrast)),
  "Equalize": Op(_none, _colours(operations.equalize)),
  "Invert": Op(_none, _colours(operations.invert)),
  "Rotate": Op(_signed(30), _smooth(operations.rotation)),
  "PosterizeIncreasing": Op(lambda magnitude, sign: 4 - int(magnitude / 10 * 4), _colours(operations.posterize)),
  "SolarizeIncreasing": Op(
    lambda magnitude, sign: 256 - min(256, int(magnitude / 10 * 256)), _colours(operations.solarize)
  ),
  "SolarizeAdd": Op(lambda magnitude, sign: min(128, int(magnitude / 10 * 110)), _colours(operations.solarize_add)),
  "ColorIncreasing": Op(_away, _colours(operations.color)),
  "ContrastIncreasing": Op(_away, _colours(operations.contrast)),
  "BrightnessIncreasing": Op(_away, _colours(operations.brightness)),
  "SharpnessIncreasing": Op(_away, _colours(operations.sharpness)),
  "ShearX": Op(_signed(0.3), _smooth(operations.shear_x)),
  "ShearY": Op(_signed(0.3), _smooth(operations.shear_y)),
  "TranslateXRel": Op(_signed(0.45), _smooth(operations.translation_x_relative)),
  "TranslateYRel": Op(_signed(0.45), _smooth(operations.translation_y_relative)),
}

# big_vision's `randaug`, from EfficientNet's TPU code, in the arithmetic of TensorFlow; lengths in pixels.
PUBLISHED = {
  "AutoContrast": Op(_none, _colours(lambda image, argument: operations.autocontrast(image, precision=np.float32))),
  "Equalize": Op(_none, _colours(operations.equalize)),
  "Invert": Op(_none, _colours(operations.invert)),
  "Rotate": Op(_signed(30), _nearest(operations.rotation)),
  "Posterize": Op(_whole(4), _colours(operations.posterize_wrapped)),
  "Solarize": Op(_whole(256), _colours(operations.solarize_wrapped)),
  "Color": Op(_factor, _colours(operations.color_tensorflow)),
  "Contrast": Op(_factor, _colours(operations.contrast_published)),
  "Brightness": Op(_factor, _colours(operations.brightness)),
  "Sharpness": Op(_factor, _colours(operations.sharpness_tensorflow)),
  "ShearX": Op(_signed(0.3), _nearest(operations.shear_x)),
  "ShearY": Op(_signed(0.3), _nearest(operations.shear_y)),
  "TranslateX": Op(_signed(100), _nearest(operations.translation_x)),
  "TranslateY": Op(_signed(100), _nearest(operations.translation_y)),
  "Cutout": Op(_whole(40), operations.cutout),
  "SolarizeAdd": Op(_whole(110), _colours(operations.solarize_add)),
}
MENDED = PUBLISHED | {"Contrast": Op(_factor, _colours(operations.contrast_mended))}


# Policies.


def none():
  """Returns a policy that does not change images."""
  return lambda image, draw: image


def randaugment(
  *,
  layers: Annotated[int, Range(0, 100)] = 2,
  magnitude: Annotated[float, Range(0, 30)] = 10.0,
  contrast: Literal["published", "mended"] = "published",
):
  """Returns the policy `randaug(layers, magnitude)` of big_vision, pp/archive/autoaugment.py.

  It applies `layers` operations of PUBLISHED. The operation, its sign and its position are drawn with equal
  probability. Translations and Cutout are in pixels and are designed for about 224 pixels.

  Args:
    layers: number of operations per image.
    magnitude: magnitude of all operations.
    contrast: "published" uses `contrast_published`, including its error. "mended" uses the mean of the image.
  """
  ops = list({"published": PUBLISHED, "mended": MENDED}[contrast].values())

  def plan(draw):
    for _ in range(layers):
      yield one_of(ops, draw), magnitude, one_of((-1, 1), draw), (draw.random(), draw.random())

  return _policy(plan, (128, 128, 128)) if layers else none()


def randaugment_increasing(
  *,
  layers: Annotated[int, Range(0, 100)] = 2,
  magnitude: Annotated[float, Range(0, 10)] = 9.0,
  magnitude_std: NonNegative = 0.5,
  probability: Fraction = 0.5,
  fill: tuple[Level, Level, Level] = (128, 128, 128),
  interpolation: Literal["random", "bilinear", "bicubic"] = "random",
):
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

  def plan(draw):
    for _ in range(layers):
      if draw.random() < probability:
        strength = min(max(magnitude + magnitude_std * normal(draw), 0), 10)
        yield one_of(ops, draw), strength, one_of((-1, 1), draw), one_of(allowed, draw)

  return _policy(plan, fill) if layers else none()


def _policy(plan, fill):
  """Returns the policy that applies each (operation, magnitude, sign, choice) of `plan(draw)`."""

  def policy(image, draw):
    for op, magnitude, sign, choice in plan(draw):
      image = op.apply(image, op.argument(magnitude, sign), fill, choice)
    return image

  return policy


def one_of(values, draw):
  """Returns one of the values, with equal probability.

  Args:
    values: sequence of values.
    draw: a `random.Random`.
  """
  return values[int(draw.random() * len(values))]


def normal(draw):
  """Returns a draw from N(0, 1), from two uniform numbers (Box and Muller 1958)."""
  return math.sqrt(-2 * math.log(1 - draw.random())) * math.cos(2 * math.pi * draw.random())
