"""Tests of the conversion of an image for a corpus."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests import hostile_images
from tests.image_files import ORIENTATION, decoded, encode, picture, tagged
from vit_jax.corpora import conversion
from vit_jax.data.decoding import DecodeError


def open_image(data):
  return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_and_its_tag_is_removed(form, orientation):
  data = tagged(picture(60, 80), orientation, form)
  converted = conversion.convert_image(data)
  shown = np.asarray(ImageOps.exif_transpose(open_image(data)).convert("RGB")).astype(int)
  assert np.abs(converted.pixels.astype(int) - shown).max() <= 3
  written = open_image(converted.data)
  assert written.size == shown.shape[1::-1]
  assert np.abs(np.asarray(written.convert("RGB")).astype(int) - shown).mean() < 3
  assert written.getexif().get(ORIENTATION, 1) == 1
  assert ("rotated" in converted.done) == (orientation != 1)


def test_image_without_need_of_a_change_keeps_its_bytes():
  for data in (
    encode(picture(), "JPEG", quality=30),
    encode(picture()),
    hostile_images.jpeg(mode="L"),
    encode(picture(), "JPEG", icc_profile=b"a profile of colours" * 9),
  ):
    assert conversion.convert_image(data)[::2] == (data, ())
    assert conversion.convert_image(data, size=240).data == data  # images are not enlarged


def shares(old, new):
  """Returns [new, old] the share of each old pixel in each new pixel."""
  edges = np.arange(new + 1) * old / new
  low, high = np.maximum(edges[:-1, None], np.arange(old)), np.minimum(edges[1:, None], np.arange(old) + 1)
  return np.clip(high - low, 0, None) * new / old


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize(("height", "width", "sides"), [(60, 80, (40, 30)), (90, 60, (30, 45)), (61, 200, (98, 30))])
def test_smaller_side_is_resized_by_area(form, height, width, sides):
  data = encode(picture(height, width), form)
  converted = conversion.convert_image(data, 30)
  assert converted.done == ("resized",)
  written = open_image(converted.data)
  assert (written.format, written.size) == (form, sides)
  down, across = shares(height, sides[1]), shares(width, sides[0])
  expected = np.einsum("ij,jkc,lk->ilc", down, decoded(data).astype(float), across, optimize=True)
  assert np.abs(converted.pixels - expected).max() <= 1.01
  if form == "PNG":
    assert (np.asarray(written) == converted.pixels).all()


def test_resize_is_antialiased():
  board = np.indices((64, 64)).sum(0) % 2 * 255
  image = np.repeat(board[..., None], 3, -1).astype(np.uint8)
  assert np.abs(conversion.convert_image(encode(image), 32).pixels.astype(int) - 127).max() <= 1


# Runs use the same decoder. Its tests cover all hostile images.
REFUSED = (
  "nothing",
  "text",
  "tiff cut at 90%",
  "jpeg cut at 60%",
  "png cut",
  "gif of 65,535 squared",
  "jpeg of 65,500 squared",
)
WHOLE = ("gray jpeg", "cmyk jpeg", "progressive cmyk jpeg", "jpeg with another behind", "gif", "bmp", "webp",
         "panorama", "tiff", "interlaced png", "gray png of one bit", "gray png of sixteen bits",
         "png with a palette")  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_incomplete_image_is_refused(name):
  with pytest.raises(DecodeError):
    conversion.convert_image(hostile_images.REFUSED[name]())


@pytest.mark.parametrize("name", WHOLE)
def test_unusual_image_matches_pillow_and_becomes_jpeg_or_png(name):
  data = hostile_images.WHOLE[name]()
  converted = conversion.convert_image(data)
  distance = np.abs(converted.pixels.astype(int) - hostile_images.pillow(data)).max()
  assert distance <= 8
  written = open_image(converted.data)
  assert written.format in ("JPEG", "PNG", "MPO") and written.mode != "CMYK"
  assert "encoded" in converted.done or converted.data == data


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_first_frame_of_an_animation_is_kept(form):
  frames = [Image.fromarray(picture(seed=seed)) for seed in range(3)]
  data = encode(frames[0], form, save_all=True, append_images=frames[1:])
  converted = conversion.convert_image(data)
  written = open_image(converted.data)
  assert (written.format, getattr(written, "n_frames", 1), converted.done) == ("PNG", 1, ("encoded",))
  first = np.asarray(open_image(data).convert("RGB")).astype(int)
  assert np.abs(np.asarray(written).astype(int) - first).max() <= 8


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\xff" * 200])
def test_damaged_metadata_do_not_rotate_an_image(exif):
  data = encode(picture(), "JPEG", exif=exif)
  assert conversion.convert_image(data)[::2] == (data, ())


@pytest.mark.parametrize("orientation", [0, 9, 65_535])
def test_undefined_orientation_does_not_rotate_an_image(orientation):
  data = tagged(picture(), orientation)
  assert conversion.convert_image(data).data == data


def test_large_images_are_decoded_while_the_lock_is_held(monkeypatch):
  class Lock:
    held = 0

    def __enter__(self):
      self.held += 1

    def __exit__(self, *error):
      pass

  lock = Lock()
  monkeypatch.setattr(conversion, "LARGE", 6 * 100 * 100)
  conversion.convert_image(encode(picture(90, 90)), None, lock)
  assert lock.held == 0
  conversion.convert_image(encode(picture(110, 110)), 16, lock)
  assert lock.held == 1
