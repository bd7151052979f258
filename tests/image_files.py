"""Image files to make sources of, and all that a source has."""

import io

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import decoding


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


def picture(height=60, width=80, seed=0):
  """Smooth random colours, so that JPEG and resampling stay close to them."""
  coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
  return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encode(image, form="PNG", **options):
  file = io.BytesIO()
  (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
  return file.getvalue()


def decoded(data):
  """The pixels of a file of any size."""
  return decoding.decode(data, decoding.check(data, 2**30, 2**30))
