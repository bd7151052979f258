"""AutoAugment on the host (Cubuk et al. 2019): one of 25 published pairs of operations for each image.

The operations use the arithmetic of Pillow, like implementations in PyTorch.
"""

import random
from typing import Literal

import numpy as np

from vit_jax.data.operations import Policy
from vit_jax.data.randaugment import INCREASING, PUBLISHED, Level, Operation, choose_one, draw_normal
from vit_jax.schema import NonNegative

# Tables of operations by name, with the argument for a magnitude and the operation.


def _published_operation(published: str, name: str) -> Operation:
  """Returns an operation with the original argument, which big_vision uses, and the arithmetic of Pillow."""
  return Operation(PUBLISHED[published].argument, INCREASING[name].apply)


def _rescaled_operation(name: str) -> Operation:
  """Returns an operation with magnitudes up to 9 instead of 10."""
  return Operation(lambda magnitude, sign: INCREASING[name].argument(magnitude / 0.9, sign), INCREASING[name].apply)


TIMM = INCREASING | {  # magnitudes from 0 to 10
  "Posterize": _published_operation("Posterize", "PosterizeIncreasing"),
  "Solarize": _published_operation("Solarize", "SolarizeIncreasing"),
  **{
    name: _published_operation(name, f"{name}Increasing") for name in ("Color", "Contrast", "Brightness", "Sharpness")
  },
}
ORIGINAL = TIMM | {  # 4 to 8 bits, as in the paper
  "Posterize": Operation(lambda magnitude, sign: int(magnitude / 10 * 4) + 4, INCREASING["PosterizeIncreasing"].apply)
}
TEN = {  # ten magnitudes from 0 to 9
  **{name: _rescaled_operation(name) for name in ("Rotate", "ShearX", "ShearY", "AutoContrast", "Equalize", "Invert")},
  **{name: _rescaled_operation(f"{name}Increasing") for name in ("Color", "Contrast", "Brightness", "Sharpness")},
  **{
    name: Operation(lambda magnitude, sign: sign * magnitude / 9 * 150 / 331, INCREASING[name].apply)
    for name in ("TranslateXRel", "TranslateYRel")
  },
  "Posterize": Operation(lambda magnitude, sign: round(8 - magnitude / 9 * 4), INCREASING["PosterizeIncreasing"].apply),
  "Solarize": Operation(lambda magnitude, sign: 256 - magnitude / 9 * 256, INCREASING["SolarizeIncreasing"].apply),
}

# Pairs of operations, each with its probability and magnitude.

IMAGENET = (
  (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
  (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
  (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
  (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
  (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
  (("Equalize", 0.4, 4), ("Rotate", 0.8, 8)),
  (("Solarize", 0.6, 3), ("Equalize", 0.6, 7)),
  (("Posterize", 0.8, 5), ("Equalize", 1, 2)),
  (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
  (("Equalize", 0.6, 8), ("Posterize", 0.4, 6)),
  (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
  (("Rotate", 0.4, 9), ("Equalize", 0.6, 2)),
  (("Equalize", 0, 7), ("Equalize", 0.8, 8)),
  (("Invert", 0.6, 4), ("Equalize", 1, 8)),
  (("Color", 0.6, 4), ("Contrast", 1, 8)),
  (("Rotate", 0.8, 8), ("Color", 1, 2)),
  (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
  (("Sharpness", 0.4, 7), ("Invert", 0.6, 8)),
  (("ShearX", 0.6, 5), ("Equalize", 1, 9)),
  (("Color", 0.4, 0), ("Equalize", 0.6, 3)),
  (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
  (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
  (("Invert", 0.6, 4), ("Equalize", 1, 8)),
  (("Color", 0.6, 4), ("Contrast", 1, 8)),
  (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
)
IMAGENET_V0 = (
  (("Equalize", 0.8, 1), ("ShearY", 0.8, 4)),
  (("Color", 0.4, 9), ("Equalize", 0.6, 3)),
  (("Color", 0.4, 1), ("Rotate", 0.6, 8)),
  (("Solarize", 0.8, 3), ("Equalize", 0.4, 7)),
  (("Solarize", 0.4, 2), ("Solarize", 0.6, 2)),
  (("Color", 0.2, 0), ("Equalize", 0.8, 8)),
  (("Equalize", 0.4, 8), ("SolarizeAdd", 0.8, 3)),
  (("ShearX", 0.2, 9), ("Rotate", 0.6, 8)),
  (("Color", 0.6, 1), ("Equalize", 1, 2)),
  (("Invert", 0.4, 9), ("Rotate", 0.6, 0)),
  (("Equalize", 1, 9), ("ShearY", 0.6, 3)),
  (("Color", 0.4, 7), ("Equalize", 0.6, 0)),
  (("Posterize", 0.4, 6), ("AutoContrast", 0.4, 7)),
  (("Solarize", 0.6, 8), ("Color", 0.6, 9)),
  (("Solarize", 0.2, 4), ("Rotate", 0.8, 9)),
  (("Rotate", 1, 7), ("TranslateYRel", 0.8, 9)),
  (("ShearX", 0, 0), ("Solarize", 0.8, 4)),
  (("ShearY", 0.8, 0), ("Color", 0.6, 4)),
  (("Color", 1, 0), ("Rotate", 0.6, 2)),
  (("Equalize", 0.8, 4), ("Equalize", 0, 8)),
  (("Equalize", 1, 4), ("AutoContrast", 0.6, 2)),
  (("ShearY", 0.4, 7), ("SolarizeAdd", 0.6, 7)),
  (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
  (("Solarize", 0.6, 8), ("Equalize", 0.6, 1)),
  (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
)
CIFAR10 = (
  (("Invert", 0.1, 7), ("Contrast", 0.2, 6)),
  (("Rotate", 0.7, 2), ("TranslateXRel", 0.3, 9)),
  (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
  (("ShearY", 0.5, 8), ("TranslateYRel", 0.7, 9)),
  (("AutoContrast", 0.5, 8), ("Equalize", 0.9, 2)),
  (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
  (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
  (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
  (("Equalize", 0.6, 5), ("Equalize", 0.5, 1)),
  (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
  (("Color", 0.7, 7), ("TranslateXRel", 0.5, 8)),
  (("Equalize", 0.3, 7), ("AutoContrast", 0.4, 8)),
  (("TranslateYRel", 0.4, 3), ("Sharpness", 0.2, 6)),
  (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
  (("Solarize", 0.5, 2), ("Invert", 0, 3)),
  (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
  (("Equalize", 0.2, 8), ("Equalize", 0.6, 4)),
  (("Color", 0.9, 9), ("Equalize", 0.6, 6)),
  (("AutoContrast", 0.8, 4), ("Solarize", 0.2, 8)),
  (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
  (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 3)),
  (("TranslateYRel", 0.9, 9), ("TranslateYRel", 0.7, 9)),
  (("AutoContrast", 0.9, 2), ("Solarize", 0.8, 3)),
  (("Equalize", 0.8, 8), ("Invert", 0.1, 3)),
  (("TranslateYRel", 0.7, 9), ("AutoContrast", 0.9, 1)),
)

PAIRS = {"imagenet": (IMAGENET, ORIGINAL, 10), "imagenet_v0": (IMAGENET_V0, TIMM, 10), "cifar10": (CIFAR10, TEN, 9)}


def autoaugment(
  *,
  pairs: Literal["imagenet", "imagenet_v0", "cifar10"] = "imagenet",
  magnitude_std: NonNegative = 0.0,
  fill: tuple[Level, Level, Level] = (128, 128, 128),
  interpolation: Literal["random", "bilinear", "bicubic"] = "random",
) -> Policy:
  """Returns the policy that applies one of 25 pairs of operations.

  Each operation has its own probability and magnitude. Signs are drawn with equal probability.

  Args:
    pairs: "imagenet": pairs of the paper, timm's `original`. "imagenet_v0": pairs of EfficientNet's TPU code, timm's
      `v0`. "cifar10": pairs of the paper in the version of DeepVoltaire, which Compact-Transformers used, but with
      interpolated rotations.
    magnitude_std: standard deviation of the magnitudes, which are clipped to the scale. 0: fixed magnitudes.
    fill: colour outside of the image, 0 to 255. Often the mean colour of the dataset.
    interpolation: interpolation of the operations. "random" draws "bilinear" or "bicubic".
  """
  rows, ops, highest = PAIRS[pairs]
  allowed = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)

  def policy(image: np.ndarray, draw: random.Random) -> np.ndarray:
    for name, probability, magnitude in choose_one(rows, draw):
      if draw.random() < probability:
        strength: float = magnitude
        if magnitude_std:
          strength = min(max(magnitude + magnitude_std * draw_normal(draw), 0), highest)
        argument = ops[name].argument(strength, choose_one((-1, 1), draw))
        image = ops[name].apply(image, argument, fill, choose_one(allowed, draw))
    return image

  return policy
