"""Generated scenes with masks: 3,000 images of 64x64 pixels, as the TFDS dataset `scenes` 1.0.0 of PNG files.

For dense probes, without a download. One to four things lie on a dark, mottled ground. Four classes are outlines (a
patch from the inside does not tell which), three are textures in a blob of any outline (no outline tells which);
colours only tell things from the ground. A mask has the class of every pixel, 0 the ground; the label of an image is
the thing that most pixels show. Every scene follows from its number alone.
"""

import io
from collections.abc import Iterator

import cv2
import numpy as np

from vit_jax import rng
from vit_jax.shapes import Bool, Float, UInt8

OUTLINES = ("disc", "square", "triangle", "ring")
TEXTURES = ("stripes", "checks", "dots")
CLASSES = OUTLINES + TEXTURES  # of labels; those of masks have the ground in front
TRAIN, TEST = 2_500, 500
DESCRIPTION = "One to four things of seven classes on a dark ground, with masks, by a program: 2,500 / 500 of 64x64."
PIXELS = 64
DARK, LIGHT = (20, 100), (130, 235)  # colours of the ground, and of things


def examples() -> dict[str, Iterator[dict]]:
  """{"train": 2,500, "test": 500} examples: image and mask (PNG files) and label."""

  def records(numbers):
    for number in numbers:
      image, mask = draw(number)
      label = int(np.bincount(mask.ravel(), minlength=len(CLASSES) + 1)[1:].argmax())
      yield {"image": png(image[..., ::-1]), "mask": png(mask), "label": label}

  return {"train": records(range(TRAIN)), "test": records(range(TRAIN, TRAIN + TEST))}


def draw(number: int) -> tuple[UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W"]]:
  """(pixels, the class of each, 0 the ground) of a scene; what comes later lies on top."""
  draws = rng.generator(0, "scenes", number)
  image, mask = mottled(draws, DARK), np.zeros((PIXELS, PIXELS), np.uint8)
  for kind in draws.integers(len(CLASSES), size=draws.integers(1, 5)):
    inside, fill = thing(CLASSES[kind], draws)
    image[inside], mask[inside] = fill[inside], kind + 1
  image = cv2.GaussianBlur(image, (0, 0), 0.5) + draws.normal(0, 6, image.shape)
  return np.clip(np.rint(image), 0, 255).astype(np.uint8), mask


def thing(kind: str, draws: np.random.Generator) -> tuple[Bool[np.ndarray, "H W"], Float[np.ndarray, "H W 3"]]:
  """(which pixels a thing covers, how all of them would look)."""
  angle, radius = draws.uniform(0, 2 * np.pi), draws.uniform(9, 18)
  across, down = np.meshgrid(np.arange(PIXELS) + 0.5, np.arange(PIXELS) + 0.5)
  x, y = across - draws.uniform(10, PIXELS - 10), down - draws.uniform(10, PIXELS - 10)
  u, v = (
    np.cos(angle) * x + np.sin(angle) * y,
    np.cos(angle) * y - np.sin(angle) * x,
  )  # pixels, in the thing's own frame
  distance, around = np.hypot(u, v) / radius, np.arctan2(v, u)
  if kind in OUTLINES:
    inside = {
      "disc": distance < 0.9,
      "square": np.maximum(abs(u), abs(v)) < 0.8 * radius,
      "triangle": np.max([u * np.cos(turn) + v * np.sin(turn) for turn in (0, 2.0944, 4.1888)], 0) < 0.55 * radius,
      "ring": (distance < 1) & (distance > 0.5),
    }[kind]
    return inside, mottled(draws, LIGHT)
  waves = sum(draws.uniform(0, 0.12) * np.sin(n * around + draws.uniform(0, 2 * np.pi)) for n in (2, 3, 5))
  period = draws.uniform(4, 7)
  wave_u, wave_v = np.sin(2 * np.pi * u / period), np.sin(2 * np.pi * v / period)
  ink = {"stripes": wave_u > 0, "checks": wave_u * wave_v > 0, "dots": wave_u + wave_v > 0.8}[kind]
  return distance < 0.85 + waves, np.where(ink[..., None], mottled(draws, LIGHT), mottled(draws, DARK))


def mottled(draws: np.random.Generator, colours: tuple[int, int]) -> Float[np.ndarray, "H W 3"]:
  """A random colour that changes slowly."""
  slow = draws.uniform(-20, 20, (4, 4, 3)) + draws.uniform(*colours, 3)
  return cv2.resize(slow, (PIXELS, PIXELS), interpolation=cv2.INTER_CUBIC)


def png(pixels: UInt8[np.ndarray, "H W *C"]) -> io.BytesIO:
  """A PNG file; of three channels blue comes first."""
  return io.BytesIO(cv2.imencode(".png", np.ascontiguousarray(pixels))[1].tobytes())
