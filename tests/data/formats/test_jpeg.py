"""Tests of JPEG files with damaged data that libjpeg warns about, and of oddities that do not affect any pixel."""

import io
import re

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.image_files import boxes, decoded, encode, picture
from vit_jax.data import decoding
from vit_jax.data.formats import jpeg
from vit_jax.data.formats.errors import DecodeError

EOI = b"\xff\xd9"
IMAGE = picture(150, 200)


def plain(**options):
  return encode(IMAGE, "JPEG", quality=90, **options)


def scan(data):
  """Returns the offset of the first coded data."""
  at = data.index(b"\xff\xda") + 2
  return at + int.from_bytes(data[at : at + 2], "big")


def restarts(data):
  """Returns the offsets of restart markers."""
  return [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", data) if match.start() > scan(data)]


def without_interval():
  data = plain(restart_marker_rows=1)
  at = restarts(data)
  return data[: at[2]] + data[at[3] :]


def without_last_interval():
  data = plain(restart_marker_rows=1)
  return data[: restarts(data)[-1]] + EOI


def misplaced(data):
  middle = (scan(data) + len(data)) // 2
  return data[:middle] + b"\xff\xd3" + data[middle:]


def renumbered():
  data = bytearray(plain(restart_marker_rows=1))
  data[restarts(bytes(data))[4] + 1] = 0xD1
  return bytes(data)


def overwritten(data, part, size=60):
  at = scan(data) + int(part * (len(data) - scan(data)))
  return data[:at] + bytes(size) + data[at + size :]


def taller():
  """Returns a file that states fewer rows than its data contain."""
  data = bytearray(plain())
  at = data.index(b"\xff\xc0")
  data[at + 5 : at + 7] = (100).to_bytes(2, "big")
  return bytes(data)


DAMAGED = {
  "lost interval": (without_interval, "found marker 0xd3 instead of RST2"),
  "lost last interval": (without_last_interval, "premature end of data segment|found marker 0xd9"),
  "restart marker in a file without intervals": (lambda: misplaced(plain()), "premature end of data segment"),
  "restart marker in an interval": (lambda: misplaced(plain(restart_marker_rows=1)), "Corrupt JPEG data"),
  "restart marker with another number": (renumbered, "Corrupt JPEG data"),
  "end in the middle": (lambda: plain()[: len(plain()) // 2] + EOI, "premature end of data segment"),
  "end and more behind": (lambda: plain()[:4000] + EOI + plain()[4000:], "premature end of data segment"),
  "last blocks missing": (lambda: plain()[:-6] + EOI, "premature end of data segment"),
  "bytes before the end": (lambda: plain()[:-2] + b"abc" + EOI, "extraneous bytes before marker 0xd9"),
  "more rows than stated": (taller, "extraneous bytes before marker 0xd9"),
  "no end": (lambda: plain()[:-2], "Premature end of JPEG file"),
  "progressive with zeros": (lambda: overwritten(plain(progressive=True), 0.4), "Corrupt JPEG data"),
  "progressive without a part of its last scan": (
    lambda: plain(progressive=True)[:-40] + EOI,
    "premature end of data segment",
  ),
  "progressive with an interval lost": (
    lambda: (data := plain(progressive=True, restart_marker_rows=1))[: (at := restarts(data))[2]] + data[at[3] :],
    "Corrupt JPEG data: found marker",
  ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_jpeg_is_refused_as_a_whole_and_by_boxes(name):
  make, reason = DAMAGED[name]
  with pytest.raises(DecodeError, match=f"^not a complete image: libjpeg reports: .*({reason})"):
    decoded(make())
  assert all(pixels is None for _, pixels in boxes(make(), 5))


def test_box_of_a_checked_file_is_decoded_without_the_rest(monkeypatch):
  data = plain()
  image = decoding.LazyImage(data, decoding.check_image(data, 10**6, 10))
  assert not image.is_whole
  box = image[10:60, 20:90]
  assert image.is_whole
  monkeypatch.setattr(decoding, "decode", lambda *_: pytest.fail("the whole file is decoded again"))
  if decoding.nvimgcodec is None:
    pytest.skip("there is no decoder of boxes")
  np.testing.assert_array_equal(image[10:60, 20:90], box)
  np.testing.assert_array_equal(image[100:150, 20:90], decoded_before(data)[100:150, 20:90])


def decoded_before(data):
  return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


# Oddities that libjpeg warns about, or accepts although the specification forbids them.


def versioned(data):
  """Sets version 2 of JFIF, which libjpeg does not know."""
  assert data[6:12] == b"JFIF\0\1"
  return data[:11] + b"\2" + data[12:]


def transformed(data, value=7):
  """Replaces the JFIF segment by an Adobe segment with an unknown transform."""
  adobe = b"\xff\xee\0\x0eAdobe\0d\0\0\0\0" + bytes([value])
  return data[:2] + adobe + data[20:]


def parted(data):
  """Inserts other bytes and fill bytes between segments."""
  return data[:20] + b"ab\xff\0\xff\xff\xff" + data[20:]


def zeroed(data):
  """Writes zeros to the parameters that a sequential scan does not use."""
  return data[: scan(data) - 3] + bytes(3) + data[scan(data) :]


ODD = {"version": versioned, "transform": transformed, "bytes between segments": parted, "scan": zeroed}


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 5}], ids=str)
@pytest.mark.parametrize("name", ODD)
def test_jpeg_with_a_harmless_oddity_has_the_same_pixels(name, options):
  data = plain(**options)
  if name == "scan" and "progressive" in options:
    pytest.skip("a progressive scan uses its parameters")
  odd = ODD[name](data)
  assert jpeg.read(odd).patches and not jpeg.read(data).patches
  np.testing.assert_array_equal(decoded(odd), decoded(data))
  for box, pixels in boxes(odd, 10):
    np.testing.assert_array_equal(pixels, decoded(data)[box])


@pytest.mark.parametrize("name", ODD)
def test_damage_after_an_oddity_is_found(name):
  for make in (without_interval, lambda: plain()[:-2] + b"abc" + EOI):
    with pytest.raises(DecodeError, match="Corrupt JPEG data"):
      decoded(ODD[name](make()))


@pytest.mark.parametrize("value", [0, 2, 3])
def test_unknown_transform_of_four_channels_is_read_as_by_libjpeg(value):
  data = encode(Image.fromarray(IMAGE).convert("CMYK"), "JPEG", quality=95)
  at = data.index(b"Adobe") + 11
  odd = data[:at] + bytes([value]) + data[at + 1 :]
  np.testing.assert_array_equal(decoded(odd), decoded_before(odd))


def test_data_end_at_the_first_end_marker():
  data = plain()
  for behind in (b"", b"junk", data, b"x" + data):
    np.testing.assert_array_equal(decoded(data + behind), decoded(data))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
  "options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 2}], ids=str
)
def test_pixels_match_opencv(mode, options):
  data = encode(Image.fromarray(IMAGE).convert(mode), "JPEG", quality=93, **options)
  np.testing.assert_array_equal(decoded(data), decoded_before(data))


# Files with warnings that are ignored.


def lenient(data):
  return decoding.decode(data, decoding.check_image(data, 10**6, 10, lenient=True))


def test_lenient_decoding_ignores_extra_bytes_but_not_missing_rows():
  data = DAMAGED["bytes before the end"][0]()
  np.testing.assert_array_equal(lenient(data), decoded(plain()))
  np.testing.assert_array_equal(lenient(without_interval()), decoded_before(without_interval()))
  for name in ("end in the middle", "no end", "lost last interval"):
    with pytest.raises(DecodeError, match="not a complete image"):
      lenient(DAMAGED[name][0]())


def flat(factors, width, height):
  """Returns a hand-written JPEG of one colour with these sampling factors of the first channel.

  With the tables that Pillow writes, a block without coefficients is 00 1010 in the first channel. In the other
  channels it is 00 00.
  """
  head = bytearray(encode(np.full((height, width, 3), 128, np.uint8), "JPEG", subsampling=0))
  head = head[: scan(bytes(head))]
  head[head.index(b"\xff\xc0") + 11] = factors[0] << 4 | factors[1]
  units = -(-width // (8 * factors[0])) * -(-height // (8 * factors[1]))
  bits = ("001010" * (factors[0] * factors[1]) + "00000000") * units
  bits += "1" * (-len(bits) % 8)
  return bytes(head) + int(bits, 2).to_bytes(len(bits) // 8, "big") + EOI


@pytest.mark.parametrize("factors", [(1, 1), (2, 2), (3, 1), (1, 3), (4, 2), (2, 4), (3, 2)])
def test_all_sampling_factors_are_decoded_and_missing_rows_are_refused(factors):
  data = flat(factors, 300, 200)
  np.testing.assert_array_equal(decoded(data), np.full((200, 300, 3), 128, np.uint8))
  with pytest.raises(DecodeError, match="not a complete image"):
    decoded(data[: len(data) * 3 // 4] + EOI)


def test_file_with_a_flipped_bit_is_refused_or_keeps_its_shape():
  draw, refused = np.random.default_rng(0), 0
  data = plain(progressive=True)
  for _ in range(60):
    changed = bytearray(data)
    changed[draw.integers(scan(data), len(data))] ^= 1 << draw.integers(8)
    try:  # libjpeg cannot detect every flipped bit
      assert decoded(bytes(changed)).shape == IMAGE.shape
    except DecodeError as error:
      assert "\n" not in str(error)
      refused += 1
  assert refused > 10


def test_pixels_of_small_images_match_pillow():
  for size in range(1, 20):
    data = encode(picture(size, 21 - size, size), "JPEG", quality=60 + size, subsampling=size % 3)
    np.testing.assert_array_equal(decoded(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
