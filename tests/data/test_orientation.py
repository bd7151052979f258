"""Tests of images rotated by EXIF, against Pillow: whole, by boxes, and with damaged or misplaced EXIF."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.image_files import boxes, decoded, encode, picture, tagged
from tests.made_images import chunk, tiff
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
def test_orientation_matches_pillow_if_exif_is_applied(form, orientation):
  data = turned(form, orientation)
  expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
  np.testing.assert_array_equal(decoded(data, exif=True), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("orientation", [3, 6])
def test_image_is_unchanged_if_exif_is_not_applied(form, orientation):
  np.testing.assert_array_equal(decoded(turned(form, orientation)), decoded(turned(form, 1)))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_box_of_a_rotated_image_has_the_pixels_of_the_whole(form, orientation):
  data = turned(form, orientation, 201, 333)
  whole = decoded(data, exif=True)
  for box, pixels in boxes(data, exif=True):
    np.testing.assert_array_equal(pixels, whole[box])


def test_box_of_a_rotated_jpeg_is_decoded_without_the_rest(monkeypatch):
  data, regions = turned("JPEG", 6, 201, 333), []
  alone = decoding._decode_box
  monkeypatch.setattr(decoding, "_decode_box", lambda data, region: regions.append(region) or alone(data, region))
  monkeypatch.setattr(decoding, "decode", None)
  picture = decoding.LazyImage(data, decoding.check_image(data, 2**30, 2**30, exif=True), is_whole=True)
  if decoding.nvimgcodec is None:
    pytest.skip("there is no decoder of boxes")
  # Orientation 6: the first row of the file is the last column of the shown image.
  assert picture[10:50, 20:60].shape == (40, 40, 3)
  assert (regions[0].start, regions[0].end) == ((201 - 60, 10), (201 - 20, 50))


def test_memory_of_a_rotated_image_includes_a_second_copy():
  data = turned("PNG", 6)
  plain, upright = (decoding.check_image(data, 2**30, 2**30, exif).memory for exif in (False, True))
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
def test_damaged_exif_is_ignored(form, exif):
  options = {"lossless": True} if form == "WEBP" else {}
  data = encode(picture(), form, exif=exif, **options)
  np.testing.assert_array_equal(decoded(data, exif=True), decoded(encode(picture(), form, **options)))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_randomly_changed_exif_gives_a_valid_orientation(form):
  draw, data = np.random.default_rng(0), turned(form, 6)
  at, turns = data.rindex(b"MM\0*"), 0
  for _ in range(200):
    changed = bytearray(data)
    changed[at + draw.integers(26)] = draw.integers(256)
    if form == "PNG":  # with the checksum of the changed bytes
      changed = data.replace(chunk(b"eXIf", data[at : at + 26]), chunk(b"eXIf", bytes(changed[at : at + 26])))
    try:
      header = decoding.check_image(bytes(changed), 2**30, 2**30, exif=True)
    except decoding.DecodeError:
      continue
    turns += header.orientation != 1
    image = decoding.decode(bytes(changed), header)
    assert image.shape in ((60, 80, 3), (80, 60, 3))
  assert 50 < turns < 200


# Orientations that are ignored.

XMP = (
  b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
  b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)
SHAPES = pytest.mark.parametrize("shape", [(20, 30), (20, 20)], ids=["long", "square"])


def gray_tiff(shape, deflated, order="<", **tags):
  """Returns a gray TIFF with additional tags, and its pixels."""
  gray = np.random.default_rng(0).integers(0, 256, (*shape, 1))
  tags = {int(tag[1:]): value for tag, value in tags.items()}
  return tiff(gray, 8, 1, order, deflated=deflated, tags=tags), np.repeat(gray, 3, -1)


UNUSUAL = {
  "SBYTE": (6, [6]), "SSHORT": (8, [6]), "SLONG": (9, [6]), "FLOAT": (11, [6.0]), "DOUBLE": (12, [6.0]),
  "ASCII": (2, list(b"6\0")), "UNDEFINED": (7, [6]), "RATIONAL": (5, [6, 1]), "two SHORTs": (3, [6, 6]),
  "two LONGs": (4, [6, 6]), "0": (3, [0]), "9": (3, [9]),
}  # fmt: skip


@SHAPES
@pytest.mark.parametrize("exif", [False, True])
@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_orientation_of_an_unusual_type_or_value_never_rotates_a_tiff(name, order, deflated, exif, shape):
  data, expected = gray_tiff(shape, deflated, order, t274=UNUSUAL[name])
  np.testing.assert_array_equal(decoded(data, exif=exif), expected)


@SHAPES
@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_orientation_of_a_usual_type_rotates_a_tiff_if_exif_is_applied(kind, deflated, shape):
  data, expected = gray_tiff(shape, deflated, t274=(kind, [6]))
  np.testing.assert_array_equal(decoded(data), expected)
  np.testing.assert_array_equal(decoded(data, exif=True), np.rot90(expected, -1))


@SHAPES
@pytest.mark.parametrize("exif", [False, True])
@pytest.mark.parametrize("kind", [1, 2, 7])
def test_orientation_in_xmp_never_rotates_a_tiff(kind, exif, shape):
  data, expected = gray_tiff(shape, False, t700=(kind, list(XMP)))
  np.testing.assert_array_equal(decoded(data, exif=exif), expected)
  data, expected = gray_tiff(shape, True, t700=(kind, list(XMP)), t274=(3, [3]))
  np.testing.assert_array_equal(decoded(data, exif=exif), expected[::-1, ::-1] if exif else expected)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [False, True])
def test_orientation_in_xmp_rotates_no_other_format(form, exif):
  options = {"lossless": True} if form == "WEBP" else {}
  plain = encode(picture(), form, **options)
  if form == "PNG":
    text = chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)
    marked = plain[:33] + text + plain[33:]
  else:
    marked = encode(picture(), form, xmp=XMP, **options)
  assert ImageOps.exif_transpose(Image.open(io.BytesIO(marked))).size == (60, 80)  # Pillow rotates it
  np.testing.assert_array_equal(decoded(marked, exif=exif), decoded(plain))


@pytest.mark.parametrize("name", [b"tEXt", b"zTXt"])
def test_orientation_in_a_text_chunk_of_imagemagick_is_ignored(name):
  exif = Image.Exif()
  exif[0x0112] = 6
  body = exif.tobytes()
  text = b"\nexif\n%8d\n%s\n" % (len(body), body.hex().encode())
  key = b"Raw profile type exif\0"
  plain = encode(picture())
  marked = plain[:33] + chunk(name, key + (text if name == b"tEXt" else b"\0" + zlib.compress(text))) + plain[33:]
  assert ImageOps.exif_transpose(Image.open(io.BytesIO(marked))).size == (60, 80)  # Pillow rotates it
  for exif_counts in (False, True):
    np.testing.assert_array_equal(decoded(marked, exif=exif_counts), picture())


@pytest.mark.parametrize("place", ["before the image data", "behind them"])
def test_exif_of_a_png_may_precede_or_follow_the_image_data(place):
  exif = Image.Exif()
  exif[0x0112] = 6
  plain = encode(picture())
  at = 33 if place.startswith("before") else len(plain) - 12
  marked = plain[:at] + chunk(b"eXIf", exif.tobytes()[6:]) + plain[at:]
  np.testing.assert_array_equal(decoded(marked), picture())
  np.testing.assert_array_equal(decoded(marked, exif=True), np.rot90(picture(), -1))
