"""Tests of BMP files of all headers, masks, palettes and run lengths, against arithmetic. Invalid files are refused."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.image_files import decoded
from tests.made_images import bmp, pack_bits, scaled
from vit_jax.data.formats import headers
from vit_jax.data.formats.headers import DecodeError

DRAW = np.random.default_rng(0)
HEIGHT, WIDTH = 7, 13


def words(values, bits):
  """Returns rows of pixels with 16 or 32 bits."""
  return [row.astype(f"<u{bits // 8}").tobytes() for row in values]


def every(bits, height=HEIGHT, width=WIDTH):
  """Returns random pixels [H, W]. The first pixels are all zeros and all ones."""
  values = DRAW.integers(0, 1 << bits, (height, width), dtype=np.uint64)
  values[0, :2] = 0, (1 << bits) - 1
  return values


def under(values, masks):
  """Computes RGB from the definition: the bits of each channel one by one."""
  channels = []
  for mask in masks[:3]:
    places = [place for place in range(32) if mask >> place & 1]
    channel = sum((values >> np.uint64(place) & np.uint64(1)) << np.uint64(i) for i, place in enumerate(places))
    channels.append(scaled(channel, len(places)))
  return np.stack(channels, -1).astype(np.uint8)


MASKS = {
  "5-5-5": (16, (0x7C00, 0x03E0, 0x001F)),
  "5-6-5": (16, (0xF800, 0x07E0, 0x001F)),
  "4-4-4": (16, (0x0F00, 0x00F0, 0x000F, 0xF000)),
  "2-3-1": (16, (0x0003, 0x001C, 0x0020)),
  "1-9-2-4": (16, (0x8000, 0x1FF0 << 1, 0x0003)),
  "BGR": (32, (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
  "RGB": (32, (0xFF, 0xFF00, 0xFF0000)),
  "upper bytes": (32, (0xFF000000, 0xFF0000, 0xFF00)),
  "10-10-10": (32, (0x3FF00000, 0xFFC00, 0x3FF, 0xC0000000)),
  "11-11-10": (32, (0xFFE00000, 0x1FFC00, 0x3FF)),
  "5-6-5 of 32": (32, (0xF800, 0x07E0, 0x001F)),
  "7-18-7": (32, (0xFE000000, 0x1FFFF80, 0x7F)),
  "26-5-1": (32, (0xFFFFFFC0, 0x3E, 0x1)),
  "5-5-1 of BMP Suite": (16, (0xF800, 0x07C0, 0x003E, 0x0001)),
}


@pytest.mark.parametrize("header", [40, 52, 56, 108, 124])
@pytest.mark.parametrize("name", MASKS)
def test_channels_under_masks_are_scaled_to_eight_bits(name, header):
  bits, masks = MASKS[name]
  values = every(bits)
  compression = 6 if len(masks) == 4 and header == 40 else 3
  data = bmp(words(values[::-1], bits), WIDTH, HEIGHT, bits, header=header, compression=compression,
             masks=masks[:3] if header == 52 else masks if header > 40 or compression == 6 else masks[:3])  # fmt: skip
  np.testing.assert_array_equal(decoded(data), under(values, masks))


@pytest.mark.parametrize("header", [40, 108])
def test_white_of_16_bits_without_masks_is_white(header):
  values = every(16)
  image = decoded(bmp(words(values[::-1], 16), WIDTH, HEIGHT, 16, header=header))
  np.testing.assert_array_equal(image, under(values, MASKS["5-5-5"][1]))
  assert image[0, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("header", [12, 16, 40, 52, 56, 64, 108, 124])
@pytest.mark.parametrize("bits", [24, 32])
def test_whole_bytes_are_in_blue_green_red_order(bits, header):
  pixels = DRAW.integers(0, 256, (HEIGHT, WIDTH, bits // 8), dtype=np.uint8)
  data = bmp([row.tobytes() for row in pixels[::-1]], WIDTH, HEIGHT, bits, header=header)
  np.testing.assert_array_equal(decoded(data), pixels[..., 2::-1])


@pytest.mark.parametrize("width", [1, 7, 8, 9, 31, 33])
@pytest.mark.parametrize("header", [12, 16, 40, 64, 124])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_pixel_values_index_the_palette(bits, header, width):
  palette = DRAW.integers(0, 256, (1 << bits, 3))
  numbers = DRAW.integers(0, 1 << bits, (HEIGHT, width))
  rows = [pack_bits(row[None], bits) for row in numbers[::-1]]
  data = bmp(rows, width, HEIGHT, bits, header=header, palette=palette, gap=bytes(6))
  np.testing.assert_array_equal(decoded(data), palette[numbers])


@pytest.mark.parametrize("header", [12, 40])
def test_index_outside_the_palette_is_black(header):
  palette, numbers = DRAW.integers(1, 256, (5, 3)), DRAW.integers(0, 9, (HEIGHT, WIDTH))
  image = decoded(bmp([row.astype(np.uint8).tobytes() for row in numbers[::-1]], WIDTH, HEIGHT, 8, header=header,
                      palette=palette))  # fmt: skip
  np.testing.assert_array_equal(image[numbers < 5], palette[numbers[numbers < 5]])
  assert not image[numbers >= 5].any()


def test_negative_height_stores_the_top_row_first():
  pixels = DRAW.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
  data = bmp([row.tobytes() for row in pixels], WIDTH, -HEIGHT, 24)
  np.testing.assert_array_equal(decoded(data), pixels[..., ::-1])
  masked = every(16)
  data = bmp(words(masked, 16), WIDTH, -HEIGHT, 16, compression=3, masks=MASKS["5-6-5"][1])
  np.testing.assert_array_equal(decoded(data), under(masked, MASKS["5-6-5"][1]))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_files_written_by_pillow_have_its_pixels(mode):
  image = Image.fromarray(DRAW.integers(0, 256, (30, 41, 3), dtype=np.uint8)).convert(mode)
  file = io.BytesIO()
  image.save(file, "BMP")
  np.testing.assert_array_equal(decoded(file.getvalue()), np.asarray(image.convert("RGB")))


# Run lengths.


PALETTE = DRAW.integers(0, 256, (16, 3))


def runs(codes, bits, width, height):
  return bmp(bytes(codes), width, height, bits, compression=1 if bits == 8 else 2, palette=PALETTE)


def test_8_bit_run_lengths_support_runs_copies_skips_and_ends():
  # From the bottom row: a run of 3 and a copy of 3, a skipped row, two skipped pixels, a run of 1.
  codes = [3, 5, 0, 3, 1, 2, 3, 0, 0, 0, 0, 2, 2, 1, 1, 7, 0, 1]
  numbers = np.array([[0, 0, 7, 0, 0, 0], [0] * 6, [5, 5, 5, 1, 2, 3]])
  np.testing.assert_array_equal(decoded(runs(codes, 8, 6, 3)), PALETTE[numbers])


def test_4_bit_run_lengths_alternate_two_colours():
  codes = [5, 0xA3, 0, 0, 0, 5, 0x12, 0x34, 0x50, 0, 0, 1]
  numbers = np.array([[1, 2, 3, 4, 5], [10, 3, 10, 3, 10]])
  np.testing.assert_array_equal(decoded(runs(codes, 4, 5, 2)), PALETTE[numbers])


@pytest.mark.parametrize(
  ("codes", "reason"),
  [
    ([3, 5, 0, 0], "run lengths that have no end"),
    ([0, 3, 1, 2], "truncated run lengths"),
    ([7, 5, 0, 1], "goes beyond its row"),
    ([0, 0] * 3 + [1, 1, 0, 1], "goes beyond its row"),
    ([0, 2, 255, 0, 1, 1, 0, 1], "goes beyond its row"),
  ],
)
def test_damaged_run_lengths_are_refused(codes, reason):
  with pytest.raises(DecodeError, match=reason):
    decoded(runs(codes, 8, 6, 3))


# Files that are refused.


ROWS = [bytes(4 * WIDTH)] * HEIGHT


@pytest.mark.parametrize(
  ("data", "reason"),
  [
    (bmp(ROWS, WIDTH, HEIGHT, 32, compression=3, masks=(0, 0xFF, 0xFF00)), "channel mask 0x0 for 32 bits"),
    (bmp(ROWS, WIDTH, HEIGHT, 32, compression=3, masks=(0xF0F, 0xFF0000, 0xFF000000)), "channel mask 0xf0f"),
    (bmp(ROWS, WIDTH, HEIGHT, 16, compression=3, masks=(0xFF0000, 0xFF00, 0xFF)), "channel mask 0xff0000 for 16 bits"),
    (bmp(ROWS, WIDTH, HEIGHT, 32, compression=3, masks=(0xFF, 0xFF, 0xFF00)), "share bits: 0xff, 0xff, 0xff00"),
    (bmp(ROWS, WIDTH, HEIGHT, 24, compression=3, masks=(0xFF, 0xFF00, 0xFF0000)), "24 bits a pixel with compression 3"),
    (bmp(ROWS, WIDTH, HEIGHT, 1, header=64, compression=3), "1 bits a pixel with compression 3"),
    (bmp(ROWS, WIDTH, HEIGHT, 24, header=64, compression=4), "24 bits a pixel with compression 4"),
    (bmp(ROWS, WIDTH, HEIGHT, 0, compression=4), "0 bits a pixel with compression 4"),
    (bmp(ROWS, WIDTH, HEIGHT, 0, compression=5), "0 bits a pixel with compression 5"),
    (bmp(ROWS, WIDTH, HEIGHT, 64), "64 bits a pixel"),
    (bmp(ROWS, WIDTH, -HEIGHT, 8, compression=1), "stores its top row first"),
    (bmp(ROWS, WIDTH, HEIGHT, 24, header=66), "header of 66 bytes"),
    (bmp(ROWS, WIDTH, HEIGHT, 32)[:-5], "need 418 bytes or more, but the file has 413"),
    (bmp(ROWS, WIDTH, -(2**31), 32), "need 111,669,149,750 bytes or more"),
    (bmp(ROWS, -WIDTH, HEIGHT, 32), "-13 x 7 pixels"),
    (bmp(ROWS, WIDTH, 0, 32), "13 x 0 pixels"),
    (bmp(bytes(2**24 + 1), WIDTH, HEIGHT, 8, compression=1), "over 16 MiB of run lengths"),
    (bmp(ROWS, WIDTH, HEIGHT, 32)[:10] + bytes(4) + bmp(ROWS, WIDTH, HEIGHT, 32)[14:], "inside its header"),
  ],
  ids=range(18),
)
def test_undefined_or_unsupported_files_are_refused_with_the_reason(data, reason):
  with pytest.raises(DecodeError, match=reason):
    headers.read(data)


def test_last_row_may_lack_its_padding():
  pixels = DRAW.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
  data = bmp([row.tobytes() for row in pixels[::-1]], WIDTH, HEIGHT, 24)
  np.testing.assert_array_equal(decoded(data[:-1]), pixels[..., ::-1])
  with pytest.raises(DecodeError, match="not a complete image"):
    decoded(data[:-2])


def test_files_with_random_changes_are_refused_or_decoded():
  files = [
    bmp(words(every(32), 32), WIDTH, HEIGHT, 32, compression=3, masks=MASKS["10-10-10"][1][:3]),
    bmp(words(every(16), 16), WIDTH, HEIGHT, 16, header=124, compression=3, masks=MASKS["5-6-5"][1]),
    runs([3, 5, 0, 3, 1, 2, 3, 0, 0, 0, 0, 2, 2, 1, 1, 7, 0, 1], 8, 6, 3),
    bmp(ROWS, WIDTH, HEIGHT, 4, header=12, palette=PALETTE),
  ]
  refused = 0
  for data in files:
    for _ in range(200):
      changed = bytearray(data)
      changed[DRAW.integers(min(len(data), 80))] = DRAW.integers(256)
      try:
        header = headers.read(bytes(changed))
        if header.height * header.width < 10**6:
          assert header.layout.decode(bytes(changed)).shape == (header.height, header.width, 3)
      except DecodeError:
        refused += 1
  assert 50 < refused < 750
