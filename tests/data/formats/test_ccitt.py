"""Fax codes against the encoder of libtiff and against codes by hand; strips that are damaged."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.image_files import decoded, encode
from tests.made_images import tiff_file
from vit_jax.data.formats import ccitt
from vit_jax.data.formats.errors import DecodeError

# Pillow's name, the value of the tag Compression, and values of the tag T4Options: in two dimensions, filled lines.
FORMS = [("tiff_ccitt", 2, 0), ("group3", 3, 0), ("group3", 3, 1), ("group3", 3, 4), ("group3", 3, 5), ("group4", 4, 0)]


def drawings():
  """Bilevel images of many run lengths, also longer than the longest code."""
  draw = np.random.default_rng(0)
  for i, width in enumerate([1, 7, 64, 131, 1000, 2623, 5500] * 2):
    shape = int(draw.integers(1, 30)), width
    yield draw.random(shape) < draw.random()
    yield np.repeat(draw.random((shape[0], -(-width // 16))) < 0.5, 16, 1)[:, :width]
    rows = np.broadcast_to(draw.random(width) < 0.02, shape) ^ (draw.random(shape) < 0.005)
    yield rows if i % 2 else ~rows


DRAWINGS = list(drawings())


def strip(image, form, options=0, **more):
  """The bytes of the only strip of a file that libtiff wrote, and the bits that it encodes."""
  tags = {278: len(image)} | ({292: options} if form == "group3" else {})
  data = encode(Image.fromarray(image), "TIFF", compression=form, tiffinfo=tags, **more)
  tags = Image.open(io.BytesIO(data)).tag_v2
  (offset,), (size,) = tags[273], tags[279]
  return data[offset : offset + size], image ^ (tags[262] == 0)


@pytest.mark.parametrize(("form", "compression", "options"), FORMS)
def test_b1_each_row_that_libtiff_encodes_is_decoded_exactly(form, compression, options):
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
  (2, 0): "0111101000 000000 1000111000 000000 10011",  # each row starts at a byte
  (3, 0): f"{END} {FIRST} {END} {SECOND} 000 {END} {THIRD}" + 6 * END,
  # Group 4: the first row is horizontal and then vertical 0; the second vertical +1, 0, 0; the third pass, vertical 0.
  (3, 1): f"{END}1 {FIRST} {END}0 011 1 1 {END}1 {THIRD}" + 6 * f"{END}1",
  (4, 0): f"001 0111 10 1 {'011 1 1'} {'0001 1'} {2 * END}",
}


@pytest.mark.parametrize(("compression", "options"), BY_HAND)
def test_b1_codes_by_hand_have_the_rows_of_the_recommendations(compression, options):
  data = packed(BY_HAND[compression, options])
  np.testing.assert_array_equal(ccitt.decode(data, 3, 8, compression, options), np.array(ROWS, bool))


def test_b1_ends_and_zeros_behind_the_last_row_are_optional():
  data = packed("001 0111 10 1 011 1 1 0001 1")
  for behind in (b"", bytes(1), bytes(1000)):
    np.testing.assert_array_equal(ccitt.decode(data + behind, 3, 8, ccitt.GROUP4), np.array(ROWS, bool))


@pytest.mark.parametrize(("form", "compression", "options"), FORMS)
def test_b1_a_strip_that_is_cut_anywhere_is_refused(form, compression, options):
  image = np.random.default_rng(1).random((20, 90)) < 0.4
  data, bits = strip(image, form, options)
  refused = 0
  for size in range(0, len(data), 5):
    for behind in (b"", bytes(len(data) - size)):  # a strip that is shorter, or whose tail is zeros
      try:
        np.testing.assert_array_equal(ccitt.decode(data[:size] + behind, 20, 90, compression, options), bits)
      except DecodeError as error:
        assert "not a complete image: in a fax-coded strip or tile of a TIFF, row " in str(error)
        refused += 1
  assert refused >= 2 * (len(data) // 5 - 1)  # the last bytes may hold only the end


@pytest.mark.parametrize(("form", "compression", "options"), FORMS)
def test_b1_fewer_or_more_rows_than_the_header_states_are_refused(form, compression, options):
  image = np.random.default_rng(1).random((20, 90)) < 0.4
  data, _ = strip(image, form, options)
  with pytest.raises(DecodeError, match="row 21 of 22 is damaged or missing"):
    ccitt.decode(data, 22, 90, compression, options)
  with pytest.raises(DecodeError, match="data behind the last row"):
    ccitt.decode(data, 18, 90, compression, options)
  with pytest.raises(DecodeError, match=r"row [12] of 20"):
    ccitt.decode(data, 20, 40, compression, options)


def test_b1_flipped_bits_are_refused_or_change_only_whole_rows():
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
  assert found > 0.9 * len(places)  # another run length may fit


def bilevel(compression, image, **options):
  """A TIFF of strips of seven rows, with the first pixel of a byte in its low bit if `reversed_bits`."""
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
def test_b1_strips_of_a_file_are_joined_in_either_order_of_bits(form, reversed_bits):
  image = np.random.default_rng(2).random((24, 61)) < 0.5
  expected = np.repeat(image[..., None] * np.uint8(255), 3, -1)
  np.testing.assert_array_equal(decoded(bilevel(form, image, reversed_bits=reversed_bits)), expected)
  inverted = bilevel(form, image, tags={262: (3, [0])})  # zero is white
  np.testing.assert_array_equal(decoded(inverted), 255 - expected)


@pytest.mark.parametrize("tags", [{258: (3, [8])}, {262: (3, [3]), 320: (3, [65535] * 6)}])
def test_b1_fax_codes_of_gray_or_of_a_palette_are_refused(tags):
  with pytest.raises(DecodeError, match="compression 4, which is for black and white only"):
    decoded(bilevel("group4", np.zeros((9, 9), bool), tags=tags))
