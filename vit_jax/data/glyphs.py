"""Generated handwriting: 22,000 images of 200 invented signs, as the TFDS dataset `glyphs` 1.0.0 of 32x32 PNG files.

The dataset is for pre-training without a download. A class consists of one to three curved strokes. Its images vary
like handwriting: control points are moved, rotated, scaled and sheared, and pens have several widths. Every image
depends only on its number.
"""

import io
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from vit_jax import rng
from vit_jax.shapes import Float, UInt8

CLASSES = tuple(f"sign{number:03d}" for number in range(200))
TRAIN, TEST = 20_000, 2_000
DESCRIPTION = "200 invented signs of one to three strokes, drawn by a program: 20,000 / 2,000 of 32x32 pixels."
PIXELS, DRAWN = 32, 64  # side of an image, and of the canvas that it is drawn on
_SHAKE = 0.07  # standard deviation of control points, in half sides of an image
_STEPS = np.linspace(0, 1, 24)[:, None]


def examples() -> dict[str, Iterator[dict[str, Any]]]:
  """Returns the examples of each split: 20,000 for "train" and 2,000 for "test".

  An example contains an `image` (a PNG file) and a `label`. Classes alternate.
  """
  strokes = [class_strokes(label) for label in range(len(CLASSES))]

  def records(numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
      label = number % len(CLASSES)
      yield {"image": io.BytesIO(encode_png(draw_glyph(strokes[label], number))), "label": label}

  return {"train": records(range(TRAIN)), "test": records(range(TRAIN, TRAIN + TEST))}


def class_strokes(label: int) -> Float[np.ndarray, "S 4 2"]:
  """Returns the strokes of a class: control points (x, y) of cubic Bezier curves, with coordinates in [-1, 1]."""
  draws = rng.make_numpy_generator(0, "glyphs of a class", label)
  ends = draws.uniform(-0.9, 0.9, (draws.integers(1, 4), 2, 2))
  bends = draws.uniform(-1.2, 1.2, (len(ends), 2, 2))
  return np.stack([ends[:, 0], bends[:, 0], bends[:, 1], ends[:, 1]], axis=1)


def sample_curve(points: Float[np.ndarray, "4 2"]) -> Float[np.ndarray, "T 2"]:
  """Returns points along a cubic Bezier curve."""
  t = _STEPS
  weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
  return sum(weight * point for weight, point in zip(weights, points, strict=True))


def draw_glyph(strokes: Float[np.ndarray, "S 4 2"], number: int) -> UInt8[np.ndarray, "H W"]:
  """Draws image number `number`. Returns the ink of each pixel, from 0 to 255.

  Args:
    strokes: control points of the strokes of its class.
    number: number of the image.
  """
  draws = rng.make_numpy_generator(0, "glyphs", number)
  angle, shear = draws.uniform(-0.3, 0.3, 2)
  scale = draws.uniform(0.6, 0.95, 2)
  turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
  frame = turn @ np.array([[scale[0], shear * scale[1]], [0, scale[1]]])
  shift = draws.uniform(-0.12, 0.12, 2)
  width, ink = int(draws.integers(3, 8)), int(draws.integers(160, 256))
  canvas = np.zeros((DRAWN, DRAWN), np.uint8)
  for points in strokes + draws.normal(0, _SHAKE, strokes.shape):
    line = (sample_curve(points) @ frame.T + shift + 1) * (DRAWN / 2)
    cv2.polylines(canvas, [np.rint(line).astype(np.int32)], False, ink, width, cv2.LINE_AA)
  soft = cv2.GaussianBlur(canvas, (0, 0), draws.uniform(0.8, 3.0))  # like a scan, which is not sharp
  return cv2.resize(soft, (PIXELS, PIXELS), interpolation=cv2.INTER_AREA)


def encode_png(ink: UInt8[np.ndarray, "H W"]) -> bytes:
  """Returns a PNG file with three equal channels."""
  return cv2.imencode(".png", cv2.cvtColor(ink, cv2.COLOR_GRAY2BGR))[1].tobytes()
