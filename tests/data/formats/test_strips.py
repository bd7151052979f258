"""Tests of TIFF strips with checksums or lengths that contradict their contents."""

import lzma
import zlib

import numpy as np
import pyarrow
import pytest

from tests.image_files import decoded, picture
from tests.made_images import tiff_file
from vit_jax.data.formats import headers
from vit_jax.data.formats.errors import DecodeError

HEIGHT, WIDTH = 25, 40
PIXELS = picture(HEIGHT, WIDTH)
DEFLATE, PACKBITS, LZMA, ZSTD = 8, 32773, 34925, 50000
MASK = 2**64 - 1
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh64(data):
  """Computes XXH64 with seed 0 from its specification.

  The length must be a multiple of eight bytes, and at least 32.
  """
  one, two, three, four, five = PRIMES

  def turned(value, by):
    value &= MASK
    return (value << by | value >> (64 - by)) & MASK

  def mixed(lane, word):
    return turned(lane + word * two, 31) * one & MASK

  words, lanes = np.frombuffer(data, "<u8").tolist(), [one + two & MASK, two, 0, -one & MASK]
  whole = len(words) // 4 * 4
  for i in range(whole):
    lanes[i % 4] = mixed(lanes[i % 4], words[i])
  value = sum(turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
  for lane in lanes:
    value = (value ^ mixed(0, lane)) * one + four & MASK
  value += len(data)
  for word in words[whole:]:
    value = turned(value ^ mixed(0, word), 27) * one + four & MASK
  for shift, prime in ((33, two), (29, three), (32, 1)):
    value = (value ^ (value & MASK) >> shift) * prime & MASK
  assert five  # only used for remainders shorter than eight bytes
  return value


def packbits(data, size=120):
  """Returns literal runs of PackBits. A row of the picture is one run."""
  return b"".join(bytes([len(run) - 1]) + run for run in (data[i : i + size] for i in range(0, len(data), size)))


def zstandard(data):
  """Returns a frame with a checksum: a descriptor flag, and half of XXH64 after the blocks (RFC 8878)."""
  frame = bytearray(pyarrow.compress(data, "zstd", asbytes=True))
  frame[4] |= 4
  return bytes(frame) + xxh64(data).to_bytes(8, "little")[:4]


PACK = {
  DEFLATE: zlib.compress,
  32946: zlib.compress,
  LZMA: lambda data: lzma.compress(data, check=lzma.CHECK_CRC64),
  ZSTD: zstandard,
  PACKBITS: packbits,
}


def made(compression, change=lambda strip: strip, rows=10):
  """Returns a TIFF with strips of `rows` rows. The second strip is changed."""
  pieces = [PACK[compression](PIXELS[top : top + rows].tobytes()) for top in range(0, HEIGHT, rows)]
  pieces[1] = change(pieces[1])
  entries = {256: (4, [WIDTH]), 257: (4, [HEIGHT]), 258: (3, [8] * 3), 259: (3, [compression]), 262: (3, [2]),
             277: (3, [3]), 278: (4, [rows])}  # fmt: skip
  return tiff_file(entries, pieces, (273, 279))


@pytest.mark.parametrize("compression", PACK)
def test_complete_strips_have_their_pixels(compression):
  for rows in (7, 10, 25):
    np.testing.assert_array_equal(
      decoded(made(compression, rows=rows) if rows < 25 else made_whole(compression)), PIXELS
    )


def made_whole(compression):
  """Returns a TIFF with a last strip as high as the others, with more rows than the image needs."""
  padded = np.concatenate([PIXELS, np.zeros((5, WIDTH, 3), np.uint8)])
  pieces = [PACK[compression](padded[top : top + 10].tobytes()) for top in range(0, 30, 10)]
  entries = {256: (4, [WIDTH]), 257: (4, [HEIGHT]), 258: (3, [8] * 3), 259: (3, [compression]), 262: (3, [2]),
             277: (3, [3]), 278: (4, [10])}  # fmt: skip
  return tiff_file(entries, pieces, (273, 279))


@pytest.mark.parametrize("compression", [DEFLATE, 32946, LZMA, ZSTD])
def test_flipped_bit_in_a_strip_with_a_checksum_is_refused(compression):
  whole, same = PACK[compression](PIXELS[10:20].tobytes()), 0
  for at in range(0, len(whole), 31):
    flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
    try:  # a flipped bit of an unused length may have no effect
      np.testing.assert_array_equal(decoded(made(compression, lambda _, strip=flipped: strip)), PIXELS)
      same += 1
    except DecodeError as error:
      assert "not a complete image: strip or tile 1 of a TIFF " in str(error)
  assert same <= 1


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_or_zero_filled_strip_is_refused(compression, share):
  for change in (
    lambda strip: strip[: int(share * len(strip))],
    lambda strip: strip[: int(share * len(strip))].ljust(len(strip), b"\0"),
  ):
    with pytest.raises(DecodeError, match=r"^not a complete image: strip or tile 1 of a TIFF "):
      decoded(made(compression, change))


BYTES = PIXELS[10:20].tobytes()  # of the changed strip


@pytest.mark.parametrize(
  ("compression", "strip", "reason"),
  [
    (DEFLATE, zlib.compress(BYTES)[:-4], "has no end"),
    (DEFLATE, zlib.compress(BYTES)[:-4] + b"abcd", "incorrect data check"),
    (DEFLATE, zlib.compress(BYTES[:-1]), "1,199 of 1,200 bytes"),
    (DEFLATE, zlib.compress(bytes(10**7)), "has more than 1,200 bytes"),
    (LZMA, PACK[LZMA](BYTES)[:-20], "has no end"),
    (LZMA, PACK[LZMA](BYTES[:-1]), "1,199 of 1,200 bytes"),
    (LZMA, PACK[LZMA](bytes(10**7)), "has more than 1,200 bytes"),
    (LZMA, lzma.compress(BYTES, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}]), "Memory usage limit"),
    (ZSTD, zstandard(BYTES)[:-1], "is damaged"),
    (ZSTD, zstandard(BYTES[:-8]), "1,192 of 1,200 bytes"),
    (ZSTD, pyarrow.compress(bytes(10**7), "zstd", asbytes=True), "has more than 1,200 bytes"),
    (PACKBITS, packbits(BYTES[:-1]), "ends after 1,199 of 1,200 bytes"),
    (PACKBITS, packbits(BYTES[:-40]) + b"\x7f" + BYTES[-40:], "ends after 1,288 of 1,200 bytes"),
    (PACKBITS, packbits(BYTES[:-40]) + b"\xb1\7", "has 1,240 or more bytes instead of 1,200"),
    (PACKBITS, packbits(BYTES + BYTES[:50]), "has 1,250 or more bytes instead of 1,200"),
    (PACKBITS, packbits(BYTES[:600]) + b"\7" + packbits(BYTES[601:]), "1,233 or more bytes instead of 1,200"),
  ],
)
def test_strip_with_a_length_that_contradicts_its_rows_is_refused(compression, strip, reason):
  with pytest.raises(DecodeError, match=f"not a complete image: strip or tile 1 of a TIFF .*{reason}"):
    decoded(made(compression, lambda _: strip))


@pytest.mark.parametrize(
  ("compression", "behind"),
  [
    (DEFLATE, b"\0"),
    (DEFLATE, b"abc"),
    (LZMA, bytes(4)),
    (PACKBITS, b"\0"),
    (PACKBITS, b"\x80\x80"),
    (PACKBITS, bytes(500)),
  ],
)
def test_padding_after_a_strip_is_ignored(compression, behind):
  np.testing.assert_array_equal(decoded(made(compression, lambda strip: strip + behind)), PIXELS)


def test_empty_runs_and_repeated_bytes_of_packbits_are_decoded():
  strip = b"".join(
    b"\x80" + bytes([1, *row[:2]]) + bytes([117]) + row[2:] for row in np.split(np.frombuffer(BYTES, np.uint8), 10)
    for row in [row.tobytes()]
  )  # fmt: skip
  np.testing.assert_array_equal(decoded(made(PACKBITS, lambda _: strip)), PIXELS)
  flat = tiff_file({256: (4, [128]), 257: (4, [2]), 258: (3, [8]), 259: (3, [PACKBITS]), 262: (3, [1])},
                   [b"\x81\x05\x81\x07"], (273, 279))  # fmt: skip
  assert decoded(flat)[:, :, 0].tolist() == [[5] * 128, [7] * 128]


def test_sizes_of_strips_are_known_from_the_header():
  strips = headers.read(made(DEFLATE)).layout.strips
  assert strips.needed.tolist() == [1200, 1200, 600]
  assert (strips.full_length, strips.across, strips.down, strips.columns) == (1200, 40, 10, 1)
