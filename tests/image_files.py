"""Image files for tests of sources, and the contents of a source."""

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
  """Returns an image of smooth random colours, which JPEG and resampling change little."""
  coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
  return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encode(image, form="PNG", **options):
  file = io.BytesIO()
  (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
  return file.getvalue()


ORIENTATION = 0x0112  # the tag


def tagged(image, orientation, form="JPEG", **options):
  """Returns an image file with an orientation tag."""
  exif = Image.Exif()
  exif[ORIENTATION] = orientation
  options |= {"lossless": True, "exact": True} if form == "WEBP" else {}
  return encode(image, form, exif=exif, **options)


def decoded(data, exif=False):
  """Returns the pixels of a file of any size."""
  return decoding.decode(data, decoding.check_image(data, 2**30, 2**30, exif))


def boxes(data, count=60, exif=False):
  """Yields (box, pixels or None if decoding failed) for random boxes. The first box decodes the whole file."""
  image, draw = (
    decoding.LazyImage(data, decoding.check_image(data, 2**30, 2**30, exif)),
    np.random.default_rng(len(data)),
  )
  for _ in range(count):
    sides = image.shape[:2]
    (top, bottom), (left, right) = (sorted(draw.choice(side + 1, 2, replace=False)) for side in sides)
    box = slice(int(top), int(bottom)), slice(int(left), int(right))
    try:
      yield box, image[box]
    except decoding.DecodeError:
      yield box, None
