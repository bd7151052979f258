"""Images that EXIF calls turned, against Pillow: whole, by boxes, and with EXIF that is damaged."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.image_files import boxes, decoded, encode, picture, tagged
from vit_jax.data import decoding

FORMS = {
  "JPEG": {"quality": 95},
  "progressive JPEG": {"quality": 95, "progressive": True},
  "PNG": {},
  "WEBP": {},
  "TIFF": {},
  "packed TIFF": {"compression": "tiff_lzw"},
}


def turned(form, orientation, height=60, width=80):
  return tagged(picture(height, width), orientation, form.split()[-1], **FORMS[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_pillow_turns_it_where_exif_counts(form, orientation):
  data = turned(form, orientation)
  expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
  np.testing.assert_array_equal(decoded(data, exif=True), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("orientation", [3, 6])
def test_an_image_is_as_it_is_stored_where_exif_does_not_count(form, orientation):
  np.testing.assert_array_equal(decoded(turned(form, orientation)), decoded(turned(form, 1)))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_of_a_turned_image_has_the_pixels_of_the_whole(form, orientation):
  data = turned(form, orientation, 201, 333)
  whole = decoded(data, exif=True)
  for box, pixels in boxes(data, exif=True):
    np.testing.assert_array_equal(pixels, whole[box])


def test_of_a_turned_jpeg_a_box_is_decoded_alone(monkeypatch):
  data, regions = turned("JPEG", 6, 201, 333), []
  alone = decoding._box
  monkeypatch.setattr(decoding, "_box", lambda data, region: regions.append(region) or alone(data, region))
  monkeypatch.setattr(decoding, "decode", None)
  picture = decoding.Picture(data, decoding.check(data, 2**30, 2**30, exif=True))
  if decoding.nvimgcodec is None:
    pytest.skip("there is no decoder of boxes")
  # Orientation 6: the first row of the file is the last column that is shown.
  assert picture[10:50, 20:60].shape == (40, 40, 3)
  assert (regions[0].start, regions[0].end) == ((201 - 60, 10), (201 - 20, 50))


def test_the_room_for_a_turned_image_is_that_of_two():
  data = turned("PNG", 6)
  plain, upright = (decoding.check(data, 2**30, 2**30, exif).memory for exif in (False, True))
  assert upright == plain + 3 * 60 * 80


DAMAGED_EXIF = [
  b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\xff" * 200, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
  b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0",
  b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\xff\xf0\xff\xff\xff",
  b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0\x06\0\0\0",
  b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
]  # fmt: skip


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", DAMAGED_EXIF, ids=range(len(DAMAGED_EXIF)))
def test_damaged_exif_turns_nothing(form, exif):
  options = {"lossless": True} if form == "WEBP" else {}
  data = encode(picture(), form, exif=exif, **options)
  np.testing.assert_array_equal(decoded(data, exif=True), decoded(encode(picture(), form, **options)))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_exif_that_was_changed_at_random_turns_an_image_as_pillow_does_or_not_at_all(form):
  draw, data = np.random.default_rng(0), turned(form, 6)
  at, turns = data.rindex(b"MM\0*"), 0
  for _ in range(200):
    changed = bytearray(data)
    changed[at + draw.integers(26)] = draw.integers(256)
    try:
      header = decoding.check(bytes(changed), 2**30, 2**30, exif=True)
    except decoding.DecodeError:
      continue
    turns += header.orientation != 1
    if form != "PNG":  # whose checksum is another now
      image = decoding.decode(bytes(changed), header)
      assert image.shape in ((60, 80, 3), (80, 60, 3))
  assert 50 < turns < 200
