"""Policies that change colours on the host, in the arithmetic of Pillow: colour jitter, 3-Augment and DINO.

A policy is a function (image, draw) that returns an image, uint8 (H, W, 3). `draw` is a `random.Random`, and policies
call only its method `random`.
"""

import random
from collections.abc import Callable
from typing import Annotated

import cv2
import numpy as np
from PIL import Image, ImageFilter

from vit_jax.data import operations
from vit_jax.data.operations import Policy
from vit_jax.data.randaugment import choose_one
from vit_jax.schema import ConfigError, Fraction, NonNegative, Range

HueTurn = Annotated[float, Range(0, 0.5)]
Radius = Annotated[float, Range(0, 100)]


def to_gray(image: np.ndarray) -> np.ndarray:
  """Returns an image with Pillow's luma in all channels."""
  return cv2.merge([operations.gray_pillow(image)] * 3)


def gaussian_blur(image: np.ndarray, radius: float) -> np.ndarray:
  """Blurs an image with Pillow, which approximates a Gaussian by three successive box filters.

  Args:
    image: the image.
    radius: standard deviation of the Gaussian in pixels.
  """
  return np.array(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)))


def rotate_hues(image: np.ndarray, turn: float) -> np.ndarray:
  """Rotates the hues of an image in Pillow's HSV with 256 hues.

  Args:
    image: the image.
    turn: share of the colour circle, which is truncated to a whole number of hues.
  """
  hues, saturation, value = Image.fromarray(image).convert("HSV").split()
  turned = np.asarray(hues) + np.uint8(int(turn * 255) % 256)  # the sum is modulo 256
  return np.array(Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB"))


def colour_jitter(
  *,
  brightness: NonNegative = 0.4,
  contrast: NonNegative = 0.4,
  saturation: NonNegative = 0.4,
  hue: HueTurn = 0.0,
) -> Policy:
  """Returns the policy that changes brightness, contrast, saturation and hue in a random order.

  The result equals that of torchvision's ColorJitter, which timm and DeiT use. A value of 0 disables a change.

  Args:
    brightness: x. The factor is uniform from max(0, 1 - x) to 1 + x.
    contrast: x. The factor is uniform from max(0, 1 - x) to 1 + x.
    saturation: x. The factor is uniform from max(0, 1 - x) to 1 + x.
    hue: largest rotation in either direction, as a share of the colour circle.
  """
  factors = (operations.brightness, brightness), (operations.contrast, contrast), (operations.color, saturation)
  changes: list[tuple[Callable[[np.ndarray, float], np.ndarray], float, float]] = [
    (change, max(0.0, 1 - amount), 1 + amount) for change, amount in factors if amount
  ]
  if hue:
    changes.append((rotate_hues, -hue, hue))

  def policy(image: np.ndarray, draw: random.Random) -> np.ndarray:
    for change, low, high in sorted(changes, key=lambda _: draw.random()):
      image = change(image, low + draw.random() * (high - low))
    return image

  return policy


def three_augment(*, blur: tuple[Radius, Radius] = (0.1, 2.0), jitter: NonNegative = 0.3) -> Policy:
  """Returns the policy 3-Augment of DeiT III (Touvron et al. 2022, section 3.2, and its augment.py).

  Each image is converted to gray, solarized with threshold 128, or blurred. Colour jitter follows.

  Args:
    blur: smallest and largest radius of the blur in pixels. Radii are uniform.
    jitter: strength of the jitter of brightness, contrast and saturation, see `colour_jitter`.

  Raises:
    ConfigError: if `blur` is not in the order (low, high).
  """
  if blur[0] > blur[1]:
    raise ConfigError(f"{blur} goes from high to low. Write (low, high)", "blur")
  after = colour_jitter(brightness=jitter, contrast=jitter, saturation=jitter)
  kinds = (
    lambda image, draw: to_gray(image),
    lambda image, draw: operations.solarize(image, 128),
    lambda image, draw: gaussian_blur(image, blur[0] + draw.random() * (blur[1] - blur[0])),
  )
  return lambda image, draw: after(choose_one(kinds, draw)(image, draw), draw)


def dino(
  *,
  jitter: Fraction = 0.8,
  brightness: NonNegative = 0.4,
  contrast: NonNegative = 0.4,
  saturation: NonNegative = 0.2,
  hue: HueTurn = 0.1,
  gray: Fraction = 0.2,
  blur: Fraction = 0.5,
  radius: tuple[Radius, Radius] = (0.1, 2.0),
  solarize: Fraction = 0.0,
) -> Policy:
  """Returns the policy of DINO (Caron et al. 2021), iBOT and DINOv2: colour jitter, gray, blur, then solarization.

  Each change happens with its own probability. DINOv2 blurs with a kernel of 9 pixels. Here the blur is Pillow's, as in
  DINO and iBOT.

  Args:
    jitter: probability of colour jitter, see `colour_jitter`.
    brightness: strength of the jitter of brightness, see `colour_jitter`.
    contrast: strength of the jitter of contrast.
    saturation: strength of the jitter of saturation.
    hue: largest rotation of hues in either direction, as a share of the colour circle.
    gray: probability of conversion to gray.
    blur: probability of the blur.
    radius: smallest and largest radius of the blur in pixels. Radii are uniform.
    solarize: probability of solarization with threshold 128.

  Raises:
    ConfigError: if `radius` is not in the order (low, high).
  """
  if radius[0] > radius[1]:
    raise ConfigError(f"{radius} goes from high to low. Write (low, high)", "radius")
  change_colours = colour_jitter(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)

  def policy(image: np.ndarray, draw: random.Random) -> np.ndarray:
    if draw.random() < jitter:
      image = change_colours(image, draw)
    if draw.random() < gray:
      image = to_gray(image)
    if draw.random() < blur:
      image = gaussian_blur(image, radius[0] + draw.random() * (radius[1] - radius[0]))
    return operations.solarize(image, 128) if draw.random() < solarize else image

  return policy
