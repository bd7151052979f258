"""Conversion of an image file for a corpus.

The image is verified, rotated upright and resized. It is encoded again only if necessary.
"""

import contextlib
import io
import warnings
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import decoding
from vit_jax.data.decoding import DecodeError
from vit_jax.data.formats.tiff import DAMAGED

# Larger images are refused before they are decoded, with the default limits of a run (`loader.batches`).
MAX_PIXELS, MAX_ASPECT = 178_956_970, 100.0
# Above this number of bytes (44 million pixels) the processes of a machine decode one image at a time. For photographs
# of phones (12 million pixels), all cores decode one image each.
LARGE = 2**28
# Quality of libjpeg, with colours at half the resolution, as in cameras. Pillow's documentation advises against values
# above 95.
QUALITY = 95
# Formats that are kept if no other change is needed. TFDS, Pillow and OpenCV decode them to the same pixels.
KEPT = ("JPEG", "MPO", "PNG")  # MPO is a JPEG followed by further pictures, as made by phones


class FileProperties(NamedTuple):
  """Properties of a file's content except its size.

  Attributes:
    form: name of the format in Pillow, or "" if Pillow does not know it.
    mode: Pillow's mode, such as "RGB" or "CMYK".
    animated: true if the file contains several frames.
  """

  form: str
  mode: str
  animated: bool


class ConvertedImage(NamedTuple):
  """A file for the corpus.

  Attributes:
    data: bytes of the file.
    pixels: `(H, W, 3)`, uint8, before encoding.
    done: sorted words for the changes: "rotated", "resized", "encoded".
  """

  data: bytes
  pixels: np.ndarray
  done: tuple[str, ...]


def convert_image(
  data: bytes,
  size: int | None = None,
  large: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(),
  lenient: bool = False,
) -> ConvertedImage:
  """Converts an image file for a corpus.

  The whole file is decoded. An image with an EXIF orientation is made upright. CMYK images, GIF, BMP, WebP, TIFF and
  the first frame of animations become RGB. A changed image is stored as a JPEG of quality 95 if it was lossy, otherwise
  as a PNG. An unchanged file keeps its bytes, including colour profile and metadata.

  Args:
    data: bytes of the image file.
    size: number of pixels of the smaller side after antialiased resizing by area. Smaller images keep their size. None:
      images are not resized.
    large: a lock that is held while an image that needs more than `LARGE` bytes is decoded and encoded.
    lenient: as for `decoding.check_image`.

  Raises:
    DecodeError: the image is damaged or exceeds the limits.

  Example:
    import numpy as np
    from vit_jax.corpora import conversion

    file = conversion.encode(np.zeros((300, 400, 3), np.uint8), lossy=True)
    converted = conversion.convert_image(file, size=150)
    assert converted.pixels.shape == (150, 200, 3) and converted.done == ("resized",)
  """
  header = decoding.check_image(data, MAX_PIXELS, MAX_ASPECT, exif=True, lenient=lenient)
  with large if header.memory > LARGE else contextlib.nullcontext():
    return _convert_checked(data, header, size)


def _convert_checked(data: bytes, header: Any, size: int | None) -> ConvertedImage:
  pixels = decoding.decode(data, header)
  about = inspect_file(data)
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
  return ConvertedImage(data, pixels, tuple(sorted(done)))


def inspect_file(data: bytes) -> FileProperties:
  """Returns format, mode and animation of a file that has passed `decoding.check_image`.

  Pillow reads no pixels for this purpose. If the metadata are damaged, the result contains defaults.

  Args:
    data: bytes of the file.
  """
  try:
    with warnings.catch_warnings():
      # Warnings about large images, which have been checked, and about unusual metadata.
      warnings.simplefilter("ignore")
      image = Image.open(io.BytesIO(data))
      return FileProperties(
        image.format or "", image.mode, image.format in ("GIF", "PNG", "WEBP") and getattr(image, "is_animated", False)
      )
  except (*DAMAGED, MemoryError):
    return FileProperties({b"\xff\xd8": "JPEG", b"\x89P": "PNG"}.get(data[:2], ""), "", False)


def encode(pixels: np.ndarray, lossy: bool) -> bytes:
  """Encodes RGB pixels as a JPEG of `QUALITY`, or as a PNG.

  Args:
    pixels: `(H, W, 3)`, uint8.
    lossy: true selects JPEG.

  Raises:
    DecodeError: the image is too large for a JPEG.
  """
  form, options = (".jpg", [cv2.IMWRITE_JPEG_QUALITY, QUALITY]) if lossy else (".png", [])
  if lossy and max(pixels.shape) > 65_535:
    raise DecodeError(f"{pixels.shape[1]:,} x {pixels.shape[0]:,} pixels. A side of a JPEG has at most 65,535")
  encoded, data = cv2.imencode(form, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
  assert encoded
  return data.tobytes()
