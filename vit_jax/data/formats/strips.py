"""The compressed strips or tiles of a TIFF page, and checks that they are complete.

libtiff stops when a strip has returned enough bytes. It does not read the checksums after them, and it shortens runs
that are too long. The checks in this module read each strip to its end.
"""

import lzma
import zlib
from collections.abc import Iterator
from struct import error as StructError
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.formats import ccitt, jpeg
from vit_jax.data.formats.errors import DecodeError
from vit_jax.schema import format_amount

NONE, LZW, JPEG, DEFLATE, OLD_DEFLATE, PACKBITS, LZMA, ZSTD = 1, 5, 7, 8, 32946, 32773, 34925, 50000
FAX = (ccitt.RUNS, ccitt.GROUP3, ccitt.GROUP4)  # values of the tag Compression, like those above

_LZMA_MEMORY = 2**27  # in bytes; the highest preset of xz needs 65 MiB
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class Strips(NamedTuple):
  """The strips or tiles of a page.

  Attributes:
    compression: value of the tag Compression.
    offsets: position of each strip in the file, int64 (N,).
    sizes: number of compressed bytes of each strip, int64 (N,).
    needed: number of bytes of each strip without compression, int64 (N,).
    full_length: number of bytes of a strip with all rows. The last strip of a page may have fewer bytes.
    columns: number of strips or tiles in a row.
    across: number of pixels in a row of a strip.
    down: number of rows of a strip with all rows.
    options: value of the tag T4Options.
    is_reversed: whether the first pixel of a byte is in the low bit.
    tables: a JPEG that contains only the tables of all strips, without an image. b"" if each strip has its own tables.
  """

  compression: int
  offsets: np.ndarray
  sizes: np.ndarray
  needed: np.ndarray
  full_length: int
  columns: int
  across: int
  down: int
  options: int
  is_reversed: bool
  tables: bytes = b""

  def read(self, data: bytes) -> Iterator[bytes]:
    """Yields the compressed bytes of each strip. The first bit is in the high bit of a byte."""
    for offset, size in zip(self.offsets.tolist(), self.sizes.tolist(), strict=True):
      strip = data[offset : offset + size]
      yield strip.translate(_REVERSED) if self.is_reversed else strip

  def check(self, data: bytes) -> None:
    """Checks all strips.

    Args:
      data: content of the file.

    Raises:
      DecodeError: if a strip has a wrong checksum, no end, or a different length than its rows.
    """
    check = self._check_jpeg if self.compression == JPEG else _CHECKS.get(self.compression)
    if check is None:
      return
    for number, (strip, needed) in enumerate(zip(self.read(data), self.needed.tolist(), strict=True)):
      if reason := check(strip, needed, self.full_length):
        raise DecodeError(f"not a complete image: strip or tile {number} of a TIFF {reason}")

  def _check_jpeg(self, strip: bytes, needed: int, full_length: int) -> str | None:
    """Decodes a strip as a file. Returns a description of its damage, or None."""
    # Without an end marker and a start marker in the middle.
    file = self.tables[:-2] + strip[2:] if self.tables else strip
    try:
      photo = jpeg.read(file)
      if photo.width > self.across or photo.height > self.down:  # before memory is allocated for its pixels
        return f"has an image of {photo.width:,} x {photo.height:,} pixels, not {self.across:,} x {self.down:,}"
      photo.decode(file)
    except DecodeError as error:
      return f"is damaged: {str(error).removeprefix('not a complete image: ')}"
    except StructError:
      return "is cut off"
    return None

  def decode_fax(self, data: bytes, height: int, width: int) -> np.ndarray:
    """Decodes strips of fax codes.

    Args:
      data: content of the file.
      height: number of rows of the image.
      width: number of pixels in a row of the image.

    Returns:
      The bits as they are coded, bool (height, width).

    Raises:
      DecodeError: if a row is damaged or missing.
    """
    bits = np.empty((height, width), bool)
    row = self.full_length // self.down  # bytes of a row
    for number, (strip, needed) in enumerate(zip(self.read(data), self.needed.tolist(), strict=True)):
      top, left = number // self.columns * self.down, number % self.columns * self.across
      part = ccitt.decode(strip, needed // row, self.across, self.compression, self.options)
      bits[top : top + self.down, left : left + self.across] = part[: height - top, : width - left]
    return bits


def _compute_limit(full_length: int) -> int:
  """Returns the length from which a strip is too long.

  It is above the regular length, because some programs store extra rows.
  """
  return 2 * full_length + 2**16


def _check_deflate(strip: bytes, needed: int, full_length: int) -> str | None:
  """Returns a description of a strip's damage, or None. zlib compares the Adler-32 checksum."""
  try:
    return _check_stream(zlib.decompressobj(), strip, needed, full_length)
  except zlib.error as error:
    return f"is damaged: {error}"


def _check_lzma(strip: bytes, needed: int, full_length: int) -> str | None:
  """Returns a description of a strip's damage, or None. liblzma compares all checksums."""
  try:
    return _check_stream(lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY), strip, needed, full_length)
  except lzma.LZMAError as error:
    return f"is damaged: {error}"


def _check_stream(stream: Any, strip: bytes, needed: int, full_length: int) -> str | None:
  """Returns a description of a strip's damage, or None. `stream` is a decompressor with the interface of Python's."""
  length = len(stream.decompress(strip, _compute_limit(full_length)))
  if length >= _compute_limit(full_length):
    return f"has more than {format_amount(needed, 'byte')}"
  if not stream.eof:
    return "has no end"
  return f"has {length:,} of {format_amount(needed, 'byte')}" if length < needed else None


def _check_zstd(strip: bytes, needed: int, full_length: int) -> str | None:
  """Returns a description of a strip's damage, or None. Zstandard compares the checksum of a frame if it has one."""
  import pyarrow  # imported here because it takes 0.3 s and most runs do not need it

  try:
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(strip), "zstd") as stream:
      length = len(stream.read(_compute_limit(full_length)))
  except OSError as error:
    return f"is damaged: {error}"
  if length >= _compute_limit(full_length):
    return f"has more than {format_amount(needed, 'byte')}"
  return f"has {length:,} of {format_amount(needed, 'byte')}" if length < needed else None


def _check_packbits(strip: bytes, needed: int, full_length: int) -> str | None:
  """Returns a description of a strip's damage, or None. A run must end where the rows end."""
  at = length = 0
  while at < len(strip) and not (length == needed and _is_padding(strip, at)):
    head = strip[at]
    at += head + 2 if head < 128 else 2 if head > 128 else 1
    length += head + 1 if head < 128 else 257 - head if head > 128 else 0
    if length > full_length:
      break
  if at > len(strip) or length < needed:
    return f"ends after {length:,} of {format_amount(needed, 'byte')}"
  return f"has {length:,} or more bytes instead of {needed:,}" if length not in (needed, full_length) else None


def _is_padding(strip: bytes, at: int) -> bool:
  """Returns whether the remaining bytes are only zeros and empty runs."""
  return not strip[at:].strip(b"\0\x80")


# Functions by compression. Their arguments are the strip, the bytes that its rows need, and the bytes of a whole
# strip.
_CHECKS = {
  DEFLATE: _check_deflate,
  OLD_DEFLATE: _check_deflate,
  LZMA: _check_lzma,
  ZSTD: _check_zstd,
  PACKBITS: _check_packbits,
}
