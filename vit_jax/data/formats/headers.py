"""Headers of image files: the size of an image and the memory for decoding it, which are known before decoding."""

import zlib
from struct import error as StructError
from struct import unpack_from
from typing import NamedTuple, Protocol

import numpy as np

from vit_jax.data.formats import apng, bmp, exif, gif, jpeg, tiff
from vit_jax.data.formats.errors import DecodeError as DecodeError  # other modules import it from here
from vit_jax.schema import format_amount


class PixelLayout(Protocol):
  """The layout of the pixels of a file, for formats that OpenCV alone does not decode exactly."""

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels as the file stores them, uint8 (H, W, 3) RGB. Raises DecodeError for damaged files."""


class Header(NamedTuple):
  """The size of an image and the properties that decoding depends on.

  Attributes:
    height: number of rows as the file stores them.
    width: number of pixels in a row as the file stores them.
    memory: largest number of bytes of memory for decoding.
    regions: whether the file is a JPEG with boxes that can be decoded separately.
    orientation: EXIF orientation of the stored pixels, 1 to 8.
    layout: decoder of JPEG, BMP, GIF and TIFF files, and of PNGs with an animation or a colour profile. None for other
      files, which OpenCV decodes exactly.
  """

  height: int
  width: int
  memory: int
  regions: bool = False
  orientation: int = 1
  layout: PixelLayout | None = None


CHUNKS = 2**17  # more than any real file has; chunks take time even without pixels

_PIXEL = 6  # in bytes; OpenCV copies the decoded pixels once
_INFLATE = 1032  # largest number of bytes from one byte of deflate: a length of 258 and a distance, with one bit each
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Offset and first bytes of formats that are not supported, to name them in the error.
_OTHERS = (
  (4, b"ftypavif", "AVIF"),
  (4, b"ftyphe", "HEIC"),
  (4, b"ftypmif1", "HEIC"),
  (4, b"ftyp", "MP4"),
  (4, b"jP  \r\n\x87\n", "JPEG 2000"),
  (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
  (4, b"JXL \r\n\x87\n", "JPEG XL"),
  (0, b"\xff\x0a", "JPEG XL"),
  (0, b"8BPS", "Photoshop"),
  (0, b"v/1\x01", "OpenEXR"),
  (0, b"#?RADIANCE", "Radiance HDR"),
  (0, b"\0\0\1\0", "icon"),
  (0, b"%PDF", "PDF"),
  (0, b"\x59\xa6\x6a\x95", "Sun raster"),
)


def read(data: bytes) -> Header:
  """Returns the header of a JPEG, PNG, GIF, BMP, WebP or TIFF file, independent of the file's name.

  A file with fewer bytes than its pixels need is an error. A JPEG needs at least one bit for each block of 64 samples,
  or two if it is not progressive. A PNG needs at least a 1032nd of its uncompressed bytes.

  Args:
    data: content of the file.

  Raises:
    DecodeError: if the file is damaged, incomplete, or has an unsupported format.
  """
  if not data:
    raise DecodeError("the file is empty")
  try:
    header = _read_header(data)
  except StructError:
    raise DecodeError(f"not a complete image: its header is cut off after {format_amount(len(data), 'byte')}") from None
  if min(header.height, header.width) < 1:
    raise DecodeError(f"not a complete image: its header specifies {header.width} x {header.height} pixels")
  return header


def _read_header(data: bytes) -> Header:
  if data.startswith(jpeg.BEGINNING):
    photo = jpeg.read(data)
    _check_length(data, photo.height, photo.width, photo.least)
    return Header(*photo[:3], photo.regions, photo.orientation, photo)
  if data.startswith(_SIGNATURE):
    return _read_png(data)
  if data.startswith(gif.BEGINNINGS):
    screen = gif.read(data)
    return Header(screen.height, screen.width, screen.memory, layout=screen)
  if data.startswith(b"BM"):
    bitmap = bmp.read(data)
    return Header(bitmap.height, bitmap.width, bitmap.memory, layout=bitmap)
  if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
    return _read_webp(data)
  if data.startswith(tiff.BEGINNINGS):
    return _read_tiff(data)
  for at, beginning, name in _OTHERS:
    if data.startswith(beginning, at):
      raise DecodeError(f"a file in the format {name}, which is not supported. Convert it to PNG or JPEG")
  raise DecodeError(
    f"not a complete image: {format_amount(len(data), 'byte')} beginning with {data[:8]!r}, which is not "
    f"the start of a JPEG, PNG, GIF, BMP, WebP or TIFF file"
  )


def _check_length(data: bytes, height: int, width: int, least: int) -> None:
  if len(data) < least:
    raise DecodeError(
      f"not a complete image: {width:,} x {height:,} pixels, the size in its header, need {least:,} bytes or "
      f"more, but the file has {len(data):,}"
    )


# PNG (ISO 15948): each chunk consists of its length, its name, its data and a checksum.

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type


def _read_png(data: bytes) -> Header:
  _, name, width, height, depth, colour = unpack_from(">I4sIIBB", data, 8)
  if name != b"IHDR" or colour not in _CHANNELS:
    raise DecodeError("not a complete image: a PNG without its header")
  at, still, turned = 8, None, 1
  for _ in range(CHUNKS):
    length, name = unpack_from(">I4s", data, at)
    if name in (apng.CHUNK, apng.PROFILE):
      still = apng.ApngImage(_PIXEL * height * width)
    elif name == b"eXIf":
      _check_chunk(data, at, length)
      turned = exif.read_orientation(memoryview(data)[at + 8 : at + 8 + length])
    at += 12 + length
    if at > len(data):
      raise DecodeError(f"not a complete image: a PNG of {len(data)} bytes with a chunk that ends at byte {at:,}")
    if name == b"IEND":
      _check_chunk(data, at - 12 - length, length)
      break
  else:
    raise DecodeError(f"a PNG of more than {CHUNKS:,} chunks")
  _check_length(data, height, width, height * (1 + -(-width * depth * _CHANNELS[colour] // 8)) // _INFLATE)
  return Header(height, width, _PIXEL * height * width, orientation=turned, layout=still)


def _check_chunk(data: bytes, at: int, length: int) -> None:
  """Raises DecodeError for a chunk with a wrong checksum. OpenCV checks IHDR, PLTE and IDAT."""
  if at + 12 + length > len(data):  # truncated, which is reported later
    return
  name, checksum = data[at + 4 : at + 8], unpack_from(">I", data, at + 8 + length)[0]
  if zlib.crc32(memoryview(data)[at + 4 : at + 8 + length]) != checksum:
    raise DecodeError(f"not a complete image: the checksum of the chunk {name.decode('latin-1')} of a PNG is wrong")


# WebP and TIFF.


def _read_webp(data: bytes) -> Header:
  pixel, turned = 8, 1  # the image may have alpha
  match data[12:16]:
    case b"VP8 ":
      width, height = (number & 0x3FFF for number in unpack_from("<HH", data, 26))
    case b"VP8L":
      (bits,) = unpack_from("<I", data, 21)
      width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    case b"VP8X":
      flags, *sides = unpack_from("<B3xHBHB", data, 20)
      width, height = (1 + low + (high << 16) for low, high in (sides[:2], sides[2:]))
      # OpenCV uses three additional images with up to 8 bytes per pixel to compose the frames of an animation.
      pixel = 32 if flags & 2 else pixel
      turned = _read_webp_orientation(data) if flags & 8 else 1
    case _:
      raise DecodeError("not a complete image: a WebP without its header")
  return Header(height, width, pixel * height * width, orientation=turned)


def _read_webp_orientation(data: bytes) -> int:
  """Returns the orientation in the EXIF chunk."""
  at = 12
  for _ in range(CHUNKS):
    if at + 8 > len(data):
      break
    name, length = unpack_from("<4sI", data, at)
    if name == b"EXIF":
      return exif.read_orientation(memoryview(data)[at + 8 : at + 8 + length])
    at += 8 + length + length % 2
  return 1


def _read_tiff(data: bytes) -> Header:
  page = tiff.read_page(data)
  _check_length(data, page.height, page.width, page.least)
  return Header(page.height, page.width, page.memory, orientation=page.orientation, layout=page)
