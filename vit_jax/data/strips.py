"""The compressed strips or tiles of a TIFF page, and checks that each of them is complete.

libtiff stops as soon as a strip has given enough bytes. It does not read the checksums behind them, and it shortens a
run that is too long. The checks here read each strip to its end.
"""

import lzma
import zlib
from collections.abc import Iterator
from struct import error as StructError
from typing import NamedTuple

import numpy as np

from vit_jax.data import ccitt, jpeg
from vit_jax.data.errors import DecodeError
from vit_jax.schema import amount

NONE, LZW, JPEG, DEFLATE, OLD_DEFLATE, PACKBITS, LZMA, ZSTD = 1, 5, 7, 8, 32946, 32773, 34925, 50000
FAX = (ccitt.RUNS, ccitt.GROUP3, ccitt.GROUP4)  # values of the tag Compression, as those above

_LZMA_MEMORY = 2**27  # bytes; the highest preset of xz needs 65 MiB
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class Strips(NamedTuple):
  """The strips or tiles of a page.

  Attributes:
    compression: value of the tag Compression.
    offsets: int64 [N], the position of each strip in the file.
    sizes: int64 [N], the number of compressed bytes of each strip.
    needed: int64 [N], the number of bytes of each strip without compression.
    whole: number of bytes of a strip with all rows. The last strip of a page needs fewer.
    columns: number of strips or tiles side by side.
    across: pixels in a row of a strip.
    down: rows of a strip with all rows.
    options: value of the tag T4Options.
    is_reversed: the first pixel of a byte is in the low bit.
    tables: a JPEG without an image, with the tables of all strips; b"" if each strip has its own.
  """

  compression: int
  offsets: np.ndarray
  sizes: np.ndarray
  needed: np.ndarray
  whole: int
  columns: int
  across: int
  down: int
  options: int
  is_reversed: bool
  tables: bytes = b""

  def read(self, data: bytes) -> Iterator[bytes]:
    """Yields the compressed bytes of each strip, with the first bit in the high bit of a byte."""
    for offset, size in zip(self.offsets.tolist(), self.sizes.tolist(), strict=True):
      strip = data[offset : offset + size]
      yield strip.translate(_REVERSED) if self.is_reversed else strip

  def check(self, data: bytes) -> None:
    """Raises DecodeError for a strip with a wrong checksum, without an end, or with another length than its rows.

    Args:
      data: the bytes of the file.
    """
    check = self._check_jpeg if self.compression == JPEG else _CHECKS.get(self.compression)
    if check is None:
      return
    for number, (strip, needed) in enumerate(zip(self.read(data), self.needed.tolist(), strict=True)):
      if reason := check(strip, needed, self.whole):
        raise DecodeError(f"not a complete image; strip or tile {number} of a TIFF {reason}")

  def _check_jpeg(self, strip, needed, whole):
    """Returns what is wrong with a strip, or None, by decoding it as a file."""
    file = self.tables[:-2] + strip[2:] if self.tables else strip  # without an end and a beginning in the middle
    try:
      jpeg.read(file).decode(file)
    except DecodeError as error:
      return f"is damaged: {str(error).removeprefix('not a complete image; ')}"
    except StructError:
      return "is cut off"
    return None

  def decode_fax(self, data: bytes, height: int, width: int) -> np.ndarray:
    """Decodes strips of fax codes.

    Args:
      data: the bytes of the file.
      height: rows of the image.
      width: pixels in a row of the image.

    Returns:
      bool [height, width], the bits as they are coded.

    Raises:
      DecodeError: a row is damaged or missing.
    """
    bits = np.empty((height, width), bool)
    row = self.whole // self.down  # bytes
    for number, (strip, needed) in enumerate(zip(self.read(data), self.needed.tolist(), strict=True)):
      top, left = number // self.columns * self.down, number % self.columns * self.across
      part = ccitt.decode(strip, needed // row, self.across, self.compression, self.options)
      bits[top : top + self.down, left : left + self.across] = part[: height - top, : width - left]
    return bits


def _limit(whole):
  """Returns the number of bytes after which a strip is too long. Some programs store more rows than a strip has."""
  return 2 * whole + 2**16


def _check_deflate(strip, needed, whole):
  """Returns what is wrong with a strip, or None. zlib compares its Adler-32 checksum."""
  try:
    return _check_stream(zlib.decompressobj(), strip, needed, whole)
  except zlib.error as error:
    return f"is damaged: {error}"


def _check_lzma(strip, needed, whole):
  """Returns what is wrong with a strip, or None. liblzma compares all checksums."""
  try:
    return _check_stream(lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY), strip, needed, whole)
  except lzma.LZMAError as error:
    return f"is damaged: {error}"


def _check_stream(stream, strip, needed, whole):
  """Returns what is wrong with a strip, or None, by a decompressor that has the interface of those of Python."""
  length = len(stream.decompress(strip, _limit(whole)))
  if length >= _limit(whole):
    return f"has more than {amount(needed, 'byte')}"
  if not stream.eof:
    return "has no end"
  return f"has {length:,} of {amount(needed, 'byte')}" if length < needed else None


def _check_zstd(strip, needed, whole):
  """Returns what is wrong with a strip, or None. Zstandard compares the checksum of a frame that has one."""
  import pyarrow  # 0.3 s, which most runs do not need here

  try:
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(strip), "zstd") as stream:
      length = len(stream.read(_limit(whole)))
  except OSError as error:
    return f"is damaged: {error}"
  if length >= _limit(whole):
    return f"has more than {amount(needed, 'byte')}"
  return f"has {length:,} of {amount(needed, 'byte')}" if length < needed else None


def _check_packbits(strip, needed, whole):
  """Returns what is wrong with a strip, or None. A run must end where the rows end."""
  at = length = 0
  while at < len(strip) and not (length == needed and _is_padding(strip, at)):
    head = strip[at]
    at += head + 2 if head < 128 else 2 if head > 128 else 1
    length += head + 1 if head < 128 else 257 - head if head > 128 else 0
    if length > whole:
      break
  if at > len(strip) or length < needed:
    return f"ends after {length:,} of {amount(needed, 'byte')}"
  return f"has {length:,} or more bytes instead of {needed:,}" if length not in (needed, whole) else None


def _is_padding(strip, at):
  """Returns whether only zeros and empty runs are left."""
  return not strip[at:].strip(b"\0\x80")


# By compression. The functions take the strip, and the bytes that its rows and a whole strip need.
_CHECKS = {
  DEFLATE: _check_deflate,
  OLD_DEFLATE: _check_deflate,
  LZMA: _check_lzma,
  ZSTD: _check_zstd,
  PACKBITS: _check_packbits,
}
