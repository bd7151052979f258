"""Tests of animated PNGs: as in programs without animation support, the image of the IDAT chunks is decoded."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.image_files import decoded
from tests.made_images import CHANNELS, animation_control, chunk, png, png_data
from vit_jax.data.formats import headers, opencv
from vit_jax.data.formats.headers import DecodeError

DRAW = np.random.default_rng(0)
HEIGHT, WIDTH = 9, 11
FORMS = [(8, 2), (8, 6), (16, 2), (16, 6), (8, 0), (16, 0), (1, 0), (4, 3), (8, 3), (8, 4)]


def samples(depth, colour):
  return DRAW.integers(0, 1 << depth, (HEIGHT, WIDTH, CHANNELS[colour]))


def shown(stored, depth, colour, palette):
  """Returns the RGB pixels that the PNG specification defines."""
  if colour == 3:
    return palette[stored[..., 0]]
  eight = stored >> 8 if depth == 16 else stored * 255 // ((1 << depth) - 1)
  return np.broadcast_to(eight[..., :1] if colour in (0, 4) else eight[..., :3], (HEIGHT, WIDTH, 3))


def animated(depth, colour, *, separate, blend=False):
  """Returns a file with two frames, and the pixels of its IDAT chunks.

  The first frame is the still image, unless it is `separate`.
  """
  palette = DRAW.integers(0, 256, (256, 3))[: 1 << min(depth, 8)]
  still, *frames = (samples(depth, colour) for _ in range(3))
  before = chunk(b"acTL", struct.pack(">II", 2, 0))
  if colour == 3:
    before += chunk(b"PLTE", palette.astype(np.uint8).tobytes()) + chunk(b"tRNS", bytes(range(len(palette))))
  number, behind = 0, b""
  if not separate:
    before, number, frames = before + animation_control(0, WIDTH, HEIGHT, blend), 1, frames[1:]
  for frame in frames:
    behind += animation_control(number, WIDTH, HEIGHT, blend)
    behind += chunk(b"fdAT", struct.pack(">I", number + 1) + png_data(frame, depth))
    number += 2
  return png(still, depth, colour, before=before, behind=behind), shown(still, depth, colour, palette)


@pytest.mark.parametrize("blend", [False, True])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("depth", "colour"), FORMS)
def test_still_image_of_an_animated_png_is_decoded(depth, colour, separate, blend):
  data, expected = animated(depth, colour, separate=separate, blend=blend)
  np.testing.assert_array_equal(decoded(data), expected)
  image = Image.open(io.BytesIO(data))
  if image.mode in ("RGB", "RGBA", "P", "L", "LA", "1"):
    np.testing.assert_array_equal(np.asarray(image.convert("RGB")), expected)


def test_animated_png_needs_no_more_memory_than_a_still_image():
  data, _ = animated(8, 6, separate=True)
  assert headers.read(data).memory == headers.read(png(samples(8, 6), 8, 6)).memory


def test_truncated_animated_png_is_refused():
  data, _ = animated(8, 2, separate=True)
  for length in range(40, len(data) - 1, 37):
    with pytest.raises(DecodeError):
      decoded(data[:length])


def test_invalid_colour_profile_causes_no_warning_and_another_chunk_does(capfd):
  pixels = DRAW.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
  profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
  profile[36:40] = b"old!"  # the signature
  plain, tagged = io.BytesIO(), io.BytesIO()
  Image.fromarray(pixels).save(plain, "PNG")
  Image.fromarray(pixels).save(tagged, "PNG", icc_profile=bytes(profile))
  assert b"iCCP" in tagged.getvalue() and b"iCCP" not in plain.getvalue()
  opencv.decode(tagged.getvalue(), 0)
  assert "iCCP" in capfd.readouterr().err  # libpng warns
  np.testing.assert_array_equal(decoded(tagged.getvalue()), pixels)
  assert capfd.readouterr().err == ""
  at = plain.getvalue().index(b"IDAT") - 4
  decoded(plain.getvalue()[:at] + chunk(b"gAMA", b"\0") + plain.getvalue()[at:])
  assert "gAMA" in capfd.readouterr().err
