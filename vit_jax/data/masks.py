"""Masks: the class of each pixel of an image, read from a file beside it, and the shares of classes in each patch."""

import io

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import bmp, decoding, tiff
from vit_jax.data.headers import DecodeError
from vit_jax.data.images import Images
from vit_jax.data.sources import Masks
from vit_jax.schema import amount
from vit_jax.shapes import Float, UInt8

NONE = 255  # the class of a pixel of no class
_MODES = ("L", "P", "1")  # of Pillow: one channel of up to eight bits, also as places in a palette


def read(images: Images, record: int, size: int) -> UInt8[np.ndarray, "S S"] | None:
  """The class of each pixel of a record's mask, `NONE` where it is of none, scaled whole to S by nearest neighbours.

  None for a bad mask where bad records of `images` are skipped; ImageError where they are not, or are too many.
  """

  def made():
    masks = images.source.masks
    data = masks.read(record)
    try:
      return scaled(numbered(pixels(data, *images.bounds[:2]), masks), size)
    except ValueError as error:
      raise DecodeError(f"its mask is bad: {error}") from error

  return images.judged(record, made)


def pixels(data: bytes, max_pixels: int, max_aspect: float) -> UInt8[np.ndarray, "H W"]:
  """Reads the numbers in a file of one channel as they are stored, without scaling gray or applying an orientation.

  Args:
    data: the bytes of a PNG, GIF, BMP or TIFF file.
    max_pixels: limit of the number of pixels.
    max_aspect: limit of the longer side over the shorter one.

  Returns:
    The values of gray pixels, or the palette indices of pixels.

  Raises:
    DecodeError: the file is damaged, exceeds a limit, or has more than one channel or more than eight bits.
  """
  header = decoding.check(data, max_pixels, max_aspect)
  if data.startswith(b"\xff\xd8"):
    raise DecodeError("a JPEG changes the numbers of classes; store masks as PNG")
  with decoding.MEMORY.share(header.memory):
    stored, mode = _stored(data, header.layout)
  if mode not in _MODES:
    raise DecodeError(
      f"it is in Pillow's mode {mode!r}; allowed is one channel of up to eight bits, {', '.join(_MODES)}"
    )
  return stored


def _stored(data, layout):
  """(numbers [H, W], Pillow's name of the mode)."""
  if isinstance(layout, bmp.Layout):
    return (layout.numbers(data), "P") if layout.bits in bmp.PALETTES else (None, "RGB")
  if isinstance(layout, tiff.Page):
    return layout.numbers(data)
  try:
    with Image.open(io.BytesIO(data)) as image:
      # Pillow scales gray of 2 and 4 bits. These bytes of a PNG contain the bits of a sample and the colour type.
      bits, colours = data[24:26] if data.startswith(b"\x89PNG") else (8, 0)
      scale = 255 // ((1 << bits) - 1) if image.mode == "L" and colours == 0 else 1
      return np.asarray(image).astype(np.uint8) // scale, image.mode
  except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's errors for damaged or huge files
    raise DecodeError(str(error)) from error


def numbered(stored: UInt8[np.ndarray, "H W"], masks: Masks) -> UInt8[np.ndarray, "H W"]:
  """Classes of the numbers in a file. DecodeError for a number that is none."""
  values = range(len(masks.classes)) if masks.values is None else masks.values
  table = np.full(256, NONE, np.uint8)
  table[list(values)] = np.arange(len(masks.classes))
  known = np.zeros(256, bool)
  known[[*values, *masks.ignored, NONE]] = True
  if not known[stored].all():
    first = int(stored[~known[stored]][0])
    raise DecodeError(
      f"pixels of number {first}; allowed are {some(values)} of {amount(len(masks.classes), 'class', 'classes')}, and "
      f"{some([*masks.ignored, NONE])} of none"
    )
  return table[stored]


def some(numbers) -> str:
  """Numbers in words: the first and the last of many."""
  numbers = list(numbers)
  return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 3 else ", ".join(map(str, numbers))


def scaled(mask: UInt8[np.ndarray, "H W"], size: int) -> UInt8[np.ndarray, "S S"]:
  """The whole mask squashed to a square, each pixel that of its middle."""
  return mask if mask.shape == (size, size) else cv2.resize(mask, (size, size), interpolation=cv2.INTER_NEAREST_EXACT)


def shares(masks: UInt8[np.ndarray, "B S S"], side: int, classes: int) -> Float[np.ndarray, "B P P V"]:
  """How much of each patch, of `side` x `side`, is of which class; sums are less than 1 where pixels are of none.

  A pixel is of the patch that its middle lies in.
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
