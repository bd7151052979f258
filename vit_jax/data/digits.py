"""The handwritten digits of scikit-learn, 1,797 real 8x8 images, as the TFDS dataset `digits` 1.0.0.

The images are 32x32 PNG files.
"""

import io
from typing import Any

import cv2
import numpy as np

from vit_jax import rng

CLASSES = tuple("0123456789")
TRAIN = 1437
DESCRIPTION = "scikit-learn's digits: 8x8 images, scaled to 32x32 (bicubic), 1437 / 360 by a seeded permutation."
PIXELS = 32


def examples() -> dict[str, list[dict[str, Any]]]:
  """Returns the examples of each split: 1,437 for "train" and 360 for "test".

  An example contains an `image` (a PNG file) and a `label`. The order is a seeded permutation.
  """
  from sklearn import datasets

  digits = datasets.load_digits()
  order = rng.make_numpy_generator(0, "digits").permutation(len(digits.target))
  records = [{"image": io.BytesIO(encode_png(digits.images[i])), "label": int(digits.target[i])} for i in order]
  return {"train": records[:TRAIN], "test": records[TRAIN:]}


def encode_png(ink: np.ndarray) -> bytes:
  """Returns an image of 32x32 pixels as a PNG file with three equal channels from 0 to 255.

  The image is scaled with bicubic interpolation and clipped.

  Args:
    ink: darkness of each pixel from 0 to 16, (8, 8).
  """
  large = cv2.resize(ink.astype(np.float32) * (255 / 16), (32, 32), interpolation=cv2.INTER_CUBIC)
  image = cv2.cvtColor(np.clip(np.rint(large), 0, 255).astype(np.uint8), cv2.COLOR_GRAY2BGR)
  return cv2.imencode(".png", image)[1].tobytes()
