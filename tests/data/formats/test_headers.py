"""Tests of image headers against Pillow, and of the smallest file size for the pixels that a header states."""

import io
import re
import time

import numpy as np
import pytest
from PIL import Image

from tests import hostile_images
from tests.image_files import encode, picture
from vit_jax.data.formats import headers


@pytest.mark.parametrize("name", [name for name in hostile_images.WHOLE if "10,000" not in name])
def test_size_matches_pillow(name):
  data = hostile_images.WHOLE[name]()
  assert headers.read(data)[:2] == Image.open(io.BytesIO(data)).size[::-1]


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}], ids=str)
def test_size_of_each_kind_of_webp_is_read(options):
  image = picture(301, 47)
  assert headers.read(encode(image, "WEBP", **options))[:2] == (301, 47)


def test_images_of_one_colour_are_large_enough_for_their_pixels():
  # One colour gives the fewest bytes that an encoder can write.
  image = Image.fromarray(np.full((800, 1200, 3), 77, np.uint8))
  for mode in ("L", "RGB", "CMYK"):
    for progressive in (False, True):
      data = encode(image.convert(mode), "JPEG", quality=1, optimize=True, progressive=progressive)
      assert headers.read(data)[:2] == (800, 1200)
  for mode in ("1", "L", "P", "RGB", "RGBA"):
    assert headers.read(encode(image.convert(mode), "PNG", compress_level=9))[:2] == (800, 1200)


@pytest.mark.parametrize(
  ("name", "promised"),
  [
    ("jpeg of 32,000 squared in 5.5 kB", "32,000 x 32,000 pixels.* need 6,000,000 bytes .*the file has 5,502"),
    ("progressive jpeg of 12,000 squared", "12,000 x 12,000 pixels"),
    ("png of a sixteenth of the bytes it needs", "10,000 x 10,000 pixels"),
  ],
)
def test_header_with_more_pixels_than_the_bytes_can_contain_is_an_error(name, promised):
  data = {**hostile_images.REFUSED, "progressive jpeg of 12,000 squared": lambda: hostile_images.claiming(
    hostile_images.jpeg(progressive=True), 12_000, 12_000)}[name]()  # fmt: skip
  with pytest.raises(headers.DecodeError, match=promised):
    headers.read(data)


@pytest.mark.parametrize("count", [100, 101])
def test_jpeg_may_have_at_most_100_scans(count):
  data = hostile_images.jpeg(progressive=True)
  own = len(re.findall(rb"\xff\xda", data))
  if count == 100:
    assert headers.read(hostile_images.scans(count - own)).height == 240
  else:
    with pytest.raises(headers.DecodeError, match="more than 100 scans"):
      headers.read(hostile_images.scans(count - own))


def test_memory_of_a_progressive_jpeg_includes_its_coefficients():
  plain, progressive = (
    headers.read(hostile_images.jpeg(160, 320, progressive=each, subsampling=0)).memory for each in (False, True)
  )
  assert plain == 2 * 3 * 160 * 320  # includes the copy that OpenCV makes
  assert progressive == (3 + 2 * 3) * 160 * 320


@pytest.mark.parametrize("name", [name for name in hostile_images.REFUSED if "32,767" not in name])
def test_hostile_header_is_read_or_refused_within_one_second(name):
  data = hostile_images.REFUSED[name]()
  start_time = time.process_time()
  try:
    header = headers.read(data)
    assert header.height > 0 and header.width > 0 and header.memory > 0
  except headers.DecodeError as error:
    assert len(str(error)) < 200
  assert time.process_time() - start_time < 1


def test_truncated_header_is_an_error():
  for form in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"):
    data = encode(picture(20, 30), form)
    for length in range(10):
      with pytest.raises(headers.DecodeError):
        headers.read(data[:length])


def test_truncated_extended_webp_is_an_error():
  sides = (29).to_bytes(3, "little") + (19).to_bytes(3, "little")  # minus one
  data = b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes([10, 0, 0, 0, 0x10, 0, 0, 0]) + sides
  assert headers.read(data)[:2] == (20, 30)
  for length in range(len(data)):
    with pytest.raises(headers.DecodeError):
      headers.read(data[:length])


def test_files_with_random_changes_are_refused_or_have_a_size():
  draw, refused = np.random.default_rng(0), 0
  for form, options in (
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("WEBP", {}),
    ("TIFF", {}),
  ):
    data = encode(picture(20, 30), form, **options)
    for _ in range(300):
      changed = bytearray(data)
      for at in draw.integers(0, min(len(data), 700), 3):
        changed[at] = draw.integers(256)
      try:
        headers.read(bytes(changed))
      except headers.DecodeError:
        refused += 1
  assert refused > 100


@pytest.mark.parametrize(
  ("change", "reason"),
  [
    ((4, b"\x0c"), "3 channels with 12 bits. Allowed: 1, 3 or 4 channels with 8 bits. Convert it to PNG"),
    ((9, b"\x02"), "2 channels with 8 bits"),
  ],
)
def test_jpeg_without_eight_bits_or_supported_channels_is_refused(change, reason):
  data = bytearray(hostile_images.jpeg())
  at = data.index(b"\xff\xc0") + change[0]
  data[at : at + 1] = change[1]
  with pytest.raises(headers.DecodeError, match=reason):
    headers.read(bytes(data))


@pytest.mark.parametrize(
  ("data", "name"),
  [
    (b"\0\0\0\x18ftypheic" + bytes(99), "HEIC"),
    (b"\0\0\0\x20ftypavif" + bytes(99), "AVIF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99), "JPEG 2000"),
    (b"\xff\x4f\xff\x51" + bytes(99), "JPEG 2000"),
    (hostile_images.REFUSED["openexr"](), "OpenEXR"),
    (encode(picture(), "ICO"), "icon"),
  ],
)
def test_unsupported_format_is_named(data, name):
  with pytest.raises(headers.DecodeError, match=f"in the format {name}, which is not supported. Convert it to PNG"):
    headers.read(data)
