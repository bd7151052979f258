"""BMP files: the layout of their pixels, and decoding of the pixels to RGB.

Sources: Microsoft's documentation of BITMAPINFOHEADER, BITMAPV4HEADER and BITMAPV5HEADER, and IBM's documentation of
BITMAPINFOHEADER2 of OS/2. OpenCV and Pillow support only some of the channel masks, and return wrong colours for
others without an error.
"""

import dataclasses
from collections.abc import Sequence
from struct import unpack_from

import numpy as np

from vit_jax.data.formats.errors import DecodeError

RGB, RLE8, RLE4, BITFIELDS, ALPHABITFIELDS = 0, 1, 2, 3, 6  # supported compressions
PALETTES = (1, 2, 4, 8)  # bits of a pixel that is an index into the palette
# Default masks of red, green and blue, by bits of a pixel.
MASKS = {16: (0x7C00, 0x03E0, 0x001F), 32: (0xFF0000, 0x00FF00, 0x0000FF)}
WINDOWS, CORE, SHORTEST, OS2 = (40, 52, 56, 108, 124), 12, 16, 64  # sizes of headers in bytes
# Largest number of compressed bytes. A Python loop reads them, which takes 4 s for this number.
LONGEST = 2**24
_VALUES = 2**18  # pixels that are computed together, so that temporary arrays remain small


@dataclasses.dataclass(frozen=True)
class BmpLayout:
  """The layout of the pixels of a BMP file.

  Attributes:
    height: number of rows.
    width: number of pixels in a row.
    bits: number of bits of a pixel.
    compression: number of the compression in the file.
    top_down: whether the first stored row is the top row.
    start: offset of the pixels in the file.
    palette: offset, number and bytes of the colours.
    masks: masks of red, green and blue in a pixel of 16 or 32 bits.
  """

  height: int
  width: int
  bits: int
  compression: int
  top_down: bool
  start: int
  palette: tuple[int, int, int]
  masks: tuple[int, int, int] | None

  @property
  def memory(self) -> int:
    """Upper bound of the memory for decoding, in bytes."""
    return 5 * self.height * self.width + 64 * min(_VALUES, self.height * self.width)

  @property
  def stride(self) -> int:
    """Number of bytes from one row to the next."""
    return (self.width * self.bits + 31) // 32 * 4

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels, uint8 (H, W, 3) RGB. Raises DecodeError for damaged files."""
    image = np.empty((self.height, self.width, 3), np.uint8)
    if self.bits in PALETTES:
      table = np.zeros((256, 3), np.uint8)  # a number outside the palette is black
      first, count, size = self.palette
      stored = np.frombuffer(data, np.uint8, count * size, first).reshape(count, size)
      table[:count] = stored[:, 2::-1]
      numbers = self.numbers(data)
      for some in self._slices():
        image[some] = table[numbers[some]]
      return image
    rows = self._rows(data)
    if self.bits == 24:
      image[:] = rows[:, : 3 * self.width].reshape(self.height, self.width, 3)[..., ::-1]
      return image
    pixels = rows.view(f"<u{self.bits // 8}")[:, : self.width]
    for some in self._slices():
      assert self.masks is not None
      for channel, mask in enumerate(self.masks):
        image[some, :, channel] = _scale_channel(pixels[some], mask)
    return image

  def numbers(self, data: bytes) -> np.ndarray:
    """Returns the palette index of each pixel, uint8 (H, W). Raises DecodeError for damaged files."""
    if self.compression in (RLE8, RLE4):
      return _decode_run_lengths(data[self.start :], self.height, self.width, self.bits)[::-1]
    rows = self._rows(data)
    if self.bits == 8:
      return rows[:, : self.width]
    image = np.empty((self.height, rows.shape[1] * 8 // self.bits), np.uint8)
    per_byte = 8 // self.bits
    for place in range(per_byte):
      image[:, place::per_byte] = rows >> (8 - self.bits * (place + 1)) & (1 << self.bits) - 1
    return image[:, : self.width]

  def _slices(self) -> list[slice]:
    """Returns slices of rows that are computed together."""
    step = max(1, _VALUES // self.width)
    return [slice(first, first + step) for first in range(0, self.height, step)]

  def _rows(self, data: bytes) -> np.ndarray:
    """Returns the bytes of each row, uint8 (H, stride), with the top row first."""
    end = self.start + self.stride * self.height
    if len(data) < end:  # the last row may lack its padding
      stored = memoryview(bytes(memoryview(data)[self.start :]) + bytes(end - len(data)))
    else:
      stored = memoryview(data)[self.start : end]
    rows = np.frombuffer(stored, np.uint8).reshape(self.height, self.stride)
    return rows if self.top_down else rows[::-1]


def read(data: bytes) -> BmpLayout:
  """Reads the headers of a BMP file.

  Args:
    data: content of the file.

  Raises:
    DecodeError: if the file is shorter than its pixels, or has an unsupported format.
    struct.error: if the file ends within the headers.
  """
  start, size = unpack_from("<II", data, 10)
  masks, compression, colours = None, RGB, 0
  if size == CORE:
    width, height, _, bits = unpack_from("<4H", data, 18)
  elif size in WINDOWS or SHORTEST <= size <= OS2:
    width, height, _, bits = unpack_from("<iiHH", data, 18)
    fields = data[30 : 14 + size].ljust(24, b"\0")  # an OS/2 header may be short, with zeros for the missing fields
    compression, colours = unpack_from("<I", fields)[0], unpack_from("<I", fields, 16)[0]
  else:
    raise DecodeError(f"a BMP with a header of {size:,} bytes. Convert it to PNG")
  top_down, height = height < 0, abs(height)
  if compression in (BITFIELDS, ALPHABITFIELDS) and size in WINDOWS and bits in MASKS:
    masks = unpack_from("<3I", data, 54)  # fields of a header of more than 40 bytes, otherwise after the header
    _check_masks(masks, bits)
    header = size if size > 40 else 52 if compression == BITFIELDS else 56
  else:
    masks, header = MASKS.get(bits), size
    _check_form(bits, compression, top_down)
  entry, palette = (3 if size == CORE else 4), 14 + header
  count = min(colours or 1 << bits, 1 << bits) if bits in PALETTES else 0
  count = max(0, min(count, (min(start, len(data)) - palette) // entry))
  if start < palette:
    raise DecodeError(f"not a complete image: a BMP with pixels that start at byte {start:,}, inside its header")
  layout = BmpLayout(height, width, bits, compression, top_down, start, (palette, count, entry), masks)
  _check_length(data, layout)
  return layout


def _check_form(bits: int, compression: int, top_down: bool) -> None:
  """Raises DecodeError for unsupported formats."""
  forms = {RGB: (*PALETTES, 16, 24, 32), RLE8: (8,), RLE4: (4,)}
  if bits not in forms.get(compression, ()):
    raise DecodeError(f"a BMP of {bits} bits a pixel with compression {compression}. Convert it to PNG")
  if compression != RGB and top_down:
    raise DecodeError("a BMP that is compressed and stores its top row first, which is not defined. Convert it to PNG")


def _check_masks(masks: Sequence[int], bits: int) -> None:
  """Raises DecodeError unless each mask is one block of bits, and no two masks share a bit."""
  for mask in masks:
    low = mask & -mask
    if not mask or mask >> bits or (mask // low) & (mask // low + 1):
      raise DecodeError(f"a BMP with the channel mask {mask:#x} for {bits} bits. The bits of a mask must be adjacent")
  if masks[0] & masks[1] or (masks[0] | masks[1]) & masks[2]:
    raise DecodeError(f"a BMP with channel masks that share bits: {', '.join(map(hex, masks))}")


def _check_length(data: bytes, layout: BmpLayout) -> None:
  """Raises DecodeError if the file is too short for its pixels, or too long to be read in reasonable time."""
  if min(layout.height, layout.width) < 1:
    return  # reported by the caller for all formats
  if layout.compression in (RLE8, RLE4):
    if len(data) - layout.start > LONGEST:
      raise DecodeError(f"a BMP with over {LONGEST >> 20} MiB of run lengths. Convert it to PNG")
    least = 0  # a skipped row needs no byte
  else:
    least = layout.stride * (layout.height - 1) + (layout.width * layout.bits + 7) // 8
  if len(data) < layout.start + least:
    raise DecodeError(
      f"not a complete image: {layout.width:,} x {layout.height:,} pixels, the size in its header, "
      f"need {layout.start + least:,} bytes or more, but the file has {len(data):,}"
    )


def _scale_channel(pixels: np.ndarray, mask: int) -> np.ndarray:
  """Returns round(v * 255 / (2^n - 1)) for the n bits of a mask, uint8 in the shape of `pixels`."""
  shift, top = (mask & -mask).bit_length() - 1, mask // (mask & -mask)
  values = pixels >> pixels.dtype.type(shift) & pixels.dtype.type(top)
  if top == 255:
    return values
  if top < 2**16:
    table = (np.arange(top + 1, dtype=np.uint32) * 510 + top) // (2 * top)
    return table.astype(np.uint8)[values]
  return (values.astype(np.uint64) * 510 + top) // (2 * top)


def _decode_run_lengths(data: bytes, height: int, width: int, bits: int) -> np.ndarray:
  """Decodes RLE8 or RLE4 to the palette index of each pixel, with the bottom row first. Skipped pixels have index 0."""
  image = np.zeros((height, width), np.uint8)
  row = column = at = 0
  while True:
    if at + 2 > len(data):
      raise DecodeError("not a complete image: a BMP with run lengths that have no end")
    count, value = data[at], data[at + 1]
    at += 2
    if not count and value == 1:
      return image
    if not count and value == 0:
      row, column = row + 1, 0
      continue
    if not count and value == 2:
      across, down = data[at : at + 2].ljust(2, b"\0")
      row, column, at = row + down, column + across, at + 2
      continue
    if count:
      numbers = value if bits == 8 else np.resize((value >> 4, value & 15), count)
    else:
      count, size = value, (value * bits + 7) // 8
      stored = np.frombuffer(data[at : at + size], np.uint8)
      at += size + size % 2
      numbers = stored if bits == 8 else np.stack([stored >> 4, stored & 15], -1).ravel()[:count]
      if len(numbers) < count:
        raise DecodeError("not a complete image: a BMP with truncated run lengths")
    if row >= height or column + count > width:
      raise DecodeError("a BMP with a run of pixels that goes beyond its row")
    image[row, column : column + count] = numbers
    column += count
