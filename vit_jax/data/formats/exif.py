"""Directories of tags in TIFF files and EXIF (TIFF 6.0, section 2), and the orientation in them."""

import struct
from typing import Literal, NamedTuple

import numpy as np

from vit_jax.data.formats.errors import DecodeError

ENTRIES = 4096  # more than any real file has
ORDERS: dict[bytes, Literal["<", ">"]] = {b"II*\0": "<", b"MM\0*": ">"}  # byte order by the first bytes of a file
ORIENTATION = 0x0112  # number of the tag
_KINDS = {1: "B", 3: "H", 4: "I"}  # types of values: bytes, shorts, longs
_BYTES = (1, 2, 6, 7)  # types with values of one byte


class TagEntry(NamedTuple):
  """The entry of a directory for one tag.

  Attributes:
    kind: type of the values.
    length: number of values.
    at: offset of four bytes, which contain the values or the offset of the values.
  """

  kind: int
  length: int
  at: int


class TagDirectory(NamedTuple):
  """The first directory of a file or of EXIF.

  Attributes:
    order: byte order, as in `struct`.
    entries: entries by tag. Only the first entry of a repeated tag is stored.
    repeated: whether a tag has more than one entry.
  """

  order: Literal["<", ">"]
  entries: dict[int, TagEntry]
  repeated: bool

  def values(self, data: bytes | memoryview, tag: int) -> np.ndarray:
    """Returns the whole numbers of a tag, int64 (N,).

    Args:
      data: content of the file.
      tag: number of a tag that the directory contains.

    Raises:
      DecodeError: if the values are not whole numbers, or are outside of the file.
    """
    entry = self.entries[tag]
    kind = np.dtype(_KINDS.get(entry.kind, "V")).newbyteorder(self.order)
    size = entry.length * kind.itemsize
    at = entry.at if size <= 4 else struct.unpack_from(f"{self.order}I", data, entry.at)[0]
    if kind.kind == "V" or not size or at + size > len(data):
      raise DecodeError(f"not a complete image: a TIFF of {len(data)} bytes with a directory that ends after them")
    return np.frombuffer(data, kind, entry.length, at).astype(np.int64)

  def content(self, data: bytes, tag: int) -> bytes:
    """Returns the bytes of a tag with values of one byte, or b"" if the tag or some of its bytes are missing.

    Args:
      data: content of the file.
      tag: number of the tag.
    """
    entry = self.entries.get(tag)
    if entry is None or entry.kind not in _BYTES:
      return b""
    at = entry.at if entry.length <= 4 else struct.unpack_from(f"{self.order}I", data, entry.at)[0]
    found = data[at : at + entry.length]
    return found if len(found) == entry.length else b""

  def orientation(self, data: bytes | memoryview) -> int:
    """Returns the EXIF orientation, 1 to 8, or 1 without a valid entry."""
    entry = self.entries.get(ORIENTATION)
    if entry is None or entry.length != 1 or entry.kind not in _KINDS:
      return 1
    value = int(self.values(data, ORIENTATION)[0])
    return value if 1 <= value <= 8 else 1


def read_directory(data: bytes | memoryview) -> TagDirectory | None:
  """Returns the first directory of a TIFF file or of EXIF, as far as it is complete, or None for other data."""
  order, entries, repeated = ORDERS.get(bytes(data[:4])), {}, False
  if order is None:
    return None
  try:
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, at)
    for first in range(at + 2, at + 2 + 12 * min(count, ENTRIES), 12):
      tag, kind, length, _ = struct.unpack_from(f"{order}HHI4s", data, first)
      repeated |= tag in entries
      entries.setdefault(tag, TagEntry(kind, length, first + 8))
  except struct.error:  # the directory is truncated
    pass
  return TagDirectory(order, entries, repeated)


def read_orientation(data: bytes | memoryview) -> int:
  """Returns the EXIF orientation of an image, 1 to 8, or 1 if it is damaged or has an undefined value.

  Args:
    data: EXIF data, with or without the header "Exif" that a JPEG contains.
  """
  if data[:6] == b"Exif\0\0":
    data = data[6:]
  found = read_directory(data)
  return found.orientation(data) if found else 1
