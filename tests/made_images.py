"""Image files written from the specifications of their formats, and the pixels that the specifications define.

Each writer takes the stored samples. A test computes the right pixels by arithmetic and needs no decoder.
"""

import struct
import zlib

import numpy as np


def pack_bits(samples: np.ndarray, bits: int) -> bytes:
  """Packs rows [H, N] of samples of 1, 2, 4 or 12 bits into bytes, with the first sample in the high bits.

  Each row is padded to whole bytes.
  """
  places = np.arange(bits - 1, -1, -1)
  return np.packbits((samples[..., None] >> places & 1).reshape(len(samples), -1).astype(np.uint8), axis=1).tobytes()


def scaled(samples: np.ndarray, bits: int) -> np.ndarray:
  """Computes round(v * 255 / (2^bits - 1)) in integers."""
  top = (1 << bits) - 1
  return (samples.astype(object) * 510 + top) // (2 * top)


# BMP.


def bmp(
  rows: list[bytes] | bytes,
  width: int,
  height: int,
  bits: int,
  *,
  header: int = 40,
  compression: int = 0,
  masks: tuple[int, ...] = (),
  palette: np.ndarray | None = None,
  colours: int | None = None,
  gap: bytes = b"",
) -> bytes:
  """Writes a BMP.

  Args:
    rows: packed rows in the order of the file, filled up to four bytes here, or compressed bytes.
    width: pixels in a row.
    height: number of rows, negative if the first one is the top row.
    bits: bits of a pixel.
    header: bytes of the second header: 12 and 16 to 64 for OS/2, or 40, 52, 56, 108, 124 for Windows.
    compression: 0 none, 1 RLE8, 2 RLE4, 3 masks, 6 masks with one for alpha.
    masks: masks of red, green, blue and optionally alpha.
    palette: [N, 3] RGB.
    colours: number of colours in the header if it differs from the palette's.
    gap: bytes before the pixels.
  """
  pixels = rows if isinstance(rows, bytes) else b"".join(row + bytes(-len(row) % 4) for row in rows)
  count = len(palette) if palette is not None and colours is None else colours or 0
  if header == 12:
    about = struct.pack("<IHHHH", 12, width, height, 1, bits)
  else:
    about = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(pixels), 2835, 2835, count, 0)
    about = (about + struct.pack(f"<{len(masks)}I", *masks)).ljust(header, b"\0") if header > 40 else about[:header]
  behind = struct.pack(f"<{len(masks)}I", *masks) if header == 40 else b""
  table = b""
  if palette is not None:
    table = b"".join(bytes(map(int, colour[::-1])) + (b"" if header == 12 else b"\0") for colour in palette)
  start = 14 + len(about) + len(behind) + len(table) + len(gap)
  return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + about + behind + table + gap + pixels


# GIF.


def lzw(numbers: np.ndarray, size: int) -> bytes:
  """Returns numbers in GIF's compression with codes of constant width. Clear codes prevent the table from growing."""
  codes, every = [], (1 << size) - 2
  for i in range(0, len(numbers), every):
    codes += [1 << size, *map(int, numbers[i : i + every])]
  codes.append((1 << size) + 1)
  value = sum(code << i * (size + 1) for i, code in enumerate(codes))
  data = value.to_bytes((len(codes) * (size + 1) + 7) // 8, "little")
  blocks = [data[i : i + 255] for i in range(0, len(data), 255)]
  return bytes([size]) + b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"


def _gif_palette(colours):
  """Returns (flags, bytes) of a colour table. Its number of colours is a power of two, at least two."""
  power = max(1, (len(colours) - 1).bit_length())
  return 0x80 | power - 1, np.asarray(colours, np.uint8).tobytes().ljust(3 << power, b"\0")


def gif_frame(numbers, top=0, left=0, *, own=None, interlaced=False, transparent=None, disposal=0) -> bytes:
  """Returns a frame of a GIF from numbers [H, W], optionally with its own palette."""
  height, width = numbers.shape
  flags, palette = (0, b"") if own is None else _gif_palette(own)
  control = b""
  if transparent is not None or disposal:
    packed = disposal << 2 | (transparent is not None)
    control = b"\x21\xf9\x04" + struct.pack("<BHB", packed, 10, transparent or 0) + b"\0"
  order = range(height)
  if interlaced:
    order = [row for first, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for row in range(first, height, step)]
  size = max(2, int(numbers.max()).bit_length())
  about = struct.pack("<BHHHHB", 0x2C, left, top, width, height, flags | 0x40 * interlaced)
  return control + about + palette + lzw(numbers[list(order)].ravel(), size)


def gif(width: int, height: int, *frames: bytes, palette=None, background=0, version=b"GIF89a") -> bytes:
  """Returns a GIF with a screen of this size."""
  flags, table = (0, b"") if palette is None else _gif_palette(palette)
  return version + struct.pack("<HHBBB", width, height, flags, background, 0) + table + b"".join(frames) + b";"


# PNG.

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PASSES = (0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)


def chunk(name: bytes, data: bytes) -> bytes:
  """Returns a chunk of a PNG."""
  return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_data(samples: np.ndarray, depth: int, interlaced: bool = False) -> bytes:
  """Returns the compressed image data of samples [H, W, C]."""
  passes = [samples[top::down, left::across] for top, left, down, across in _PASSES] if interlaced else [samples]
  rows = b""
  for part in passes:
    if part.size:
      for row in part.reshape(len(part), -1):
        rows += b"\0" + (row.astype(">u2").tobytes() if depth == 16 else pack_bits(row[None], depth))
  return zlib.compress(rows)


def png(samples: np.ndarray, depth: int, colour: int, *, interlaced=False, before=b"", behind=b"") -> bytes:
  """Returns a PNG of samples [H, W, C] with chunks before and after its image data."""
  height, width, _ = samples.shape
  header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
  data = chunk(b"IDAT", png_data(samples, depth, interlaced))
  return b"\x89PNG\r\n\x1a\n" + header + before + data + behind + chunk(b"IEND", b"")


def animation_control(number: int, width: int, height: int, blend: bool = False) -> bytes:
  """Returns the chunk before a frame of an animated PNG."""
  return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, width, height, 0, 0, 1, 10, 0, blend))


# TIFF.

_SIZES = {1: "B", 2: "B", 3: "H", 4: "I", 5: "I", 6: "b", 7: "B", 8: "h", 9: "i", 11: "f", 12: "d"}  # by type
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def tiff(
  samples: np.ndarray,
  bits: int,
  colours: int,
  order: str = "<",
  *,
  planes: bool = False,
  deflated: bool = False,
  differences: bool = False,
  reversed_bits: bool = False,
  rows: int | None = None,
  tile: tuple[int, int] | None = None,
  tags: dict[int, tuple[int, list]] | None = None,
) -> bytes:
  """Writes a TIFF of samples [H, W, C].

  Args:
    samples: integers.
    bits: bits of a sample.
    colours: PhotometricInterpretation: 0 zero is white, 1 zero is black, 2 RGB, 3 palette, 5 CMYK.
    order: byte order, "<" or ">".
    planes: each channel is stored separately.
    deflated: compressed with deflate.
    differences: samples are stored as differences from their left neighbour. Requires `deflated`.
    reversed_bits: the first pixel of a byte is in the low bits.
    rows: rows of a strip. The default is all rows.
    tile: (width, height) of tiles instead of strips.
    tags: additional or replaced entries: {tag: (type, values)}.
  """
  height, width, count = samples.shape
  across, down = tile or (width, rows or height)
  pieces = []
  for plane in np.split(samples, count, axis=2) if planes else [samples]:
    for top in range(0, height, down):
      for left in range(0, width, across):
        piece = plane[top : top + down, left : left + across]
        if tile:
          piece = np.pad(piece, ((0, down - piece.shape[0]), (0, across - piece.shape[1]), (0, 0)))
        if differences:
          piece = np.concatenate([piece[:, :1], piece[:, 1:] - piece[:, :-1]], axis=1) % (1 << bits)
        flat = piece.reshape(len(piece), -1)
        data = flat.astype(f"{order}u2").tobytes() if bits == 16 else pack_bits(flat, bits)
        data = data.translate(_REVERSED) if reversed_bits else data
        pieces.append(zlib.compress(data) if deflated else data)
  entries = {256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * count), 259: (3, [8 if deflated else 1]),
             262: (3, [colours]), 277: (3, [count]), 284: (3, [1 + planes]), 266: (3, [1 + reversed_bits]),
             317: (3, [1 + differences])}  # fmt: skip
  entries |= {322: (3, [across]), 323: (3, [down])} if tile else {278: (4, [down])}
  return tiff_file(entries | (tags or {}), pieces, (324, 325) if tile else (273, 279), order)


def tiff_file(entries: dict[int, tuple[int, list]], pieces: list[bytes], where: tuple[int, int], order="<") -> bytes:
  """Writes the directory, its values, and strips or tiles. `where` contains the tags of their offsets and sizes."""
  entries = entries | {where[0]: (4, [0] * len(pieces)), where[1]: (4, list(map(len, pieces)))}
  values = {tag: struct.pack(f"{order}{len(row)}{_SIZES[kind]}", *row) for tag, (kind, row) in entries.items()}
  start = at = 8 + 2 + 12 * len(entries) + 4
  places = {}
  for tag, value in values.items():
    if len(value) > 4:
      places[tag], at = at, at + len(value) + len(value) % 2
  offsets = []
  for piece in pieces:
    offsets.append(at)
    at += len(piece) + len(piece) % 2
  values[where[0]] = struct.pack(f"{order}{len(offsets)}I", *offsets)
  directory = b"".join(
    struct.pack(f"{order}HHI", tag, kind, len(row) // (2 if kind == 5 else 1))
    + (struct.pack(f"{order}I", places[tag]) if tag in places else values[tag].ljust(4, b"\0"))
    for tag, (kind, row) in sorted(entries.items())
  )
  body = b"".join(values[tag] + bytes(len(values[tag]) % 2) for tag in places)
  body += b"".join(piece + bytes(len(piece) % 2) for piece in pieces)
  head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8) + struct.pack(f"{order}H", len(entries))
  data = head + directory + bytes(4) + body
  assert start == len(head) + len(directory) + 4 and at == len(data)
  return data
