"""Generated handwriting: 22,000 images of 200 invented signs, as the TFDS dataset `glyphs` 1.0.0 of 32x32 PNG files.

A corpus to pre-train on that needs no download. A class is one to three curved strokes; its images are drawn by
unsteady hands: control points shaken, turned, scaled and sheared, with pens of several widths. Every image follows from
its number alone.
"""

import io
from collections.abc import Iterator

import cv2
import numpy as np

from vit_jax import rng
from vit_jax.shapes import Float, UInt8

CLASSES = tuple(f"sign{number:03d}" for number in range(200))
TRAIN, TEST = 20_000, 2_000
DESCRIPTION = "200 invented signs of one to three strokes, drawn by a program: 20,000 / 2,000 of 32x32 pixels."
PIXELS, DRAWN = 32, 64  # the side of an image, and of what it is drawn on
_SHAKE = 0.07  # standard deviation of control points, in half sides of an image
_STEPS = np.linspace(0, 1, 24)[:, None]


def examples() -> dict[str, Iterator[dict]]:
  """{"train": 20,000, "test": 2,000} examples, image (a PNG file) and label; classes take turns."""
  strokes = [sign(label) for label in range(len(CLASSES))]

  def records(numbers):
    for number in numbers:
      label = number % len(CLASSES)
      yield {"image": io.BytesIO(png(draw(strokes[label], number))), "label": label}

  return {"train": records(range(TRAIN)), "test": records(range(TRAIN, TRAIN + TEST))}


def sign(label: int) -> Float[np.ndarray, "S 4 2"]:
  """Control points (x, y) in [-1, 1] of the strokes of a class, cubic Bezier curves."""
  draws = rng.generator(0, "glyphs of a class", label)
  ends = draws.uniform(-0.9, 0.9, (draws.integers(1, 4), 2, 2))
  bends = draws.uniform(-1.2, 1.2, (len(ends), 2, 2))
  return np.stack([ends[:, 0], bends[:, 0], bends[:, 1], ends[:, 1]], axis=1)


def curve(points: Float[np.ndarray, "4 2"]) -> Float[np.ndarray, "T 2"]:
  """Points along a cubic Bezier curve."""
  t = _STEPS
  weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
  return sum(weight * point for weight, point in zip(weights, points, strict=True))


def draw(strokes: Float[np.ndarray, "S 4 2"], number: int) -> UInt8[np.ndarray, "H W"]:
  """Image `number`, which is one of the sign with these strokes: ink of 0 to 255."""
  draws = rng.generator(0, "glyphs", number)
  angle, shear = draws.uniform(-0.3, 0.3, 2)
  scale = draws.uniform(0.6, 0.95, 2)
  turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
  frame = turn @ np.array([[scale[0], shear * scale[1]], [0, scale[1]]])
  shift = draws.uniform(-0.12, 0.12, 2)
  width, ink = int(draws.integers(3, 8)), int(draws.integers(160, 256))
  canvas = np.zeros((DRAWN, DRAWN), np.uint8)
  for points in strokes + draws.normal(0, _SHAKE, strokes.shape):
    line = (curve(points) @ frame.T + shift + 1) * (DRAWN / 2)
    cv2.polylines(canvas, [np.rint(line).astype(np.int32)], False, ink, width, cv2.LINE_AA)
  soft = cv2.GaussianBlur(canvas, (0, 0), draws.uniform(0.8, 3.0))  # scans are not sharp
  return cv2.resize(soft, (PIXELS, PIXELS), interpolation=cv2.INTER_AREA)


def png(ink: UInt8[np.ndarray, "H W"]) -> bytes:
  """A PNG file whose three channels are alike."""
  return cv2.imencode(".png", cv2.cvtColor(ink, cv2.COLOR_GRAY2BGR))[1].tobytes()
