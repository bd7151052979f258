"""Difficult image files: decompression bombs, truncated files, false headers, unusual valid files and special files."""

import io
import os
import pathlib
import re
import socket
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image, PngImagePlugin

from tests.image_files import encode, picture
from tests.made_images import bmp, gif, gif_frame, tiff, tiff_file

PngImagePlugin.MAX_TEXT_CHUNK = 2**26  # Pillow must decode the pixels without its own limits
Image.MAX_IMAGE_PIXELS = None
EOI = b"\xff\xd9"
NUMBERS, GRAYS = np.arange(64).reshape(8, 8) % 16, np.arange(16)[:, None] * [17, 16, 15]


# PNG by hand.


def chunk(name: bytes, data: bytes) -> bytes:
  return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, data: bytes, depth=8, colour=0, interlaced=0, extra=b"") -> bytes:
  """Returns a PNG with image data that are already compressed."""
  header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
  parts = chunk(b"IHDR", header), extra, chunk(b"IDAT", data), chunk(b"IEND", b"")
  return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def black(width: int, height: int, depth=8) -> bytes:
  """Returns a black PNG of any size, compressed one mebibyte at a time."""
  left, compressor = height * (1 + -(-width * depth // 8)), zlib.compressobj(9)
  parts = []
  while left:
    parts.append(compressor.compress(bytes(min(left, 2**20))))
    left -= min(left, 2**20)
  return png(width, height, b"".join(parts) + compressor.flush(), depth)


def interlaced(image: np.ndarray) -> bytes:
  """Returns a PNG with the seven passes of Adam7."""
  rows = b""
  for top, left, down, across in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):  # fmt: skip  # noqa: E501
    rows += b"".join(b"\0" + row.tobytes() for row in image[top::down, left::across] if row.size)
  return png(image.shape[1], image.shape[0], zlib.compress(rows), colour=2, interlaced=1)


# JPEG by hand.


def jpeg(height=240, width=320, mode="RGB", **options) -> bytes:
  return encode(Image.fromarray(picture(height, width)).convert(mode), "JPEG", **options)


def claiming(data: bytes, height: int, width: int) -> bytes:
  """Returns the JPEG with another size in its header."""
  at = re.search(rb"\xff[\xc0\xc2]\x00", data).start()
  return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def cut(data: bytes, share: float, end=b"") -> bytes:
  return data[: int(share * len(data))] + end


def without_interval(data: bytes) -> bytes:
  """Returns a JPEG without the data between two restart markers."""
  first = re.search(rb"\xff\xd1", data).start()
  return data[:first] + data[data.index(b"\xff\xd2", first) :]


def zeros_inside(data: bytes) -> bytes:
  """Returns the bytes with zeros in the middle."""
  middle = len(data) // 2
  return data[:middle] + bytes(64) + data[middle + 64 :]


def last_scan(data: bytes) -> int:
  return data.rindex(b"\xff\xda")


def scans(count: int) -> bytes:
  """Returns a progressive JPEG with `count` more copies of its last scan."""
  data = jpeg(progressive=True)
  return data[:-2] + data[last_scan(data) : -2] * count + EOI


# TIFF by hand.


def one_strip(compression: str, change: Callable[[bytes], bytes]) -> bytes:
  """Returns a TIFF of one strip, which may be changed to bytes of any length."""
  image = Image.fromarray(picture(64, 96)).convert("1" if compression.startswith("group") else "RGB")
  data = encode(image, "TIFF", compression=compression, tiffinfo={278: 64})
  tags = Image.open(io.BytesIO(data)).tag_v2
  (start,), (size,) = tags[273], tags[279]
  numbers = {tag: np.atleast_1d(tags[tag]).tolist() for tag in (256, 257, 258, 259, 262, 277, 278) if tag in tags}
  entries = {tag: (3, values) for tag, values in numbers.items()}
  return tiff_file(entries, [change(data[start : start + size])], (273, 279))


def flipped(data: bytes) -> bytes:
  """Returns the bytes with one bit changed after two thirds of them."""
  at = 2 * len(data) // 3
  return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def zero_tail(data: bytes) -> bytes:
  """Returns the bytes with zeros instead of their second half, like an incomplete download."""
  return data[: len(data) // 2].ljust(len(data), b"\0")


# Contents that must be rejected, by name.
REFUSED: dict[str, Callable[[], bytes]] = {
  "png of 1 x 1,000,000": lambda: black(1, 1_000_000),
  "png of 4 x 60,000": lambda: black(4, 60_000),
  "png of 32,767 squared": lambda: black(32_767, 32_767, depth=1),
  "png of 0 x 8": lambda: black(0, 8),
  "png cut": lambda: cut(encode(picture()), 0.5),
  "png cut, with its end": lambda: cut(encode(picture()), 0.5) + chunk(b"IEND", b""),
  "png of fewer rows than it says": lambda: png(60, 900, zlib.compress(bytes(61 * 30))),
  "png of a sixteenth of the bytes it needs": lambda: png(10_000, 10_000, zlib.compress(bytes(10_001 * 600))),
  "png with a chunk of 2 GiB": lambda: encode(picture())[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + bytes(99),
  "png with a wrong checksum": lambda: encode(picture())[:-20] + bytes(8) + encode(picture())[-12:],
  "png without a stream": lambda: png(60, 80, bytes(999)),
  "png of 140,000 chunks": lambda: png(8, 8, zlib.compress(bytes(72)), extra=chunk(b"teSt", b"") * 140_000),
  "jpeg of 32,000 squared in 5.5 kB": lambda: claiming(jpeg(), 32_000, 32_000)[:5500] + EOI,
  "jpeg of 12,000 squared in 5.5 kB": lambda: claiming(jpeg(), 12_000, 12_000)[:5500] + EOI,
  "progressive jpeg of 12,000 squared": lambda: claiming(jpeg(progressive=True), 12_000, 12_000),
  "jpeg of 65,500 squared": lambda: claiming(jpeg(), 65_500, 65_500),
  "jpeg of twice the height": lambda: claiming(jpeg(), 480, 320),
  "jpeg of height 0": lambda: claiming(jpeg(), 0, 320),
  "jpeg of width 0": lambda: claiming(jpeg(), 240, 0),
  **{f"jpeg cut at {share:.0%}": lambda share=share: cut(jpeg(), share) for share in (0.01, 0.1, 0.3, 0.6, 0.9, 0.99)},
  **{
    f"jpeg cut at {share:.0%}, with its end": lambda share=share: cut(jpeg(), share, EOI) for share in (0.3, 0.6, 0.9)
  },
  "jpeg cut, with two ends": lambda: cut(jpeg(), 0.7, 2 * EOI),
  "jpeg cut, with its end and another behind": lambda: cut(jpeg(), 0.5, EOI) + jpeg(60, 80),
  "jpeg with an arithmetic code": lambda: claiming(jpeg(), 3000, 3000).replace(b"\xff\xc0", b"\xff\xc9"),
  "jpeg with restarts, cut, with its end": lambda: cut(jpeg(restart_marker_blocks=7), 0.7, EOI),
  "gray jpeg cut, with its end": lambda: cut(jpeg(mode="L"), 0.7, EOI),
  "cmyk jpeg cut, with its end": lambda: cut(jpeg(mode="CMYK"), 0.7, EOI),
  "progressive jpeg cut, with its end": lambda: cut(jpeg(progressive=True), 0.3, EOI),
  "progressive jpeg without its last scan": lambda: (data := jpeg(progressive=True))[: last_scan(data)] + EOI,
  "jpeg with bytes before its end": lambda: jpeg()[:-2] + b"abc" * 9 + EOI,
  "jpeg without one of its intervals": lambda: without_interval(jpeg(restart_marker_rows=1)),
  "progressive jpeg without one of its intervals": lambda: without_interval(
    jpeg(restart_marker_rows=1, progressive=True)
  ),
  "jpeg with a restart marker and no intervals": lambda: (
    cut(jpeg(), 0.6, b"\xff\xd3") + jpeg()[int(0.6 * len(jpeg())) :]
  ),
  "progressive jpeg with zeros inside": lambda: zeros_inside(jpeg(progressive=True)),
  "jpeg in a tiff without one of its intervals": lambda: one_strip(
    "jpeg", lambda strip: without_interval(jpeg(64, 96, restart_marker_rows=1))
  ),
  "jpeg without a scan": lambda: (data := jpeg())[: last_scan(data)] + EOI,
  "jpeg of which half is zeros": lambda: cut(jpeg(480, 640), 0.5, bytes(20_000)),
  "jpeg of 500 scans": lambda: scans(500),
  "jpeg of 20,000 segments": lambda: b"\xff\xd8" + b"\xff\xfe\x00\x02" * 20_000 + jpeg()[2:],
  "jpeg of marks and nothing else": lambda: b"\xff\xd8" + b"\xff" * 10**6,
  "gif of 65,535 squared": lambda: b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0xF0, 0, 0) + bytes(600),
  "bmp of 30,000 squared": lambda: (
    b"BM" + bytes(12) + struct.pack("<IiiHHI", 40, 30_000, -30_000, 1, 24, 0) + bytes(99)
  ),
  "bmp of 9,000 squared without rows": lambda: (
    b"BM" + bytes(8) + struct.pack("<IIiiHHI", 54, 40, 9000, 9000, 1, 24, 0) + bytes(99)
  ),
  "webp of 16,384 squared": lambda: encode(picture(), "WEBP", lossless=True)[:21] + b"\xff" * 3 + b"\x0f" + bytes(999),
  "webp cut": lambda: cut(encode(picture(), "WEBP"), 0.5),
  **{
    f"tiff cut at {share:.0%}": lambda share=share: cut(encode(picture(), "TIFF"), share) for share in (0.1, 0.5, 0.9)
  },
  "tiff of 64-bit offsets": lambda: encode(picture(), "TIFF", big_tiff=True),
  "tiff of fractions": lambda: encode(Image.fromarray(picture()[..., 0].astype(np.float32)), "TIFF"),
  **{
    f"{group} tiff with {what}": lambda group=group, change=change: one_strip(group, change)
    for group in ("group3", "group4")
    for what, change in (
      ("a third of its strip", lambda strip: strip[: len(strip) // 3]),
      ("a tail of zeros", zero_tail),
    )
  },
  "deflate tiff with a flipped bit": lambda: one_strip("tiff_adobe_deflate", flipped),
  "deflate tiff without its checksum": lambda: one_strip("tiff_adobe_deflate", lambda strip: strip[:-4]),
  "lzma tiff without its end": lambda: one_strip("lzma", lambda strip: strip[:-20]),
  "packbits tiff with a run beyond its rows": lambda: one_strip(
    "packbits", lambda strip: strip[:-40] + b"\x7f" + strip[-40:]
  ),
  "jpeg of 12 bits": lambda: (data := jpeg())[: (at := data.index(b"\xff\xc0") + 4)] + b"\x0c" + data[at + 1 :],
  "bmp whose masks share bits": lambda: bmp([bytes(32)] * 8, 8, 8, 32, compression=3, masks=(0xFF, 0xFF, 0xFF00)),
  "bmp with run lengths without an end": lambda: bmp(b"\4\1" * 2, 8, 8, 8, compression=1, palette=GRAYS),
  "gif without a palette": lambda: gif(8, 8, gif_frame(NUMBERS)),
  "gif cut": lambda: cut(gif(8, 8, gif_frame(NUMBERS), palette=GRAYS), 0.8),
  "tiff of other inks": lambda: tiff(np.zeros((8, 8, 4), int), 8, 5, tags={332: (3, [2])}),
  "openexr": lambda: b"v/1\x01\x02\x00\x00\x00" + bytes(300),
  "text": lambda: b"404 Not Found\n",
  "nothing": lambda: b"",
}

# Unusual but valid contents, which must decode to the pixels of Pillow.
WHOLE: dict[str, Callable[[], bytes]] = {
  "gray jpeg": lambda: jpeg(mode="L"),
  "cmyk jpeg": lambda: jpeg(mode="CMYK"),
  "progressive cmyk jpeg": lambda: jpeg(mode="CMYK", progressive=True),
  "jpeg with restarts": lambda: jpeg(restart_marker_blocks=3),
  "jpeg that ends in the gray of missing data": lambda: encode(np.full((90, 70, 3), 128, np.uint8), "JPEG"),
  "jpeg with bytes between its segments": lambda: jpeg()[:20] + b"abc" + jpeg()[20:],
  "jpeg with an unknown version": lambda: jpeg()[:11] + b"\7" + jpeg()[12:],
  "jpeg with another behind": lambda: jpeg() + jpeg(60, 80),
  "jpeg with 16 MB of comments": lambda: b"\xff\xd8" + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 250 + jpeg()[2:],
  "png": lambda: encode(picture()),
  "tiff": lambda: encode(picture(), "TIFF"),
  "group3 tiff": lambda: one_strip("group3", bytes),
  "group4 tiff": lambda: one_strip("group4", bytes),
  "gif": lambda: encode(picture(), "GIF"),
  "bmp": lambda: encode(picture(), "BMP"),
  "webp": lambda: encode(picture(), "WEBP"),
  "webp without loss": lambda: encode(picture(), "WEBP", lossless=True),
  "interlaced png": lambda: interlaced(picture(61, 83)),
  "gray png of one bit": lambda: encode(Image.fromarray(picture()).convert("1")),
  "gray png of sixteen bits": lambda: encode(Image.fromarray(picture()[..., 0].astype(np.uint16) * 257)),
  "png with a palette": lambda: encode(Image.fromarray(picture()).convert("P")),
  "png with 10 MB of text": lambda: png(
    8, 8, zlib.compress(bytes(72)), extra=chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(10**7)))
  ),
  "bmp with channels of five and six bits": lambda: bmp(
    [row.astype("<u2").tobytes() for row in np.arange(64).reshape(8, 8) * 0x11 * 61 % 2**16],
    *(8, 8, 16),
    compression=3,
    masks=(0xF800, 0x7E0, 0x1F),
  ),
  "gif with a background outside its palette": lambda: gif(8, 8, gif_frame(NUMBERS), palette=GRAYS, background=99),
  "transparent gif": lambda: gif(8, 8, gif_frame(NUMBERS, transparent=3), palette=GRAYS, background=9),
  "interlaced gif": lambda: gif(8, 8, gif_frame(NUMBERS, interlaced=True), palette=GRAYS),
  "tiff of 16 bits in planes": lambda: tiff(picture()[..., ::-1].astype(int) * 257, 16, 2, planes=True, deflated=True),
  "panorama": lambda: jpeg(60, 5_400),
  "png of 10,000 squared": lambda: black(10_000, 10_000, depth=1),
}


# Special or huge files: name -> function that creates the file at a path.


def _socket(path):
  here = os.getcwd()
  os.chdir(path.parent)  # the path of a socket has at most 107 characters
  with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(path.name)
  os.chdir(here)


def _giant(path):
  path.write_bytes(jpeg())
  os.truncate(path, 10**11)


def _unreadable(path):
  path.write_bytes(jpeg())
  path.chmod(0)
  if os.access(path, os.R_OK):  # root can read the file anyway
    path.unlink()
    path.symlink_to("/proc/self/mem/x")


NO_FILES: dict[str, Callable[[pathlib.Path], None]] = {
  "named pipe": os.mkfifo,
  "link to a named pipe": lambda path: (os.mkfifo(path.with_suffix("")), path.symlink_to(path.with_suffix(""))),
  "socket": _socket,
  "folder": os.mkdir,
  "device": lambda path: path.symlink_to("/dev/zero"),
  "link to nothing": lambda path: path.symlink_to("/nowhere"),
  "link to itself": lambda path: path.symlink_to(path),
  "100 GB with holes": _giant,
  "unreadable": _unreadable,
  "gone": lambda path: None,
}


def pillow(data: bytes) -> np.ndarray:
  """Returns the pixels of Pillow, with the upper eight bits of 16-bit values."""
  image = Image.open(io.BytesIO(data))
  if image.mode.startswith("I"):
    return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=-1)
  return np.asarray(image.convert("RGB"))
