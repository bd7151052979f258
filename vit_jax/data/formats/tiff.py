"""TIFF files: the layout of the first page, and decoding of its pixels."""

import contextlib
import io
import math
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image, TiffImagePlugin

from vit_jax.data.formats import strips
from vit_jax.data.formats.errors import DecodeError
from vit_jax.data.formats.exif import ORDERS, ORIENTATION, TagDirectory, read_directory

# Exceptions of Pillow for damaged files and metadata.
DAMAGED = (OSError, SyntaxError, ValueError, TypeError, LookupError, struct.error, OverflowError)
# Pillow warns about unusual metadata. `warnings.catch_warnings` is not safe in threads.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
# Pillow's own reader of uncompressed files returns wrong colours for separate planes of 16 bits or with reversed bit
# order. It also does not compare the sizes of strips with the size of the image. libtiff does both correctly.
TiffImagePlugin.READ_LIBTIFF = True


class TiffPage(NamedTuple):
  """The first page of a TIFF file.

  Attributes:
    height: number of rows as the file stores them.
    width: number of pixels in a row as the file stores them.
    memory: largest number of bytes of memory for decoding.
    least: smallest number of bytes in which a file can store this number of pixels.
    orientation: EXIF orientation, 1 to 8.
    bits: number of bits of a sample.
    inverted: whether zero is white.
    patches: (offset, bytes) that remove the orientation and the XMP from the directory.
    strips: compressed strips or tiles.
  """

  height: int
  width: int
  memory: int
  least: int
  orientation: int
  bits: int
  inverted: bool
  patches: tuple[tuple[int, bytes], ...]
  strips: strips.Strips

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels as they are stored, uint8 (H, W, 3) RGB.

    Transparency is ignored. Colours that were multiplied by alpha are divided by alpha. Samples of 16 bits are reduced
    to their upper 8 bits.

    Args:
      data: content of the file.

    Raises:
      DecodeError: if the page is damaged, or has a format that Pillow does not support.
    """
    with _convert_errors():
      image = self._load(data)
      if image.mode.startswith("I;16"):
        gray = (np.asarray(image) >> (self.bits - 8)).astype(np.uint8)
        return np.repeat((255 - gray if self.inverted else gray)[..., None], 3, -1)
      if image.mode in ("La", "RGBa"):
        image = image.convert(image.mode.upper())
      return np.array(image.convert("RGB"))

  def numbers(self, data: bytes) -> tuple[np.ndarray, str]:
    """Returns the stored values of the samples of one channel, and Pillow's name of the mode.

    Args:
      data: content of the file.

    Returns:
      (values, mode). The values are uint8 (H, W) if the mode is "1", "L" or "P".

    Raises:
      DecodeError: if the page is damaged, or has a format that Pillow does not support.
    """
    with _convert_errors():
      image = self._load(data)
      scale = 255 // ((1 << self.bits) - 1) if image.mode == "L" else 1  # Pillow scales gray values of 2 and 4 bits
      return np.asarray(image).astype(np.uint8) // scale, image.mode

  def _load(self, data: bytes) -> Image.Image:
    """Returns Pillow's image without applying the orientation. Raises DecodeError for damaged strips."""
    if self.strips.compression in strips.FAX:
      return Image.fromarray(self.strips.decode_fax(data, self.height, self.width) ^ self.inverted)
    self.strips.check(data)
    if self.patches:
      patched = bytearray(data)
      for at, entry in self.patches:
        patched[at : at + len(entry)] = entry
      data = bytes(patched)
    image = TiffImagePlugin.TiffImageFile(io.BytesIO(data))
    image.load()
    return image


@contextlib.contextmanager
def _convert_errors() -> Iterator[None]:
  """Converts errors of Pillow to DecodeError."""
  try:
    yield
  except DecodeError:
    raise
  except SyntaxError as error:
    raise DecodeError(f"a TIFF that Pillow cannot read: {error}. Convert it to PNG") from error
  except DAMAGED as error:
    raise DecodeError(f"not a complete image: Pillow cannot decode the TIFF: {error}") from error


PIECES = 2**17  # more than any real file has

_BIG = (b"II+\0", b"MM\0+")  # first bytes of BigTIFF files, which have 64-bit offsets
BEGINNINGS = (*ORDERS, *_BIG)
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _SAMPLES, _PLANES, _FORMAT = 256, 257, 258, 259, 262, 277, 284, 339
_FILL_ORDER, _FAX_OPTIONS, _PREDICTOR, _PALETTE, _INKS, _EXTRA, _XMP = 266, 292, 317, 320, 332, 338, 700
_STRIPS = (273, 279)  # offset and size of each strip
_ROWS, _TILE_WIDTH, _TILE_HEIGHT, _JPEG_TABLES = 278, 322, 323, 347
_TILES = (324, 325)
_READ = (0, 1, 2, 3, 5)  # supported colours: gray (0, 1), RGB, palette, printer colours
_RGB, _OF_PALETTE, _CMYK, _YCBCR = 2, 3, 5, 6  # numbers of colours
# Compressions that may have a predictor.
_DIFFERENCES = (strips.LZW, strips.DEFLATE, strips.OLD_DEFLATE, strips.LZMA, strips.ZSTD)
# Supported compressions: uncompressed, three of fax machines, LZW, JPEG, two of deflate, PackBits, LZMA, ZSTD. The
# value is the largest number of bytes that one compressed byte may represent. None: unknown, because one bit of a fax
# may be a row.
_RATIOS = {strips.NONE: 1, **dict.fromkeys((*strips.FAX, strips.LZMA, strips.ZSTD)), strips.LZW: 4096,
           strips.JPEG: 2048, strips.DEFLATE: 1032, strips.OLD_DEFLATE: 1032, strips.PACKBITS: 64}  # fmt: skip
# In bytes; a strip may be the whole image with four samples of 16 bits, in addition to the image and its copies.
_PIXEL = 24
_TILE = 2**22  # largest number of pixels of a tile if the image has fewer pixels


def read_page(data: bytes) -> TiffPage:
  """Returns the first page of a TIFF file.

  Args:
    data: content of the file.

  Raises:
    DecodeError: if a strip or a tile is missing, or if the file is damaged or has an unsupported format.
  """
  if data[:4] in _BIG:
    raise DecodeError("a BigTIFF with 64-bit offsets. Save it again as a classic TIFF")
  found = read_directory(data)
  assert found is not None

  def values(tag: int, *default: int) -> np.ndarray:
    if tag in found.entries:
      return found.values(data, tag)
    if not default:
      raise DecodeError(f"not a complete image: {len(data)} bytes of a TIFF without the directory tag {tag}")
    return np.array(default)

  height, width, samples, planes = (
    int(values(*each)[0]) for each in ((_HEIGHT,), (_WIDTH,), (_SAMPLES, 1), (_PLANES, 1))
  )
  bits, compression, colours = values(_BITS, 1), int(values(_COMPRESSION, 1)[0]), int(values(_COLOURS)[0])
  _check_form(values, bits, samples, compression, colours)
  described = len(values(_EXTRA)) if _EXTRA in found.entries and planes == 2 else 0
  # Pillow would use the fourth plane as alpha and divide the colours by it.
  if colours == _RGB and planes == 2 and described < samples - 3:
    raise DecodeError(
      f"an RGB TIFF with {samples} separate planes and an ExtraSamples tag that describes {described} "
      f"of the {samples - 3} beyond RGB. Convert it to PNG"
    )
  if found.repeated:
    raise DecodeError("a TIFF with a repeated tag in its directory. Convert it to PNG")
  if min(height, width, samples) < 1:
    raise DecodeError(f"not a complete image: {width} x {height} pixels")
  tiled = _TILES[0] in found.entries
  across, down = (int(values(tag)[0]) for tag in (_TILE_WIDTH, _TILE_HEIGHT)) if tiled else (width, 0)
  down = down if tiled else min(height, int(values(_ROWS, height)[0]))
  if min(across, down) < 1 or (tiled and across * down > max(_TILE, 4 * height * width)):
    raise DecodeError(f"not a complete image: a TIFF with strips or tiles of {across:,} x {down:,} pixels")
  planes = samples if planes == 2 else 1
  columns = math.ceil(width / across)
  count = columns * math.ceil(height / down) * planes
  if count > PIECES:
    raise DecodeError(f"a TIFF of more than {PIECES:,} strips or tiles")
  row = -(-across * int(bits.max()) * (samples // planes) // 8)
  needed = np.full(count, row * down)  # bytes of each strip or tile without compression
  if not tiled:
    pieces = needed.reshape(planes, -1)
    pieces[:, -1] = row * (height - (pieces.shape[1] - 1) * down)
    needed = pieces.ravel()
  offsets, sizes = map(values, _TILES if tiled else _STRIPS)
  _check_pieces(data, offsets, sizes, needed, compression)
  reversed_bits = compression != strips.JPEG and int(values(_FILL_ORDER, 1)[0]) == 2
  stored = strips.Strips(
    *(compression, offsets[:count], sizes[:count], needed, row * down, columns, across, down),
    *(int(values(_FAX_OPTIONS, 0)[0]), reversed_bits, found.content(data, _JPEG_TABLES)),
  )
  raw = row * (count * down if tiled else height * planes)
  memory, ratio = _PIXEL * height * width + 8 * across * down, _RATIOS[compression]
  least = raw // ratio if ratio else 1
  turned = found.orientation(data)
  return TiffPage(height, width, memory, least, turned, int(bits.max()), colours == 0, _create_patches(found), stored)


def _check_form(
  values: Callable[..., np.ndarray], bits: np.ndarray, samples: int, compression: int, colours: int
) -> None:
  """Raises DecodeError for samples, colours and compressions that are not decoded exactly."""
  if bits.max() > 16 or bits.min() != bits.max() or (values(_FORMAT, 1) != 1).any():
    raise DecodeError(
      f"a TIFF with samples of {_format_numbers(bits)} bits or of floating-point numbers. Save it with 8 or 16 bits"
    )
  if colours not in _READ and (colours, compression) != (_YCBCR, strips.JPEG):
    raise DecodeError(f"a TIFF with colours of kind {colours}. Save it again as RGB")
  if compression not in _RATIOS:
    raise DecodeError(f"a TIFF with compression {compression}. Convert it to PNG")
  if compression in strips.FAX and (bits.max(), samples, colours > 1) != (1, 1, False):
    raise DecodeError(f"a TIFF with compression {compression}, which is for black and white only. Convert it to PNG")
  if int(values(_PREDICTOR, 1)[0]) not in ((1, 2) if compression in _DIFFERENCES else (1,)):
    raise DecodeError(f"a TIFF with predictor {values(_PREDICTOR)[0]} and compression {compression}. Convert it to PNG")
  if colours == _CMYK and values(_INKS, 1)[0] != 1:
    raise DecodeError("a TIFF with inks other than cyan, magenta, yellow and black. Save it again as RGB")
  if colours == _OF_PALETTE and 0 < values(_PALETTE).max() < 256:
    raise DecodeError("a TIFF with a palette of 8-bit instead of 16-bit colours. Convert it to PNG")


def _format_numbers(bits: np.ndarray) -> str:
  """Returns the different numbers as text."""
  return " and ".join(map(str, sorted({*bits.tolist()})))


def _create_patches(found: TagDirectory) -> tuple[tuple[int, bytes], ...]:
  """Returns (offset, bytes) of directory entries that replace the orientation and the XMP.

  Pillow would apply both, and accepts an orientation of any type.
  """
  plain = {
    ORIENTATION: struct.pack(f"{found.order}HIHH", 3, 1, 1, 0),
    _XMP: struct.pack(f"{found.order}HIB3x", 1, 1, 0),
  }
  return tuple((found.entries[tag].at - 6, entry) for tag, entry in plain.items() if tag in found.entries)


def _check_pieces(data: bytes, offsets: np.ndarray, sizes: np.ndarray, needed: np.ndarray, compression: int) -> None:
  """Raises DecodeError if a strip or tile is outside of the file, or is uncompressed with fewer bytes than `needed`.

  JPEG strips and tiles must have an end marker.
  """
  count = len(needed)
  if min(len(offsets), len(sizes)) < count or not sizes[:count].min():
    raise DecodeError(f"not a complete image: a TIFF without some of its strips or tiles; it needs {count:,}")
  ends = offsets[:count] + sizes[:count]
  if ends.max() > len(data):
    raise DecodeError(f"not a complete image: a TIFF of {len(data)} bytes with pixels that end at byte {ends.max():,}")
  if (
    compression == strips.NONE and needed.sum() <= len(data) and (sizes[:count] < needed).any()
  ):  # if the whole file is too short, this is reported later
    raise DecodeError("not a complete image: a TIFF with strips or tiles that are shorter than their rows")
  if compression == strips.JPEG and any(b"\xff\xd9" not in data[max(0, end - 4) : end] for end in ends.tolist()):
    raise DecodeError("not a complete image: a TIFF with a JPEG that has no end")
