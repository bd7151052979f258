"""Tests of GIF files against the specification.

They cover palettes, interlacing, transparency, and frames that are smaller than the screen.
"""

import io

import numpy as np
import pytest
from PIL import Image

from tests.image_files import decoded, encode, picture
from tests.made_images import gif, gif_frame
from vit_jax.data.formats.headers import DecodeError

DRAW = np.random.default_rng(0)
HEIGHT, WIDTH = 9, 11
PALETTE, OTHER = DRAW.integers(0, 256, (2, 16, 3))
NUMBERS = DRAW.integers(0, 16, (HEIGHT, WIDTH))
PIXELS = PALETTE[NUMBERS]


def build_gif(*frames, **options):
  return gif(WIDTH, HEIGHT, *frames, **options)


FULL = {
  "GIF87a": build_gif(gif_frame(NUMBERS), palette=PALETTE, version=b"GIF87a"),
  "interlaced": build_gif(gif_frame(NUMBERS, interlaced=True), palette=PALETTE),
  "own palette": build_gif(gif_frame(NUMBERS, own=PALETTE), palette=OTHER),
  "only an own palette": build_gif(gif_frame(NUMBERS, own=PALETTE), background=7),
  "transparent": build_gif(gif_frame(NUMBERS, transparent=3), palette=PALETTE, background=5),
  "two frames": build_gif(gif_frame(NUMBERS), gif_frame(NUMBERS[::-1]), palette=PALETTE),
  "two frames, transparent": build_gif(gif_frame(NUMBERS, transparent=0), gif_frame(NUMBERS[::-1]), palette=PALETTE),
  **{
    f"disposal {i}": build_gif(gif_frame(NUMBERS, disposal=i), gif_frame(NUMBERS), palette=PALETTE) for i in range(1, 4)
  },
  "bytes of zero between blocks": build_gif(b"\0\0" + gif_frame(NUMBERS), palette=PALETTE),
  "comments and another extension": build_gif(
    b"\x21\xfe\x03abc\0" + b"\x21\xff\x0bNETSCAPE2.0\x03\1\0\0\0" + gif_frame(NUMBERS), palette=PALETTE
  ),
}


@pytest.mark.parametrize("name", FULL)
def test_frame_that_fills_the_screen_has_the_colours_of_its_palette(name):
  np.testing.assert_array_equal(decoded(FULL[name]), PIXELS)
  np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(FULL[name])).convert("RGB")), PIXELS)


@pytest.mark.parametrize("background", [16, 99, 255])
def test_background_outside_the_palette_is_accepted(background):
  data = build_gif(gif_frame(NUMBERS), palette=PALETTE, background=background)
  np.testing.assert_array_equal(decoded(data), PIXELS)


@pytest.mark.parametrize("transparent", [None, 3])
@pytest.mark.parametrize(("background", "colour"), [(5, PALETTE[5]), (15, PALETTE[15]), (16, 0), (200, 0)])
def test_screen_around_the_first_frame_is_the_background_or_black(background, colour, transparent):
  expected = np.zeros((15, 20, 3), np.uint8)
  expected[:] = colour
  expected[3 : 3 + HEIGHT, 4 : 4 + WIDTH] = PIXELS
  frame = gif_frame(NUMBERS, 3, 4, transparent=transparent)
  np.testing.assert_array_equal(decoded(gif(20, 15, frame, palette=PALETTE, background=background)), expected)


def test_screen_is_black_without_a_global_palette():
  image = decoded(gif(20, 15, gif_frame(NUMBERS, 3, 4, own=PALETTE)))
  np.testing.assert_array_equal(image[3 : 3 + HEIGHT, 4 : 4 + WIDTH], PIXELS)
  assert not image[:3].any() and not image[:, :4].any() and not image[12:].any() and not image[:, 15:].any()


@pytest.mark.parametrize("colours", [2, 3, 5, 256])
def test_palettes_have_two_to_256_colours(colours):
  palette, numbers = DRAW.integers(0, 256, (colours, 3)), DRAW.integers(0, colours, (30, 40))
  np.testing.assert_array_equal(decoded(gif(40, 30, gif_frame(numbers), palette=palette)), palette[numbers])


def test_index_outside_the_palette_is_black():
  image = decoded(build_gif(gif_frame(NUMBERS), palette=PALETTE[:8]))
  np.testing.assert_array_equal(image, np.where((NUMBERS < 8)[..., None], PALETTE[NUMBERS % 8], 0))


@pytest.mark.parametrize("interlace", [0, 1])
def test_files_written_by_pillow_have_its_pixels(interlace):
  for seed in range(3):
    image = Image.fromarray(picture(200, 300, seed)).convert("P", palette=Image.Palette.ADAPTIVE)
    np.testing.assert_array_equal(decoded(encode(image, "GIF", interlace=interlace)), np.asarray(image.convert("RGB")))


# Files that are refused.

CUT = build_gif(gif_frame(NUMBERS), palette=PALETTE)


@pytest.mark.parametrize(
  ("data", "reason"),
  [
    (build_gif(gif_frame(NUMBERS)), "without a palette"),
    (build_gif(gif_frame(NUMBERS, 1, 0), palette=PALETTE), r"11 x 9 pixels at \(0, 1\) outside its screen of 11 x 9"),
    (gif(0, 0, gif_frame(NUMBERS), palette=PALETTE), "0 x 0 pixels"),
    (build_gif(palette=PALETTE), "without a frame"),
    (
      build_gif(b"\x21\xfe" + b"\1a" * 2**20 + b"\0" + gif_frame(NUMBERS), palette=PALETTE),
      "more than 1,048,576 blocks",
    ),
    (build_gif(bytes(2**21) + gif_frame(NUMBERS), palette=PALETTE), "without a frame"),
    (b"GIF89a" + bytes(3), "cut off after 9 bytes"),
    *((CUT[:length], "not a complete image") for length in (12, 20, 60, 80, len(CUT) - 2)),
  ],
  ids=range(12),
)
def test_gif_without_a_complete_first_frame_is_refused_with_the_reason(data, reason):
  with pytest.raises(DecodeError, match=reason):
    decoded(data)


def test_frame_with_too_few_pixels_is_refused():
  short = gif_frame(NUMBERS[:4]).replace(b"\x0b\0\4\0", b"\x0b\0\x09\0", 1)
  with pytest.raises(DecodeError, match="not a complete image"):
    decoded(build_gif(short, palette=PALETTE))
