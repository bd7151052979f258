"""Generated scenes with masks: 3,000 images of 64x64 pixels, as the TFDS dataset `scenes` 1.0.0 of PNG files.

The dataset is for dense probes without a download. A scene contains one to four objects on a dark, mottled ground. Four
classes differ in their outlines, which cannot be recognised from a patch inside of an object. Three classes differ in
their textures and have random outlines. Colours only distinguish objects from the ground.

A mask contains the class of every pixel, with 0 for the ground. The label of an image is the class with the most
visible pixels. Every scene depends only on its number.
"""

import io
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from vit_jax import rng
from vit_jax.shapes import Bool, Float, UInt8

OUTLINES = ("disc", "square", "triangle", "ring")
TEXTURES = ("stripes", "checks", "dots")
CLASSES = OUTLINES + TEXTURES  # classes of labels; in masks, class 0 is the ground
TRAIN, TEST = 2_500, 500
DESCRIPTION = "One to four things of seven classes on a dark ground, with masks, by a program: 2,500 / 500 of 64x64."
PIXELS = 64
DARK, LIGHT = (20, 100), (130, 235)  # ranges of colours of the ground and of objects


def examples() -> dict[str, Iterator[dict[str, Any]]]:
  """Returns the examples of each split: 2,500 for "train" and 500 for "test".

  An example has the `image` and the `mask`, both PNG files, and the `label`.
  """

  def records(numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
      image, mask = draw_scene(number)
      label = int(np.bincount(mask.ravel(), minlength=len(CLASSES) + 1)[1:].argmax())
      yield {"image": encode_png(image[..., ::-1]), "mask": encode_png(mask), "label": label}

  return {"train": records(range(TRAIN)), "test": records(range(TRAIN, TRAIN + TEST))}


def draw_scene(number: int) -> tuple[UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W"]]:
  """Returns the pixels of a scene and the class of each pixel. Later objects cover earlier ones.

  Args:
    number: number of the scene.
  """
  draws = rng.make_numpy_generator(0, "scenes", number)
  image, mask = draw_texture(draws, DARK), np.zeros((PIXELS, PIXELS), np.uint8)
  for kind in draws.integers(len(CLASSES), size=draws.integers(1, 5)):
    inside, fill = draw_object(CLASSES[kind], draws)
    image[inside], mask[inside] = fill[inside], kind + 1
  image = cv2.GaussianBlur(image, (0, 0), 0.5) + draws.normal(0, 6, image.shape)
  return np.clip(np.rint(image), 0, 255).astype(np.uint8), mask


def draw_object(kind: str, draws: np.random.Generator) -> tuple[Bool[np.ndarray, "H W"], Float[np.ndarray, "H W 3"]]:
  """Returns the pixels that an object covers, and an image of its colours.

  Args:
    kind: name of the class.
    draws: random generator.
  """
  angle, radius = draws.uniform(0, 2 * np.pi), draws.uniform(9, 18)
  across, down = np.meshgrid(np.arange(PIXELS) + 0.5, np.arange(PIXELS) + 0.5)
  x, y = across - draws.uniform(10, PIXELS - 10), down - draws.uniform(10, PIXELS - 10)
  u, v = (
    np.cos(angle) * x + np.sin(angle) * y,
    np.cos(angle) * y - np.sin(angle) * x,
  )  # coordinates in pixels relative to the object
  distance, around = np.hypot(u, v) / radius, np.arctan2(v, u)
  if kind in OUTLINES:
    inside = {
      "disc": distance < 0.9,
      "square": np.maximum(abs(u), abs(v)) < 0.8 * radius,
      "triangle": np.max([u * np.cos(turn) + v * np.sin(turn) for turn in (0, 2.0944, 4.1888)], 0) < 0.55 * radius,
      "ring": (distance < 1) & (distance > 0.5),
    }[kind]
    return inside, draw_texture(draws, LIGHT)
  waves = sum(draws.uniform(0, 0.12) * np.sin(n * around + draws.uniform(0, 2 * np.pi)) for n in (2, 3, 5))
  period = draws.uniform(4, 7)
  wave_u, wave_v = np.sin(2 * np.pi * u / period), np.sin(2 * np.pi * v / period)
  ink = {"stripes": wave_u > 0, "checks": wave_u * wave_v > 0, "dots": wave_u + wave_v > 0.8}[kind]
  return distance < 0.85 + waves, np.where(ink[..., None], draw_texture(draws, LIGHT), draw_texture(draws, DARK))


def draw_texture(draws: np.random.Generator, colours: tuple[int, int]) -> Float[np.ndarray, "H W 3"]:
  """Returns an image of a random colour that changes slowly.

  Args:
    draws: random generator.
    colours: smallest and largest value of the colour.
  """
  slow = draws.uniform(-20, 20, (4, 4, 3)) + draws.uniform(*colours, 3)
  return cv2.resize(slow, (PIXELS, PIXELS), interpolation=cv2.INTER_CUBIC)


def encode_png(pixels: UInt8[np.ndarray, "H W *C"]) -> io.BytesIO:
  """Returns a PNG file. The channel order is BGR if there are three channels."""
  return io.BytesIO(cv2.imencode(".png", np.ascontiguousarray(pixels))[1].tobytes())
