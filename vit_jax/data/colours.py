"""Policies of colours on the host, in Pillow's arithmetic: colour jitter, and the 3-Augment of DeiT III.

A policy is `(image [H, W, 3] uint8, draw) -> image`; `draw` is a `random.Random`, of which only `random()` is called.
"""

from typing import Annotated

import cv2
import numpy as np
from PIL import Image, ImageFilter

from vit_jax.data import operations
from vit_jax.data.randaugment import one_of
from vit_jax.schema import ConfigError, NonNegative, Range

Turn = Annotated[float, Range(0, 0.5)]
Radius = Annotated[float, Range(0, 100)]


def gray(image):
  """All channels Pillow's luma."""
  return cv2.merge([operations.gray_pillow(image)] * 3)


def gaussian_blur(image, radius):
  """Pillow's, whose Gaussian of a standard deviation of `radius` pixels is three boxes, one after the other."""
  return np.array(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)))


def turned(image, turn):
  """Turns the hues by a share of the circle, in Pillow's HSV of 256 hues; the share is cut to one of them."""
  hues, saturation, value = Image.fromarray(image).convert("HSV").split()
  hues = np.asarray(hues) + np.uint8(int(turn * 255) % 256)  # modulo 256
  return np.array(Image.merge("HSV", (Image.fromarray(hues), saturation, value)).convert("RGB"))


def colour_jitter(
  *,
  brightness: NonNegative = 0.4,
  contrast: NonNegative = 0.4,
  saturation: NonNegative = 0.4,
  hue: Turn = 0.0,
):
  """Brightness, contrast, saturation and hue in a random order: torchvision's ColorJitter, as timm and DeiT use it.

  The first three are multiplied by factors from max(0, 1 - x) to 1 + x, uniform; hues turn by up to `hue` of the
  circle, either way. What is 0 is left out.
  """
  factors = (operations.brightness, brightness), (operations.contrast, contrast), (operations.color, saturation)
  changes = [(change, max(0.0, 1 - amount), 1 + amount) for change, amount in factors if amount]
  if hue:
    changes.append((turned, -hue, hue))

  def policy(image, draw):
    for change, low, high in sorted(changes, key=lambda _: draw.random()):
      image = change(image, low + draw.random() * (high - low))
    return image

  return policy


def three_augment(*, blur: tuple[Radius, Radius] = (0.1, 2.0), jitter: NonNegative = 0.3):
  """Gray, solarised from 128 on or blurred, one of the three for each image; then a colour jitter.

  Radii of the blur are uniform in `blur`, in pixels; `jitter` is that of brightness, contrast and saturation. Source:
  DeiT III (Touvron et al. 2022, section 3.2), as its augment.py has it.
  """
  if blur[0] > blur[1]:
    raise ConfigError(f"{blur} goes from high to low; write (low, high)", "blur")
  after = colour_jitter(brightness=jitter, contrast=jitter, saturation=jitter)
  kinds = (
    lambda image, draw: gray(image),
    lambda image, draw: operations.solarize(image, 128),
    lambda image, draw: gaussian_blur(image, blur[0] + draw.random() * (blur[1] - blur[0])),
  )
  return lambda image, draw: after(one_of(kinds, draw)(image, draw), draw)
