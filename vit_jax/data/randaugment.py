"""RandAugment on the host, as two codes define it: policies that draw operations on uint8 images.

A policy is `(image, draw) -> image`; `draw` is a `random.Random`, of which only `random()` is called. Each of the two
tables of operations maps a published name to the argument that follows from the magnitude, and to the
operation. Policies by name are in `policies`.
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
  """An operation: `argument(magnitude, sign)`, a number or None, and `apply(image, argument, fill, choice) -> image`.

  `choice` is the interpolation in INCREASING, and in PUBLISHED a place (down, right) in [0, 1), which Cutout needs.
  """

  argument: Callable
  apply: Callable


# The tables.


def _none(magnitude, sign):
  return None


def _signed(limit):
  """+-limit at magnitude 10, linear."""
  return lambda magnitude, sign: sign * (magnitude / 10 * limit)


def _whole(limit):
  """The limit at magnitude 10, linear, cut to a whole number."""
  return lambda magnitude, sign: int(magnitude / 10 * limit)


def _away(magnitude, sign):
  """Factor 1 +- 0.09 M, at least 0.1."""
  return max(0.1, 1 + sign * (magnitude / 10 * 0.9))


def _factor(magnitude, sign):
  """Factor 0.1 + 0.18 M: 1 at M = 5, less below."""
  return magnitude / 10 * 1.8 + 0.1


def _colours(function):
  return lambda image, argument, fill, choice: function(image, argument)


def _smooth(matrix):
  return functools.partial(operations.interpolated, matrix)


def _nearest(matrix):
  return lambda image, argument, fill, place: operations.nearest(matrix, image, argument, fill)


INCREASING = {  # timm's `inc1`, in Pillow's arithmetic
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

PUBLISHED = {  # big_vision's `randaug`, from EfficientNet's TPU code, in TensorFlow's arithmetic; lengths in pixels
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


# The policies.


def none():
  """Images as they are."""
  return lambda image, draw: image


def randaugment(
  *,
  layers: Annotated[int, Range(0, 100)] = 2,
  magnitude: Annotated[float, Range(0, 30)] = 10.0,
  contrast: Literal["published", "mended"] = "published",
):
  """`layers` times one of the 16 operations of PUBLISHED, at one magnitude: big_vision's `randaug(layers, magnitude)`.

  Draws the operation, its sign and a place with equal chances. "mended" takes the mean where `contrast_published` errs.
  Translations and Cutout are in pixels and meant for about 224 px. Source: big_vision, pp/archive/autoaugment.py.
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
  """`layers` times one of the 15 operations of INCREASING, with `probability`: timm's `rand-m9-mstd0.5-inc1`.

  Each has its own magnitude from N(magnitude, magnitude_std), clipped to 0..10, its sign, and with "random" its
  interpolation. `fill` is often the mean colour of the dataset, times 255. Source: timm, data/auto_augment.py.
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
  """The policy that applies each (operation, magnitude, sign, choice) of `plan(draw)`."""

  def policy(image, draw):
    for op, magnitude, sign, choice in plan(draw):
      image = op.apply(image, op.argument(magnitude, sign), fill, choice)
    return image

  return policy


def one_of(values, draw):
  """One of the values, with equal chances."""
  return values[int(draw.random() * len(values))]


def normal(draw):
  """From N(0, 1), by two uniform numbers (Box and Muller 1958)."""
  return math.sqrt(-2 * math.log(1 - draw.random())) * math.cos(2 * math.pi * draw.random())
