"""Tests of PNGs of every type, depth and interlacing, with transparency and colour metadata, against arithmetic."""

import struct

import numpy as np
import pytest

from tests.image_files import decoded
from tests.made_images import CHANNELS, chunk, png, scaled
from vit_jax.data.formats.headers import DecodeError

DRAW = np.random.default_rng(0)
TYPES = [(colour, depth) for colour, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)),
                                                (6, (8, 16))) for depth in depths]  # fmt: skip
METADATA = {
  "none": b"",
  "gamma": chunk(b"gAMA", struct.pack(">I", 100_000)),
  "sRGB": chunk(b"sRGB", b"\0"),
  "primaries": chunk(b"cHRM", struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)),
  "cICP": chunk(b"cICP", b"\x09\x10\0\1"),
  "pixels that are not square": chunk(b"pHYs", struct.pack(">IIB", 1000, 2000, 1)),
}


def transparency(colour, depth, samples):
  """Returns chunks that make some pixels transparent."""
  if colour in (4, 6):
    return b""
  if colour == 3:
    return chunk(b"tRNS", DRAW.integers(0, 256, 1 << depth).astype(np.uint8).tobytes())
  return chunk(b"tRNS", samples[0, 0].astype(">u2").tobytes())


def background(colour):
  return chunk(b"bKGD", {0: b"\0\1", 4: b"\0\1", 2: b"\0\1" * 3, 6: b"\0\1" * 3, 3: b"\1"}[colour])


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "depth"), TYPES)
def test_every_png_has_the_pixels_that_its_samples_define(colour, depth, interlaced):
  palette = DRAW.integers(0, 256, (1 << min(depth, 8), 3))
  for shape in ((13, 17), (1, 1), (2, 5)):
    samples = DRAW.integers(0, 1 << depth, (*shape, CHANNELS[colour]))
    if colour == 3:
      expected = palette[samples[..., 0]]
    else:
      eight = samples >> 8 if depth == 16 else scaled(samples, depth).astype(int)
      expected = np.broadcast_to(eight[..., : 1 if colour in (0, 4) else 3], (*shape, 3))
    table = chunk(b"PLTE", palette.astype(np.uint8).tobytes()) if colour == 3 else b""
    for metadata in METADATA.values():
      for more in (b"", transparency(colour, depth, samples), background(colour)):
        data = png(samples, depth, colour, interlaced=interlaced, before=metadata + table + more)
        np.testing.assert_array_equal(decoded(data), expected)


def test_index_outside_the_palette_is_black():
  numbers, palette = DRAW.integers(0, 16, (9, 9, 1)), DRAW.integers(1, 256, (5, 3))
  image = decoded(png(numbers, 8, 3, before=chunk(b"PLTE", palette.astype(np.uint8).tobytes())))
  np.testing.assert_array_equal(image, np.where(numbers < 5, palette[np.minimum(numbers[..., 0], 4)], 0))


def test_indices_without_a_palette_are_refused():
  with pytest.raises(DecodeError):
    decoded(png(DRAW.integers(0, 16, (9, 9, 1)), 8, 3))


def test_orientation_with_a_wrong_checksum_is_refused():
  samples = DRAW.integers(0, 256, (6, 9, 3))
  turned = chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0" + bytes(4))
  np.testing.assert_array_equal(decoded(png(samples, 8, 2, before=turned), exif=True), np.rot90(samples, 3))
  flipped = turned[:-9] + bytes([turned[-9] ^ 1]) + turned[-8:]
  for exif in (False, True):
    with pytest.raises(DecodeError, match="not a complete image: the checksum of the chunk eXIf of a PNG is wrong"):
      decoded(png(samples, 8, 2, before=flipped), exif=exif)


def chunks(data):
  """Returns {name: offset of its checksum} of the chunks of a PNG."""
  result, at = {}, 8
  while at < len(data):
    length = int.from_bytes(data[at : at + 4], "big")
    result[data[at + 4 : at + 8].decode()] = at + 8 + length
    at += 12 + length
  return result


@pytest.mark.parametrize("animated", [False, True])
def test_wrong_checksum_of_a_critical_chunk_is_refused(animated):
  palette = chunk(b"PLTE", DRAW.integers(0, 256, (16, 3)).astype(np.uint8).tobytes())
  before = chunk(b"acTL", struct.pack(">II", 1, 0)) * animated + METADATA["gamma"] + palette + chunk(b"tRNS", b"\1")
  data = png(DRAW.integers(0, 16, (9, 9, 1)), 8, 3, before=before)
  whole, refused = decoded(data), set()
  for name, at in chunks(data).items():
    for bit in (0, 31):
      wrong = int.from_bytes(data[at : at + 4], "big") ^ 1 << bit
      flipped = data[:at] + wrong.to_bytes(4, "big") + data[at + 4 :]
      try:
        np.testing.assert_array_equal(decoded(flipped), whole)  # no pixel depends on the chunk
      except DecodeError as error:
        assert name != "IEND" or "the checksum of the chunk IEND of a PNG is wrong" in str(error)
        refused.add(name)
  assert refused == {"IHDR", "PLTE", "IDAT", "IEND"}  # critical chunks: their names begin with a capital letter
