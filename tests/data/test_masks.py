"""Tests of masks: numbers of pixels in any format, scaling, and shares of patches counted pixel by pixel."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from tests.made_images import bmp, chunk, pack_bits, png
from tests.made_images import tiff as made_tiff
from vit_jax.data import masks, sources
from vit_jax.data.images import ImageError, Images

STORED = np.random.default_rng(0).integers(0, 4, (5, 7)).astype(np.uint8)


def file(pixels, mode="L", form="PNG"):
  made = Image.fromarray(pixels)
  if mode == "P":
    made.putpalette(np.random.default_rng(1).integers(0, 256, 768).astype(np.uint8).tobytes())
  elif mode != "L":
    made = made.convert(mode)
  written = io.BytesIO()
  made.save(written, form)
  return written.getvalue()


def images(content, on_error="raise", count=100, **of_masks):
  def read(i):
    if content is None:
      raise FileNotFoundError(2, "No such file", "masks/x.png")
    return content

  known = sources.Masks(("a", "b", "c", "d"), read, **of_masks)
  made = sources.Source("made", "train", ("image",), count, read, lambda i: f"record {i}")
  return Images(dataclasses.replace(made, masks=known), on_error, 10_000, 100.0)


@pytest.mark.parametrize("mode", ["L", "P"])
def test_numbers_are_gray_values_or_palette_indices(mode):
  np.testing.assert_array_equal(masks.decode_numbers(file(STORED, mode), 10_000, 100), STORED)


def test_one_bit_is_two_classes():
  stored = file(255 * (STORED > 1).astype(np.uint8), "1")
  np.testing.assert_array_equal(masks.decode_numbers(stored, 10_000, 100), STORED > 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("form", ["PNG, gray", "PNG, palette", "TIFF, gray", "TIFF, palette", "BMP"])
def test_numbers_of_few_bits_are_the_stored_values(form, bits):
  stored = np.random.default_rng(0).integers(0, 1 << bits, (5, 7, 1))
  colours = np.random.default_rng(1).integers(0, 256, (1 << bits, 3))
  data = {
    "PNG, gray": lambda: png(stored, bits, 0),
    "PNG, palette": lambda: png(stored, bits, 3, before=chunk(b"PLTE", colours.astype(np.uint8).tobytes())),
    "TIFF, gray": lambda: made_tiff(stored, bits, 1),
    "TIFF, palette": lambda: made_tiff(stored, bits, 3, tags={320: (3, (colours.T * 257).ravel().tolist())}),
    "BMP": lambda: bmp([pack_bits(row.T, bits) for row in stored[::-1]], 7, 5, bits, palette=colours),
  }[form]()
  np.testing.assert_array_equal(masks.decode_numbers(data, 10_000, 100), stored[..., 0])


def test_mask_in_a_tiff_is_never_rotated():
  stored = np.random.default_rng(0).integers(0, 4, (5, 7, 1))
  data = made_tiff(stored, 8, 1, tags={274: (3, [6])})
  np.testing.assert_array_equal(masks.decode_numbers(data, 10_000, 100), stored[..., 0])


def test_unknown_numbers_become_no_class():
  known = sources.Masks(("pet", "ground"), None, (1, 2), (3,))
  stored = np.array([[1, 2, 3, 255]], np.uint8)
  np.testing.assert_array_equal(masks.convert_numbers(stored, known), [[0, 1, 255, 255]])


@pytest.mark.parametrize("size", [3, 5, 11, 16])
@pytest.mark.parametrize("shape", [(5, 7), (16, 16), (33, 20)])
def test_scaled_mask_has_the_pixel_at_each_centre(size, shape):
  mask = np.random.default_rng(0).integers(0, 200, shape).astype(np.uint8)
  scaled = masks.scale_mask(mask, size)
  for i in range(size):
    for j in range(size):
      # The centre is moved by 1e-4 pixels, so that rounding does not decide. On a border, both sides are accepted.
      rows, columns = ((2 * k + 1) * side / (2 * size) for k, side in ((i, shape[0]), (j, shape[1])))
      near = {
        mask[min(int(r), shape[0] - 1), min(int(c), shape[1] - 1)]
        for r in (rows - 1e-4, rows + 1e-4)
        for c in (columns - 1e-4, columns + 1e-4)
      }
      assert scaled[i, j] in near


@pytest.mark.parametrize(("size", "side"), [(8, 2), (16, 16), (12, 4), (10, 4)])
def test_shares_match_a_count_by_pixel(size, side):
  made = np.random.default_rng(0).integers(0, 4, (3, size, size)).astype(np.uint8)
  made[made == 3] = masks.NONE
  counts, pixels = np.zeros((3, side, side, 3)), np.zeros((side, side))
  for i in range(size):
    for j in range(size):
      p, q = int((i + 0.5) * side / size), int((j + 0.5) * side / size)
      pixels[p, q] += 1
      for image in range(3):
        if made[image, i, j] < 3:
          counts[image, p, q, made[image, i, j]] += 1
  np.testing.assert_allclose(masks.compute_shares(made, side, 3), counts / pixels[:, :, None])


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (file(STORED, "RGB"), "record 3: its mask is not valid: its mode in Pillow is 'RGB'"),
    (file(STORED, "L", "JPEG"), "a JPEG changes the numbers"),
    (file(STORED)[:-30], "record 3: its mask is not valid"),
    (b"no image", "record 3: its mask is not valid: not a complete image"),
    (file(STORED + 9), "pixels with the number (9|10|11|12). Allowed: 0 to 3 for 4 classes, and 255 for no class"),
    (file(np.zeros((200, 200), np.uint8)), "200 x 200 pixels. Allowed: up to data.max_pixels=10,000"),
    (None, "record 3: .*masks/x.png"),
  ],
)
def test_bad_mask_is_named_or_skipped(content, message):
  with pytest.raises(ImageError, match=message):
    masks.read_mask(images(content), 3, 8)
  skipping = images(content, "skip")
  assert masks.read_mask(skipping, 3, 8) is None and list(skipping.reasons) == [3]
  with pytest.raises(ImageError, match="2 of 2 records are bad"):
    some = images(content, "skip", count=2)
    [masks.read_mask(some, i, 8) for i in range(2)]
