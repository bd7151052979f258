"""JPEG files (ITU-T T.81): their segments, and decoding of files with undamaged data."""

import re
from collections.abc import Sequence
from struct import pack, unpack_from
from typing import NamedTuple

import numpy as np
import simplejpeg

from vit_jax.data.formats import exif, opencv
from vit_jax.data.formats.errors import DecodeError
from vit_jax.schema import format_amount

BEGINNING = b"\xff\xd8\xff"
# More than any real file has. Segments and scans take time even without pixels.
SEGMENTS, SCANS = 10_000, 100

_SOF, _DHT, _JPG, _DAC = range(0xC0, 0xD0), 0xC4, 0xC8, 0xCC
_SOI, _EOI, _SOS, _APP0, _APP1, _APP14 = 0xD8, 0xD9, 0xDA, 0xE0, 0xE1, 0xEE
_HUFFMAN = {0xC0: 2, 0xC1: 2, 0xC2: 1}  # smallest number of bits of a block, by start-of-frame marker
_COLOURS = (1, 3, 4)  # numbers of channels: gray, colours (YCbCr or RGB), and printer colours (YCCK or CMYK)
# Valid values in Adobe's segment, by number of channels; libjpeg replaces others by the last one.
_TRANSFORMS = {3: (0, 1), 4: (0, 2)}
_MARKER = re.compile(rb"\xff([\x01-\xfe])")
_END_OF_SCAN = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")  # restart markers are part of the data
_SEQUENTIAL = bytes((0, 63, 0))  # end of the segment of a sequential scan
# Eight bytes of ones, which libjpeg reads after the last block. No code of a block consists of ones only.
_BEHIND = b"\xff\x00" * 8


class JpegFrame(NamedTuple):
  """The start-of-frame segment of a JPEG, which describes how the file is coded.

  Attributes:
    kind: marker of the segment.
    bits: number of bits of a sample.
    height: number of rows.
    width: number of pixels in a row.
    names: numbers of the components.
    blocks: number of blocks of 64 samples in all components together.
  """

  kind: int
  bits: int
  height: int
  width: int
  names: list[int]
  blocks: int

  @property
  def progressive(self) -> bool:
    """True if a scan may contain only some of the coefficients."""
    return self.kind == 0xC2


class JpegFile(NamedTuple):
  """A JPEG file.

  Attributes:
    height: number of rows as the file stores them.
    width: number of pixels in a row as the file stores them.
    memory: largest number of bytes of memory for decoding.
    least: smallest number of bytes in which a file can store this number of pixels.
    orientation: EXIF orientation, 1 to 8.
    scan: offset after the first marker of a scan, if one scan contains all coefficients. Otherwise None.
    regions: whether a box can be decoded alone, because one scan with one or three channels contains all data.
    patches: (offset, bytes) of replacements. They replace bytes that cause warnings of libjpeg but do not affect
      pixels.
    lenient: whether warnings about the coded data are ignored, as OpenCV and other libraries do.
  """

  height: int
  width: int
  memory: int
  least: int
  orientation: int
  scan: int | None
  regions: bool
  patches: tuple[tuple[int, bytes], ...]
  lenient: bool = False

  def decode(self, data: bytes) -> np.ndarray:
    """Decodes the whole file.

    Args:
      data: content of the file.

    Returns:
      uint8 (H, W, 3) RGB, as the file stores the pixels. Gray and CMYK are converted.

    Raises:
      DecodeError: if libjpeg reports an error, or a warning about the coded data. With `lenient`, only if rows are
        missing.
      MemoryError: if the process has too little memory.
    """
    if self.patches:
      data = _apply_patches(data, self.patches)
    try:
      return simplejpeg.decode_jpeg(data, "RGB")
    except RuntimeError as error:  # the only cause is a lack of memory for the decoder itself
      raise MemoryError from error
    except ValueError as error:
      text = str(error)
      if "memory" in text.lower():
        raise MemoryError(text) from error
      if self.lenient or "subsampling" in text:
        return self._decode_with_warnings(data)
      raise DecodeError(f"not a complete image: libjpeg reports: {text}") from None

  def _decode_with_warnings(self, data: bytes) -> np.ndarray:
    """Decodes a JPEG with OpenCV, which ignores warnings.

    OpenCV also supports sampling factors that TurboJPEG does not support, such as 4x2 and 3x1. If pixels are missing
    before the end marker, libjpeg paints them gray. Without an end marker, libjpeg waits for more bytes, and OpenCV
    does not return an image.
    """
    end = -1 if self.scan is None else data.find(b"\xff\xd9", self.scan)  # coded data do not contain this pair of bytes
    return opencv.decode(data if end < 0 else data[:end] + _BEHIND, self.memory)


def _apply_patches(data: bytes, patches: Sequence[tuple[int, bytes]]) -> bytes:
  changed = bytearray(data)
  for at, part in patches:
    changed[at : at + len(part)] = part
  return bytes(changed)


def read(data: bytes) -> JpegFile:
  """Reads the segments of a JPEG file.

  Args:
    data: content of the file.

  Returns:
    The properties that are needed for decoding.

  Raises:
    DecodeError: if the file ends within a segment, lacks bits of a coefficient, or has an unsupported format.
    struct.error: if the file ends within a segment.
  """
  found, at, turned, patches, adobe = None, 2, 0, [], None
  for _ in range(SEGMENTS):
    marker, at = _read_marker(data, at, _MARKER, patches)
    if marker == _SOS:
      break
    if marker in (_SOI, _EOI):
      raise DecodeError("not a complete image: a JPEG without image data")
    if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # these markers have no length
      continue
    if marker in _SOF and marker not in (_DHT, _JPG, _DAC):
      found = _read_frame(data, at, marker)
    elif marker == _APP1 and not turned and data[at + 2 : at + 8] == b"Exif\0\0":
      turned = exif.read_orientation(memoryview(data)[at + 2 : at + unpack_from(">H", data, at)[0]])
    elif marker == _APP0 and data[at + 2 : at + 7] == b"JFIF\0" and data[at + 7 : at + 8] != b"\1":
      patches.append((at + 7, b"\1"))  # a version that libjpeg does not support
    elif marker == _APP14 and data[at + 2 : at + 7] == b"Adobe":
      adobe = at + 13
    at += unpack_from(">H", data, at)[0]
  else:
    raise DecodeError(f"a JPEG of more than {SEGMENTS:,} segments")
  frame = _check_frame(found)
  channels = len(frame.names)
  if adobe is not None and channels in _TRANSFORMS and data[adobe] not in _TRANSFORMS[channels]:
    patches.append((adobe, pack("B", _TRANSFORMS[channels][-1])))
  pixels, least = frame.height * frame.width, frame.blocks * _HUFFMAN[frame.kind] // 8
  if not frame.progressive and data[at + 2 : at + 3] == bytes([channels]):
    _check_parameters(data, at, patches)
    memory = (6 if channels < 4 else 8) * pixels  # includes the copy of OpenCV, or the four channels
    return JpegFile(*(frame.height, frame.width, memory, least, turned or 1, at, channels < 4, tuple(patches)))
  _check_scans(data, at, frame, patches)
  output = (3 if channels < 4 else 7) * pixels
  memory = output + max(3 * pixels, 128 * frame.blocks)  # coefficients have 2 bytes
  return JpegFile(*(frame.height, frame.width, memory, least, turned or 1, None, False, tuple(patches)))


def _check_frame(frame: JpegFrame | None) -> JpegFrame:
  """Returns the frame. Raises DecodeError for a format that is not decoded exactly."""
  if frame is None:
    raise DecodeError("not a complete image: a JPEG without a size")
  if frame.kind not in _HUFFMAN:  # an arithmetic code has no minimum length and may contain its own end marker
    raise DecodeError(
      "a JPEG that is lossless or uses arithmetic coding. Save it again as a baseline or progressive JPEG"
    )
  if frame.bits != 8 or len(frame.names) not in _COLOURS:
    raise DecodeError(
      f"a JPEG of {format_amount(len(frame.names), 'channel')} with {frame.bits} bits. Allowed: 1, 3 or 4 "
      "channels with 8 bits. Convert it to PNG"
    )
  return frame


def _read_marker(
  data: bytes, at: int, pattern: re.Pattern[bytes], patches: list[tuple[int, bytes]] | None = None
) -> tuple[int, int]:
  """Returns the next marker, and the offset after it.

  libjpeg warns about other bytes before a marker and skips them. `patches` replace them by fill bytes.
  """
  match = pattern.search(data, at)
  if not match:
    raise DecodeError(f"not a complete image: {len(data)} bytes of a JPEG without an end")
  if patches is not None and match.start() != at:
    patches.append((at, b"\xff" * (match.start() - at)))
  return match[1][0], match.end()


def _read_frame(data: bytes, at: int, kind: int) -> JpegFrame:
  bits, height, width, count = unpack_from(">BHHB", data, at + 2)
  components = [unpack_from("BB", data, at + 8 + 3 * i) for i in range(count)]
  across, down = [factors >> 4 for _, factors in components], [factors & 15 for _, factors in components]
  if not count or not min(*across, *down):
    raise DecodeError("a JPEG with a header without components")
  blocks = sum(
    -(-width * x // (8 * max(across))) * -(-height * y // (8 * max(down))) for x, y in zip(across, down, strict=True)
  )
  return JpegFrame(kind, bits, height, width, [name for name, _ in components], blocks)


def _check_parameters(data: bytes, at: int, patches: list[tuple[int, bytes]]) -> None:
  """Patches the last bytes of the segment of a sequential scan, because some cameras store zeros there."""
  last = at + 3 + 2 * data[at + 2]
  if data[last : last + 3] != _SEQUENTIAL and len(data) >= last + 3:
    patches.append((last, _SEQUENTIAL))


def _check_scans(data: bytes, at: int, frame: JpegFrame, patches: list[tuple[int, bytes]]) -> None:
  """Checks that all scans exist before the end marker.

  A coefficient that is not in any scan is zero. If the last bits of a coefficient are missing, the file was truncated.

  Args:
    data: content of the file.
    at: offset after the first SOS marker.
    frame: frame of the file.
    patches: receives replacements of bytes that libjpeg warns about.

  Raises:
    DecodeError: if a component is missing or lacks bits of a coefficient, or if there are too many or invalid scans.
    struct.error: if the file ends within a segment.
  """
  missing: dict[int, list[int | None]] = {name: [None] * 64 for name in frame.names}  # bits of each coefficient
  for _ in range(SCANS):
    length, count = unpack_from(">HB", data, at)
    names = unpack_from(f"{2 * count}B", data, at + 3)[::2]
    first, last, bits = unpack_from("BBB", data, at + 3 + 2 * count)
    if not frame.progressive:
      _check_parameters(data, at, patches)
    span = slice(first, last + 1) if frame.progressive else slice(0, 64)
    for name in names:
      if name not in missing or last > 63:
        raise DecodeError("a JPEG with a scan of a component that is missing from its header")
      coefficients = missing[name][span]
      missing[name][span] = [bits & 15 if frame.progressive else 0] * len(coefficients)
    marker, at = _read_marker(data, at + length, _END_OF_SCAN)
    while marker not in (_SOS, _EOI):
      marker, at = _read_marker(data, at + unpack_from(">H", data, at)[0], _MARKER, patches)
    if marker == _EOI:
      break
  else:
    raise DecodeError(f"a JPEG of more than {SCANS} scans")
  if any(bits[0] is None or any(bits) for bits in missing.values()):
    raise DecodeError("not a complete image: a JPEG that ends before its last scan")
