"""GIF files: the first frame and its screen (GIF89a specification, CompuServe 1990)."""

import dataclasses
from struct import error as StructError
from struct import pack, unpack_from
from typing import NamedTuple

import numpy as np

from vit_jax.data.formats import opencv
from vit_jax.data.formats.errors import DecodeError

BEGINNINGS = (b"GIF87a", b"GIF89a")
BLOCKS = 2**20  # more blocks than any real file has before the end of its first frame
_SCREEN, _EXTENSION, _IMAGE = 13, 0x21, 0x2C
_PIXEL = 13  # bytes of memory per pixel: OpenCV's images of the frame, and the screen
_MOST = 256  # largest number of colours of a palette


@dataclasses.dataclass(frozen=True)
class GifScreen:
  """The screen of a GIF, on which its first frame is drawn.

  Attributes:
    height: number of rows.
    width: number of pixels in a row.
  """

  height: int
  width: int

  @property
  def memory(self) -> int:
    """Upper bound of the memory for decoding, in bytes."""
    return _PIXEL * self.height * self.width

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the screen with the first frame, uint8 (H, W, 3) RGB.

    Transparent pixels have the colour of their palette index. The screen around the frame has the background colour.

    Args:
      data: content of the file.

    Raises:
      DecodeError: if the file is truncated, or if its first frame is damaged, lacks a palette or exceeds the screen.
    """
    try:
      frame = _read_frame(data, self)
    except StructError:
      raise DecodeError(f"not a complete image: a GIF of {len(data)} bytes that ends inside its first frame") from None
    pixels = opencv.decode(frame.alone(data), self.memory)
    if pixels.shape != (frame.height, frame.width, 3):
      raise DecodeError(f"not a complete image: a GIF with a decoded frame of shape {pixels.shape}")
    if (frame.height, frame.width) == (self.height, self.width):
      return pixels
    screen = np.empty((self.height, self.width, 3), np.uint8)
    screen[:] = frame.background
    screen[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width] = pixels
    return screen


class _Frame(NamedTuple):
  """The first frame, and the location of its compressed palette indices in the file."""

  top: int
  left: int
  height: int
  width: int
  interlaced: bool  # whether the rows are stored in four passes
  palette: bytes  # RGB
  background: tuple[int, int, int]  # RGB of the screen around the frame
  start: int
  end: int

  def alone(self, data: bytes) -> bytes:
    """Returns a GIF that contains only this frame, opaque, on a screen of its size, with a palette of 256 colours."""
    screen = BEGINNINGS[1] + pack("<HHBBB", self.width, self.height, 0, 0, 0)
    image = pack("<BHHHHB", _IMAGE, 0, 0, self.width, self.height, 0x80 | 0x40 * self.interlaced | 7)
    colours = self.palette.ljust(3 * _MOST, b"\0")  # an index outside of the palette is black
    return b"".join((screen, image, colours, memoryview(data)[self.start : self.end], b";"))


def read(data: bytes) -> GifScreen:
  """Reads the size of the screen. Raises struct.error if the file is too short."""
  width, height = unpack_from("<HH", data, 6)
  return GifScreen(height, width)


def _read_frame(data: bytes, screen: GifScreen) -> _Frame:
  """Reads the description of the first frame. Raises DecodeError, or struct.error for a truncated file."""
  flags, background = unpack_from("<BB", data, 10)
  shared, at = _read_palette(data, _SCREEN, flags)
  blocks = 0
  while True:
    (kind,) = unpack_from("B", data, at)
    if kind == _IMAGE:
      break
    blocks += 1
    if kind == _EXTENSION:
      at, count = _skip_blocks(data, at + 2, BLOCKS - blocks)
      blocks += count
    elif kind == 0 and blocks < BLOCKS:  # some programs write zeros between blocks
      at += 1
    else:
      raise DecodeError("not a complete image: a GIF without a frame")
  left, top, width, height, flags = unpack_from("<4HB", data, at + 1)
  own, start = _read_palette(data, at + 10, flags)
  end, _ = _skip_blocks(data, start + 1, BLOCKS)
  palette = own or shared
  if not palette:
    raise DecodeError("a GIF without a palette. Convert it to PNG")
  if min(width, height) < 1 or left + width > screen.width or top + height > screen.height:
    raise DecodeError(
      f"a GIF with a first frame of {width:,} x {height:,} pixels at ({left:,}, {top:,}) outside its screen "
      f"of {screen.width:,} x {screen.height:,}. Convert it to PNG"
    )
  # Black if the index is outside of the palette.
  red, green, blue = shared[3 * background : 3 * background + 3] or (0, 0, 0)
  return _Frame(top, left, height, width, bool(flags & 0x40), palette, (red, green, blue), start, end)


def _read_palette(data: bytes, at: int, flags: int) -> tuple[bytes, int]:
  """Returns (colours, offset after them). The colours are empty if the flags do not announce a palette."""
  end = at + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
  unpack_from("B", data, end)  # raises an error if the file ends here
  return data[at:end], end


def _skip_blocks(data: bytes, at: int, most: int) -> tuple[int, int]:
  """Returns (offset after a sequence of sub-blocks, their number)."""
  for count in range(most):
    (size,) = unpack_from("B", data, at)
    at += 1 + size
    if not size:
      return at, count
  raise DecodeError(f"a GIF of more than {BLOCKS:,} blocks before the end of its first frame")
