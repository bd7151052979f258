"""Segmentation masks: the class of each pixel of an image, from a separate file, and shares of classes per patch."""

import io
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import decoding
from vit_jax.data.formats import bmp, tiff
from vit_jax.data.formats.headers import DecodeError, PixelLayout
from vit_jax.data.images import Images
from vit_jax.data.sources import Masks
from vit_jax.schema import format_amount
from vit_jax.shapes import Float, UInt8

NONE = 255  # number for pixels without a class
_MODES = ("L", "P", "1")  # modes of Pillow with one channel of up to eight bits, which may be indices of a palette


def read_mask(images: Images, record: int, size: int) -> UInt8[np.ndarray, "S S"] | None:
  """Reads the mask of a record, and scales it to S x S with nearest neighbours. Returns the class of each pixel.

  Args:
    images: images of the source with the masks.
    record: record number.
    size: side S of the result in pixels.

  Returns:
    Class numbers, with `NONE` for pixels without a class. None if the mask is bad and bad records are skipped.

  Raises:
    ImageError: if the mask is bad and bad records are not skipped, or if there are too many bad records.
  """

  def decode_mask() -> np.ndarray:
    masks = images.source.masks
    assert masks is not None
    data = masks.read(record)
    try:
      return scale_mask(convert_numbers(decode_numbers(data, *images.bounds[:2]), masks), size)
    except ValueError as error:
      raise DecodeError(f"its mask is not valid: {error}") from error

  return images.skip_if_bad(record, decode_mask)


def decode_numbers(data: bytes, max_pixels: int, max_aspect: float) -> UInt8[np.ndarray, "H W"]:
  """Reads the numbers in an image file with one channel, without scaling of gray values and without EXIF orientation.

  Args:
    data: content of a PNG, GIF, BMP or TIFF file.
    max_pixels: largest number of pixels.
    max_aspect: largest ratio of the longer to the shorter side.

  Returns:
    The values of gray pixels, or the palette indices of pixels.

  Raises:
    DecodeError: if the file is damaged, exceeds a limit, or has more than one channel or more than eight bits.
  """
  header = decoding.check_image(data, max_pixels, max_aspect)
  if data.startswith(b"\xff\xd8"):
    raise DecodeError("a JPEG changes the numbers of classes; store masks as PNG")
  with decoding.MEMORY.share(header.memory):
    stored, mode = _read_stored(data, header.layout)
  if stored is None or mode not in _MODES:
    raise DecodeError(
      f"its mode in Pillow is {mode!r}. Allowed: one channel of up to eight bits, in mode {', '.join(_MODES)}"
    )
  return stored


def _read_stored(data: bytes, layout: PixelLayout | None) -> tuple[np.ndarray | None, str]:
  """Returns (numbers (H, W), Pillow's name of the mode)."""
  if isinstance(layout, bmp.BmpLayout):
    return (layout.numbers(data), "P") if layout.bits in bmp.PALETTES else (None, "RGB")
  if isinstance(layout, tiff.TiffPage):
    return layout.numbers(data)
  try:
    with Image.open(io.BytesIO(data)) as image:
      # Pillow scales gray values of 2 and 4 bits. These two bytes of a PNG are the bits per sample and the
      # colour type.
      bits, colours = data[24:26] if data.startswith(b"\x89PNG") else (8, 0)
      scale = 255 // ((1 << bits) - 1) if image.mode == "L" and colours == 0 else 1
      return np.asarray(image).astype(np.uint8) // scale, image.mode
  # Errors of Pillow for damaged or very large files.
  except (OSError, SyntaxError, Image.DecompressionBombError) as error:
    raise DecodeError(str(error)) from error


def convert_numbers(stored: UInt8[np.ndarray, "H W"], masks: Masks) -> UInt8[np.ndarray, "H W"]:
  """Converts the numbers in a file to class numbers.

  Args:
    stored: numbers in the file.
    masks: description of the numbers.

  Raises:
    DecodeError: if a number does not belong to a class and is not ignored.
  """
  values = range(len(masks.classes)) if masks.values is None else masks.values
  table = np.full(256, NONE, np.uint8)
  table[list(values)] = np.arange(len(masks.classes))
  known = np.zeros(256, bool)
  known[[*values, *masks.ignored, NONE]] = True
  if not known[stored].all():
    first = int(stored[~known[stored]][0])
    raise DecodeError(
      f"it has pixels with the number {first}. Allowed: {format_numbers(values)} for "
      f"{format_amount(len(masks.classes), 'class', 'classes')}, and "
      f"{format_numbers([*masks.ignored, NONE])} for no class"
    )
  return table[stored]


def format_numbers(numbers: Sequence[int]) -> str:
  """Returns numbers as text. If there are more than three, only the first and the last are shown."""
  numbers = list(numbers)
  return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 3 else ", ".join(map(str, numbers))


def scale_mask(mask: UInt8[np.ndarray, "H W"], size: int) -> UInt8[np.ndarray, "S S"]:
  """Returns the whole mask scaled to a square. Each pixel has the class at its centre.

  Args:
    mask: class of each pixel.
    size: side S of the result in pixels.
  """
  return mask if mask.shape == (size, size) else cv2.resize(mask, (size, size), interpolation=cv2.INTER_NEAREST_EXACT)


def compute_shares(masks: UInt8[np.ndarray, "B S S"], side: int, classes: int) -> Float[np.ndarray, "B P P V"]:
  """Returns the share of each class in each patch.

  A pixel belongs to the patch that contains its centre. The shares of a patch sum to less than 1 if pixels have no
  class.

  Args:
    masks: class of each pixel.
    side: number P of patches in a row and in a column.
    classes: number V of classes.
  """
  images, size, _ = masks.shape
  patch = (np.arange(size) * 2 + 1) * side // (2 * size)
  cell = (np.arange(images)[:, None, None] * side + patch[:, None]) * side + patch
  of_class = masks < classes
  counts = np.bincount(
    cell[of_class] * classes + masks[of_class].astype(np.int64), minlength=images * side * side * classes
  ).reshape(images, side, side, classes)
  along = np.bincount(patch, minlength=side)
  return counts / (along[:, None] * along)[..., None]
