"""Tests of fax codes against the encoder of libtiff and hand-written codes. Damaged strips are refused."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.image_files import decoded, encode
from tests.made_images import tiff_file
from vit_jax.data.formats import ccitt
from vit_jax.data.formats.errors import DecodeError

# Pillow's name, the value of the tag Compression, and the value of the tag T4Options (1: two dimensions, 4: filled
# lines).
FORMS = [("tiff_ccitt", 2, 0), ("group3", 3, 0), ("group3", 3, 1), ("group3", 3, 4), ("group3", 3, 5), ("group4", 4, 0)]


def drawings():
  """Returns bilevel images with many run lengths, some longer than the longest code."""
  draw = np.random.default_rng(0)
  for i, width in enumerate([1, 7, 64, 131, 1000, 2623, 5500] * 2):
    shape = int(draw.integers(1, 30)), width
    yield draw.random(shape) < draw.random()
    yield np.repeat(draw.random((shape[0], -(-width // 16))) < 0.5, 16, 1)[:, :width]
    rows = np.broadcast_to(draw.random(width) < 0.02, shape) ^ (draw.random(shape) < 0.005)
    yield rows if i % 2 else ~rows


DRAWINGS = list(drawings())


def strip(image, form, options=0, **more):
  """Returns the bytes of the only strip of a file written by libtiff, and the bits that they encode."""
  tags = {278: len(image)} | ({292: options} if form == "group3" else {})
  data = encode(Image.fromarray(image), "TIFF", compression=form, tiffinfo=tags, **more)
  tags = Image.open(io.BytesIO(data)).tag_v2
  (offset,), (size,) = tags[273], tags[279]
  return data[offset : offset + size], image ^ (tags[262] == 0)


@pytest.mark.parametrize(("form", "compression", "options"), FORMS)
def test_rows_encoded_by_libtiff_are_decoded_exactly(form, compression, options):
  for image in DRAWINGS:
    data, bits = strip(image, form, options)
    np.testing.assert_array_equal(ccitt.decode(data, *image.shape, compression, options), bits)


def packed(bits):
  bits = bits.replace(" ", "")
  return int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")


END = "000000000001"
# Rows of eight pixels. Row 1: white 2, black 3, white 3. Row 2: white 3, black 2, white 3. Row 3: white.
ROWS = [[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0], [0] * 8]
FIRST, SECOND, THIRD = "0111 10 1000", "1000 11 1000", "10011"  # T.4, table 2
BY_HAND = {
  (2, 0): "0111101000 000000 1000111000 000000 10011",  # each row starts at a byte boundary
  (3, 0): f"{END} {FIRST} {END} {SECOND} 000 {END} {THIRD}" + 6 * END,
  # Group 4. Row 1: horizontal, then vertical 0. Row 2: vertical +1, 0, 0. Row 3: pass, then vertical 0.
  (3, 1): f"{END}1 {FIRST} {END}0 011 1 1 {END}1 {THIRD}" + 6 * f"{END}1",
  (4, 0): f"001 0111 10 1 {'011 1 1'} {'0001 1'} {2 * END}",
}


@pytest.mark.parametrize(("compression", "options"), BY_HAND)
def test_hand_written_codes_have_the_rows_of_the_recommendations(compression, options):
  data = packed(BY_HAND[compression, options])
  np.testing.assert_array_equal(ccitt.decode(data, 3, 8, compression, options), np.array(ROWS, bool))


def test_end_codes_and_zeros_after_the_last_row_are_optional():
  data = packed("001 0111 10 1 011 1 1 0001 1")
  for behind in (b"", bytes(1), bytes(1000)):
    np.testing.assert_array_equal(ccitt.decode(data + behind, 3, 8, ccitt.GROUP4), np.array(ROWS, bool))


@pytest.mark.parametrize(("form", "compression", "options"), FORMS)
def test_strip_truncated_anywhere_is_refused(form, compression, options):
  image = np.random.default_rng(1).random((20, 90)) < 0.4
  data, bits = strip(image, form, options)
  refused = 0
  for size in range(0, len(data), 5):
    for behind in (b"", bytes(len(data) - size)):  # a shorter strip, or a strip that ends in zeros
      try:
        np.testing.assert_array_equal(ccitt.decode(data[:size] + behind, 20, 90, compression, options), bits)
      except DecodeError as error:
        assert "not a complete image: in a fax-coded strip or tile of a TIFF, row " in str(error)
        refused += 1
  assert refused >= 2 * (len(data) // 5 - 1)  # the last bytes may contain only the end code


@pytest.mark.parametrize(("form", "compression", "options"), FORMS)
def test_row_count_that_differs_from_the_header_is_refused(form, compression, options):
  image = np.random.default_rng(1).random((20, 90)) < 0.4
  data, _ = strip(image, form, options)
  with pytest.raises(DecodeError, match="row 21 of 22 is damaged or missing"):
    ccitt.decode(data, 22, 90, compression, options)
  with pytest.raises(DecodeError, match="data behind the last row"):
    ccitt.decode(data, 18, 90, compression, options)
  with pytest.raises(DecodeError, match=r"row [12] of 20"):
    ccitt.decode(data, 20, 40, compression, options)


def test_most_flipped_bits_are_refused():
  image = np.random.default_rng(1).random((20, 90)) < 0.4
  data, _ = strip(image, "group4")
  found, places = 0, range(0, 8 * len(data) - 24, 11)
  for at in places:
    changed = bytearray(data)
    changed[at // 8] ^= 128 >> at % 8
    try:
      ccitt.decode(bytes(changed), 20, 90, ccitt.GROUP4)
    except DecodeError:
      found += 1
  assert found > 0.9 * len(places)  # the remaining flips may produce another valid run length


def bilevel(compression, image, **options):
  """Returns a TIFF with strips of seven rows. With `reversed_bits`, the first pixel of a byte is its lowest bit."""
  pieces = [strip(image[top : top + 7], compression)[0] for top in range(0, len(image), 7)]
  number = {form: number for form, number, _ in FORMS}[compression]
  if options.get("reversed_bits"):
    pieces = [
      np.packbits(np.unpackbits(np.frombuffer(piece, np.uint8), bitorder="little")).tobytes() for piece in pieces
    ]
  entries = {256: (4, [image.shape[1]]), 257: (4, [len(image)]), 258: (3, [1]), 259: (3, [number]), 262: (3, [1]),
             277: (3, [1]), 278: (4, [7]), 266: (3, [1 + options.get("reversed_bits", False)])}  # fmt: skip
  return tiff_file(entries | options.get("tags", {}), pieces, (273, 279))


@pytest.mark.parametrize("reversed_bits", [False, True])
@pytest.mark.parametrize("form", ["tiff_ccitt", "group3", "group4"])
def test_strips_of_a_file_are_joined_in_either_bit_order(form, reversed_bits):
  image = np.random.default_rng(2).random((24, 61)) < 0.5
  expected = np.repeat(image[..., None] * np.uint8(255), 3, -1)
  np.testing.assert_array_equal(decoded(bilevel(form, image, reversed_bits=reversed_bits)), expected)
  inverted = bilevel(form, image, tags={262: (3, [0])})  # 0 is white
  np.testing.assert_array_equal(decoded(inverted), 255 - expected)


@pytest.mark.parametrize("tags", [{258: (3, [8])}, {262: (3, [3]), 320: (3, [65535] * 6)}])
def test_fax_codes_of_gray_or_palette_images_are_refused(tags):
  with pytest.raises(DecodeError, match="compression 4, which is for black and white only"):
    decoded(bilevel("group4", np.zeros((9, 9), bool), tags=tags))
