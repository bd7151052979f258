"""What an image file says of itself, before anything is decoded: its size, and the memory that decoding takes."""

import re
from struct import error as StructError
from struct import unpack_from
from typing import NamedTuple, Protocol

import numpy as np

from vit_jax.data import apng, bmp, gif, tiff
from vit_jax.data.errors import DecodeError as DecodeError  # other modules import it from here


class Layout(Protocol):
  """The layout of the pixels of a file, for formats that OpenCV alone does not decode exactly."""

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels as the file stores them, uint8 [H, W, 3] RGB. Raises DecodeError for damaged files."""


class Header(NamedTuple):
  """The size of an image in pixels, and what decoding needs to know.

  Attributes:
    height: number of rows as the file stores them.
    width: pixels in a row as the file stores them.
    memory: bytes of memory that decoding takes at most.
    end: offset of the end marker of a JPEG that has Huffman codes, all in one scan. None for all other files.
    regions: a box of such a JPEG can be decoded alone, because it has one or three channels.
    orientation: how the stored pixels must be turned, 1 to 8 as EXIF counts.
    layout: decodes BMP, GIF, TIFF and animated PNG files. None for files that OpenCV decodes as they are.
  """

  height: int
  width: int
  memory: int
  end: int | None = None
  regions: bool = False
  orientation: int = 1
  layout: Layout | None = None


# More than any real file has: they cost time, and no pixels.
SEGMENTS, CHUNKS, SCANS = 10_000, 2**17, 100

_PIXEL = 6  # bytes: OpenCV copies what it has decoded once
_INFLATE = 1032  # bytes that deflate makes of one at the most: 258 of a length and a distance of one bit each
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
  """The header of a JPEG, PNG, GIF, BMP, WebP or TIFF file, whatever its name; DecodeError for others, and torn ones.

  Also an error is a file with fewer bytes than its pixels need: no whole JPEG has less than a bit for each block of 64
  (two, if it is not progressive), no PNG less than a 1032nd of its bytes.
  """
  if not data:
    raise DecodeError("the file is empty")
  try:
    header = _header(data)
  except StructError:
    raise DecodeError(f"not a complete image; its header is cut off after {len(data)} bytes") from None
  if min(header.height, header.width) < 1:
    raise DecodeError(f"not a complete image; {header.width} x {header.height} pixels")
  return header


def _header(data) -> Header:
  if data.startswith(b"\xff\xd8\xff"):
    return _jpeg(data)
  if data.startswith(_SIGNATURE):
    return _png(data)
  if data.startswith(gif.BEGINNINGS):
    screen = gif.read(data)
    return Header(screen.height, screen.width, screen.memory, layout=screen)
  if data.startswith(b"BM"):
    bitmap = bmp.read(data)
    return Header(bitmap.height, bitmap.width, bitmap.memory, layout=bitmap)
  if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
    return _webp(data)
  if data.startswith(tiff.BEGINNINGS):
    return _tiff(data)
  for at, beginning, name in _OTHERS:
    if data.startswith(beginning, at):
      raise DecodeError(f"a file in the format {name}, which is not supported. Convert it to PNG or JPEG")
  raise DecodeError(
    f"not a complete image; {len(data)} bytes that begin with {data[:8]!r}, where a JPEG, PNG, GIF, BMP, WebP or TIFF "
    "file begins otherwise"
  )


def _check_length(data, height, width, least):
  if len(data) < least:
    raise DecodeError(
      f"not a complete image; {width:,} x {height:,} pixels, as its header says, take {least:,} bytes or more, and "
      f"it has {len(data):,}"
    )


# JPEG (ITU T.81): segments that begin with a marker, then scans, each a segment and coded data.

_SOF, _DHT, _JPG, _DAC = range(0xC0, 0xD0), 0xC4, 0xC8, 0xCC
_SOI, _EOI, _SOS, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
_HUFFMAN = {0xC0: 2, 0xC1: 2, 0xC2: 1}  # by start of frame: bits that a block has at least
_COLOURS = (1, 3, 4)  # channels: gray, colours (YCbCr or RGB), colours of a printer (YCCK or CMYK)
_MARKER = re.compile(rb"\xff([\x01-\xfe])")  # whatever stands before it is skipped, as libjpeg does
_END_OF_SCAN = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")  # restart markers are part of the data


class _Frame(NamedTuple):
  """How a JPEG is coded: its start-of-frame segment."""

  kind: int
  bits: int  # of a sample
  height: int
  width: int
  names: list[int]  # of its components
  blocks: int  # of 64 samples, of all components

  @property
  def progressive(self):
    return self.kind == 0xC2


def _jpeg(data) -> Header:
  frame, at, turned = None, 2, 0
  for _ in range(SEGMENTS):
    marker, at = _marker(data, at, _MARKER)
    if marker == _SOS:
      break
    if marker in (_SOI, _EOI):
      raise DecodeError("not a complete image; a JPEG without image data")
    if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # these have no length
      continue
    if marker in _SOF and marker not in (_DHT, _JPG, _DAC):
      frame = _frame(data, at, marker)
    elif marker == _APP1 and not turned and data[at + 2 : at + 8] == b"Exif\0\0":
      turned = tiff.orientation(memoryview(data)[at + 2 : at + unpack_from(">H", data, at)[0]])
    at += unpack_from(">H", data, at)[0]
  else:
    raise DecodeError(f"a JPEG of more than {SEGMENTS:,} segments")
  if frame is None:
    raise DecodeError("not a complete image; a JPEG that does not say its size")
  if frame.kind not in _HUFFMAN:  # an arithmetic code has no least length, and may hold its own end marker
    raise DecodeError("a JPEG with an arithmetic code, or lossless; save it again as a usual one")
  if frame.bits != 8 or len(frame.names) not in _COLOURS:
    raise DecodeError(
      f"a JPEG of {len(frame.names)} channels with {frame.bits} bits; allowed: 1, 3 or 4 channels with 8 bits. "
      "Convert it to PNG"
    )
  _check_length(data, frame.height, frame.width, frame.blocks * _HUFFMAN[frame.kind] // 8)
  pixels = frame.height * frame.width
  if not frame.progressive and data[at + 2 : at + 3] == bytes([len(frame.names)]):
    end = _end(data, at)
    regions = end is not None and len(frame.names) < 4
    return Header(frame.height, frame.width, _PIXEL * pixels, end, regions, turned or 1)
  _check_scans(data, at, frame)
  memory = 3 * pixels + max(3 * pixels, 128 * frame.blocks)  # coefficients of 2 bytes
  return Header(frame.height, frame.width, memory, orientation=turned or 1)


def _end(data, at):
  """Where the first end marker behind `at` stands, None without one; as a pair its bytes stand in no coded data.

  As 16-bit words it is found in 19 us, where `bytes.find` takes 110 (of 90 kB).
  """
  ends = []
  for first in (at, at + 1):
    found = np.frombuffer(data, "<u2", (len(data) - first) // 2, first) == 0xD9FF
    if found.any():
      ends.append(first + 2 * int(found.argmax()))
  return min(ends, default=None)


def _marker(data, at, pattern):
  """The next marker, and where what follows it begins."""
  match = pattern.search(data, at)
  if not match:
    raise DecodeError(f"not a complete image; {len(data)} bytes of a JPEG without an end")
  return match[1][0], match.end()


def _frame(data, at, kind) -> _Frame:
  bits, height, width, count = unpack_from(">BHHB", data, at + 2)
  components = [unpack_from("BB", data, at + 8 + 3 * i) for i in range(count)]
  across, down = [factors >> 4 for _, factors in components], [factors & 15 for _, factors in components]
  if not count or not min(*across, *down):
    raise DecodeError("a JPEG whose header has no components")
  blocks = sum(
    -(-width * x // (8 * max(across))) * -(-height * y // (8 * max(down))) for x, y in zip(across, down, strict=True)
  )
  return _Frame(kind, bits, height, width, [name for name, _ in components], blocks)


def _check_scans(data, at, frame):
  """DecodeError unless all components have come to the last bit by the end marker; `at` is behind the first SOS.

  A coefficient that no scan has is zero; one that has begun and whose last bits are missing was cut off.
  """
  missing = {name: [None] * 64 for name in frame.names}  # bits of each coefficient
  for _ in range(SCANS):
    length, count = unpack_from(">HB", data, at)
    names = unpack_from(f"{2 * count}B", data, at + 3)[::2]
    first, last, bits = unpack_from("BBB", data, at + 3 + 2 * count)
    span = slice(first, last + 1) if frame.progressive else slice(0, 64)
    for name in names:
      if name not in missing or last > 63:
        raise DecodeError("a JPEG with a scan of what its header does not have")
      coefficients = missing[name][span]
      missing[name][span] = [bits & 15 if frame.progressive else 0] * len(coefficients)
    marker, at = _marker(data, at + length, _END_OF_SCAN)
    while marker not in (_SOS, _EOI):
      marker, at = _marker(data, at + unpack_from(">H", data, at)[0], _MARKER)
    if marker == _EOI:
      break
  else:
    raise DecodeError(f"a JPEG of more than {SCANS} scans")
  if any(bits[0] is None or any(bits) for bits in missing.values()):
    raise DecodeError("not a complete image; a JPEG that ends before its last scan")


# PNG (ISO 15948): chunks of a length, a name, so many bytes and a checksum.

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by type of colour


def _png(data) -> Header:
  _, name, width, height, depth, colour = unpack_from(">I4sIIBB", data, 8)
  if name != b"IHDR" or colour not in _CHANNELS:
    raise DecodeError("not a complete image; a PNG without its header")
  at, still, turned = 8, None, 1
  for _ in range(CHUNKS):
    length, name = unpack_from(">I4s", data, at)
    if name == apng.CHUNK:
      still = apng.Still(_PIXEL * height * width)
    elif name == b"eXIf":
      turned = tiff.orientation(memoryview(data)[at + 8 : at + 8 + length])
    at += 12 + length
    if at > len(data):
      raise DecodeError(f"not a complete image; {len(data)} bytes of a PNG, and a chunk that ends at {at:,}")
    if name == b"IEND":
      break
  else:
    raise DecodeError(f"a PNG of more than {CHUNKS:,} chunks")
  _check_length(data, height, width, height * (1 + -(-width * depth * _CHANNELS[colour] // 8)) // _INFLATE)
  return Header(height, width, _PIXEL * height * width, orientation=turned, layout=still)


# WebP and TIFF.


def _webp(data) -> Header:
  pixel, turned = 8, 1  # it may have alpha
  match data[12:16]:
    case b"VP8 ":
      width, height = (number & 0x3FFF for number in unpack_from("<HH", data, 26))
    case b"VP8L":
      (bits,) = unpack_from("<I", data, 21)
      width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    case b"VP8X":
      flags, *sides = unpack_from("<B3xHBHB", data, 20)
      width, height = (1 + low + (high << 16) for low, high in (sides[:2], sides[2:]))
      # OpenCV composes the frames of an animation in three images more, of up to 8 bytes a pixel.
      pixel = 32 if flags & 2 else pixel
      turned = _webp_orientation(data) if flags & 8 else 1
    case _:
      raise DecodeError("not a complete image; a WebP without its header")
  return Header(height, width, pixel * height * width, orientation=turned)


def _webp_orientation(data):
  """What its chunk of EXIF says."""
  at = 12
  for _ in range(CHUNKS):
    if at + 8 > len(data):
      break
    name, length = unpack_from("<4sI", data, at)
    if name == b"EXIF":
      return tiff.orientation(memoryview(data)[at + 8 : at + 8 + length])
    at += 8 + length + length % 2
  return 1


def _tiff(data) -> Header:
  page = tiff.page(data)
  _check_length(data, page.height, page.width, page.least)
  return Header(page.height, page.width, page.memory, orientation=page.orientation, layout=page)
