"""One image file on its way into a corpus: verified, upright, resized, and encoded anew only where it must be."""

import contextlib
import io
import warnings
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import decoding
from vit_jax.data.decoding import DecodeError
from vit_jax.data.tiff import DAMAGED

# Larger ones are refused before they are decoded, by the bounds that a run has by default (`loader.batches`).
MAX_PIXELS, MAX_ASPECT = 178_956_970, 100.0
# Bytes of memory from which on the processes of a machine decode one image at a time: 44 million pixels; of those that
# telephones make, 12 million, all cores decode one each.
LARGE = 2**28
# Of libjpeg, with colours at half the resolution, as cameras have it; Pillow's documentation advises none above 95.
QUALITY = 95
# What is kept as it is where nothing else has to be done: what TFDS, Pillow and OpenCV all decode to the same pixels.
KEPT = ("JPEG", "MPO", "PNG")  # MPO: a JPEG with further pictures behind it, as telephones make


class About(NamedTuple):
  """What a file says of itself besides its size."""

  form: str  # as Pillow calls it; "" if it knows none
  mode: str
  animated: bool


class Converted(NamedTuple):
  """A file for the corpus, its pixels uint8 [H, W, 3] before they were encoded, and what was done: words, sorted."""

  data: bytes
  pixels: np.ndarray
  done: tuple[str, ...]


def convert(
  data: bytes,
  size: int | None = None,
  large: contextlib.AbstractContextManager = contextlib.nullcontext(),
  lenient: bool = False,
) -> Converted:
  """An image file as a corpus has it. Raises DecodeError for one that is damaged or over the bounds.

  All of it is decoded. One that EXIF calls turned or mirrored is made upright. With `size` its smaller side becomes so
  many pixels, by area (antialiased), unless it has fewer. Printers' colours (CMYK), GIF, BMP, WebP, TIFF and
  animations, of which the first frame is taken, become RGB. What was changed is a JPEG of quality 95 if it was lossy,
  else a PNG; any other file keeps its bytes, with colour profile and metadata.
  `large` is held while an image is decoded and encoded that takes more than `LARGE` bytes. `lenient` is as of
  `decoding.check`.
  """
  header = decoding.check(data, MAX_PIXELS, MAX_ASPECT, exif=True, lenient=lenient)
  with large if header.memory > LARGE else contextlib.nullcontext():
    return _converted(data, header, size)


def _converted(data, header, size):
  pixels = decoding.decode(data, header)
  about = inspect(data)
  done = ["rotated"] * (header.orientation != 1)
  height, width, _ = pixels.shape
  if size and min(height, width) > size:
    short = size / min(height, width)
    sides = max(size, round(width * short)), max(size, round(height * short))
    pixels = cv2.resize(pixels, sides, interpolation=cv2.INTER_AREA)
    done.append("resized")
  if about.form not in KEPT or about.mode == "CMYK" or about.animated:
    done.append("encoded")
  if done:
    data = encode(pixels, lossy=about.form in ("JPEG", "MPO", "WEBP") and not about.animated)
  return Converted(data, pixels, tuple(sorted(done)))


def inspect(data: bytes) -> About:
  """Form, mode and animation of a file that has passed `decoding.check`; defaults where its metadata are damaged.

  Pillow reads no pixels for it.
  """
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # of large images, which have been checked, and of odd metadata
      image = Image.open(io.BytesIO(data))
      return About(
        image.format, image.mode, image.format in ("GIF", "PNG", "WEBP") and getattr(image, "is_animated", False)
      )
  except (*DAMAGED, MemoryError):
    return About({b"\xff\xd8": "JPEG", b"\x89P": "PNG"}.get(data[:2], ""), "", False)


def encode(pixels: np.ndarray, lossy: bool) -> bytes:
  """RGB pixels uint8 [H, W, 3] as a JPEG of `QUALITY`, or as a PNG."""
  form, options = (".jpg", [cv2.IMWRITE_JPEG_QUALITY, QUALITY]) if lossy else (".png", [])
  if lossy and max(pixels.shape) > 65_535:
    raise DecodeError(f"{pixels.shape[1]:,} x {pixels.shape[0]:,} pixels; a JPEG has up to 65,535 a side")
  encoded, data = cv2.imencode(form, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
  assert encoded
  return data.tobytes()
