"""Image files to make sources of, and all that a source has."""

import io

import numpy as np
from PIL import Image


def image(seed=0):
  file = io.BytesIO()
  Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)).save(file, "PNG")
  return file.getvalue()


def numbers(source):
  return [source.read(i) for i in range(len(source))]


def labels(source):
  return [source.label(i) for i in range(len(source))]


def names(source):
  return [source.identify(i) for i in range(len(source))]
