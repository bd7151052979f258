"""The directory of a TIFF file, which EXIF has too: what it says, whether the first page is whole, and its pixels."""

import io
import math
import struct
import warnings
from typing import NamedTuple

import numpy as np
from PIL import TiffImagePlugin

# What Pillow raises for files and metadata that are damaged.
DAMAGED = (OSError, SyntaxError, ValueError, TypeError, LookupError, struct.error, OverflowError)
# What it says of odd metadata; `warnings.catch_warnings` is not for threads.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")


class DecodeError(ValueError):
  """Bytes that are not one whole image, or an image that is not allowed."""


class Entry(NamedTuple):
  """What a directory has under one tag (TIFF 6.0, section 2)."""

  kind: int
  count: int
  at: int  # of four bytes: the values, or where these begin


class Directory(NamedTuple):
  """The first directory of a file or of EXIF."""

  order: str  # of bytes, as `struct` has it
  entries: dict[int, Entry]  # by tag


class Page(NamedTuple):
  """The first page of a TIFF file: its size in pixels, and the bytes of memory that decoding takes at most."""

  height: int
  width: int
  memory: int
  least: int  # bytes that so many pixels take
  orientation: int  # 1 to 8
  unturned: tuple[int, bytes] | None  # where that is said, and the bytes which would say 1
  inverted: bool  # whether zero is white


ENTRIES, PIECES = 4096, 2**17  # more than any real file has, as of `headers`

_ORIENTATION = 0x0112
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_BIG = (b"II+\0", b"MM\0+")  # whose offsets have 64 bits
BEGINNINGS = (*_ORDERS, *_BIG)
_KINDS = {1: "B", 3: "H", 4: "I"}  # of values: bytes, shorts, longs
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _SAMPLES, _PLANES, _FORMAT = 256, 257, 258, 259, 262, 277, 284, 339
_STRIPS = (273, 279)  # offsets, and bytes of each
_ROWS, _TILE_WIDTH, _TILE_HEIGHT = 278, 322, 323
_TILES = (324, 325)
_READ = (0, 1, 2, 3, 5)  # colours: gray, RGB, a palette, of a printer
_YCBCR, _JPEG = 6, 7  # colours, and the compression that has them
# How many bytes one stands for at most, by compression. Of fax machines' a bit may be a row.
_RATIOS = {1: 1, 5: 4096, _JPEG: 2048, 8: 1032, 32946: 1032, 32773: 64}
_PIXEL = 24  # bytes: a strip may be the whole image, of four samples with 16 bits, beside the image and its copies
_TILE = 2**22  # pixels of a tile of an image that has less


def directory(data: bytes | memoryview) -> Directory | None:
  """The first directory of a TIFF file or of EXIF, as far as it is there; None for anything else."""
  order, entries = _ORDERS.get(bytes(data[:4])), {}
  if order is None:
    return None
  try:
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, at)
    for first in range(at + 2, at + 2 + 12 * min(count, ENTRIES), 12):
      tag, kind, length, _ = struct.unpack_from(f"{order}HHI4s", data, first)
      entries.setdefault(tag, Entry(kind, length, first + 8))
  except struct.error:  # it is cut off
    pass
  return Directory(order, entries)


def orientation(data: bytes | memoryview) -> int:
  """How EXIF says that an image is turned, 1 to 8; 1 where it is damaged, or has a number that it does not define."""
  if data[:6] == b"Exif\0\0":
    data = data[6:]
  said = directory(data)
  return _orientation(data, said) if said else 1


def _orientation(data, said):
  entry = said.entries.get(_ORIENTATION)
  if entry is None or entry.count != 1 or entry.kind not in _KINDS:
    return 1
  value = int(_values(data, said.order, entry)[0])
  return value if 1 <= value <= 8 else 1


def _values(data, order, entry) -> np.ndarray:
  """The whole numbers of an entry. DecodeError where they are none, or not there."""
  kind = np.dtype(_KINDS.get(entry.kind, "V")).newbyteorder(order)
  size = entry.count * kind.itemsize
  at = entry.at if size <= 4 else struct.unpack_from(f"{order}I", data, entry.at)[0]
  if kind.kind == "V" or not size or at + size > len(data):
    raise DecodeError(f"not a complete image; {len(data)} bytes of a TIFF, and a directory that goes beyond them")
  return np.frombuffer(data, kind, entry.count, at).astype(np.int64)


def page(data: bytes) -> Page:
  """The first page of a TIFF file. DecodeError unless all of its strips or tiles are there, and can be read."""
  if data[:4] in _BIG:
    raise DecodeError("a BigTIFF, whose offsets have 64 bits; save it again as a usual TIFF")
  said = directory(data)

  def values(tag, *default):
    entry = said.entries.get(tag)
    if entry is None and not default:
      raise DecodeError(f"not a complete image; {len(data)} bytes of a TIFF whose directory lacks tag {tag}")
    return np.array(default) if entry is None else _values(data, said.order, entry)

  height, width, samples, planes = (
    int(values(*each)[0]) for each in ((_HEIGHT,), (_WIDTH,), (_SAMPLES, 1), (_PLANES, 1))
  )
  bits, compression, colours = values(_BITS, 1), int(values(_COMPRESSION, 1)[0]), int(values(_COLOURS)[0])
  if bits.max() > 16 or (values(_FORMAT, 1) != 1).any():
    raise DecodeError(f"a TIFF with samples of {bits.max()} bits or of fractions; save it with 8 or 16 bits")
  if colours not in _READ and (colours, compression) != (_YCBCR, _JPEG):
    raise DecodeError(f"a TIFF with colours of kind {colours}; save it again as RGB")
  if min(height, width, samples) < 1:
    raise DecodeError(f"not a complete image; {width} x {height} pixels")
  tiled = _TILES[0] in said.entries
  across, down = (int(values(tag)[0]) for tag in (_TILE_WIDTH, _TILE_HEIGHT)) if tiled else (width, 0)
  down = down if tiled else min(height, int(values(_ROWS, height)[0]))
  if min(across, down) < 1 or (tiled and across * down > max(_TILE, 4 * height * width)):
    raise DecodeError(f"not a complete image; a TIFF in pieces of {across:,} x {down:,} pixels")
  planes = samples if planes == 2 else 1
  count = math.ceil(width / across) * math.ceil(height / down) * planes
  if count > PIECES:
    raise DecodeError(f"a TIFF of more than {PIECES:,} strips or tiles")
  _check_pieces(data, *map(values, _TILES if tiled else _STRIPS), count, compression)
  row = -(-across * int(bits.max()) * (samples // planes) // 8)
  raw = row * (count * down if tiled else height * planes)
  unturned = None
  if (turned := _orientation(data, said)) != 1:
    entry = said.entries[_ORIENTATION]
    unturned = entry.at, struct.pack(said.order + _KINDS[entry.kind], 1)
  memory, least = _PIXEL * height * width + 8 * across * down, raw // _RATIOS.get(compression, raw)
  return Page(height, width, memory, least, turned, unturned, colours == 0)


def _check_pieces(data, offsets, sizes, count, compression):
  """DecodeError unless so many strips or tiles are in the file, and those of JPEG have their end."""
  if min(len(offsets), len(sizes)) < count or not sizes[:count].min():
    raise DecodeError(f"not a complete image; a TIFF that lacks some of its {count:,} strips or tiles")
  ends = offsets[:count] + sizes[:count]
  if ends.max() > len(data):
    raise DecodeError(f"not a complete image; {len(data)} bytes of a TIFF whose pixels end at {ends.max():,}")
  if compression == _JPEG and any(b"\xff\xd9" not in data[max(0, end - 4) : end] for end in ends.tolist()):
    raise DecodeError("not a complete image; a TIFF with a JPEG that has no end")


def decoded(data: bytes, page: Page) -> np.ndarray:
  """RGB pixels [H, W, 3], uint8, of a first page as it is stored; alpha is ignored. DecodeError for damaged ones."""
  if page.unturned:  # Pillow would turn it, and so would OpenCV
    at, one = page.unturned
    data = data[:at] + one + data[at + len(one) :]
  try:
    image = TiffImagePlugin.TiffImageFile(io.BytesIO(data))
    image.load()
    if image.mode.startswith("I;16"):
      gray = (np.asarray(image) >> 8).astype(np.uint8)
      return np.repeat((255 - gray if page.inverted else gray)[..., None], 3, -1)
    if image.mode in ("La", "RGBa"):
      image = image.convert(image.mode.upper())
    return np.array(image.convert("RGB"))
  except DAMAGED as error:
    raise DecodeError(f"not a complete image; Pillow cannot decode the TIFF: {error}") from error
