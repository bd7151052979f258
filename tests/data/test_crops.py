"""Crops against NumPy."""

import random

import numpy as np
import pytest

from tests.image_files import picture
from vit_jax import schema
from vit_jax.data import crops


@pytest.mark.parametrize("name", crops.CROPS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 2), (7, 9), (64, 48), (500, 30)])
@pytest.mark.parametrize("size", [1, 32])
def test_every_crop_gives_the_size_from_any_image(name, shape, size):
  image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
  for seed in range(3):
    result = crops.CROPS[name](size)(image, random.Random(seed))
    assert result.shape == (size, size, 3)
    assert result.dtype == np.uint8


@pytest.mark.parametrize("name", crops.TEST_CROPS)
def test_crops_for_evaluation_draw_nothing(name):
  assert crops.TEST_CROPS[name](16)(picture(), None).shape == (16, 16, 3)


def test_shrinking_by_a_whole_factor_is_the_mean_of_blocks():
  image = picture(64, 96)
  blocks = image.reshape(16, 4, 24, 4, 3).mean((1, 3))
  assert np.abs(crops.scale(image, 16, 24) - blocks).max() <= 0.51


def test_growing_is_bilinear_between_pixel_centres():
  image = picture(8, 8)
  at = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)
  weight = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(8)))
  expected = np.einsum("ip,jq,pqc->ijc", weight, weight, image)
  assert np.abs(crops.scale(image, 32, 32) - expected).max() <= 1


def test_one_side_may_shrink_while_the_other_grows():
  image = np.repeat(picture(64, 8), 1, axis=0)
  expected = crops.scale(image.reshape(16, 4, 8, 3).mean(1).round().astype(np.uint8), 16, 32)
  assert np.abs(crops.scale(image, 16, 32).astype(int) - expected).max() <= 1


def test_an_image_of_the_right_size_is_left_alone():
  image = picture(32, 32)
  for crop in (crops.resize(32), crops.centre(32, resize=32), crops.random_crop(32, padding=0)):
    np.testing.assert_array_equal(crop(image, random.Random(0)), image)


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (41, 60), (40, 40)])
def test_the_central_crop_is_the_middle_of_the_image(height, width):
  image = picture(height, width)
  top, left = (height - 32) // 2, (width - 32) // 2
  result = crops.centre(32, resize=min(height, width))(image, None)
  np.testing.assert_array_equal(result, image[top : top + 32, left : left + 32])


def test_the_central_crop_scales_the_smaller_side_to_eight_sevenths():
  seen = crops.centre(224)(np.tile((np.arange(512) // 2).astype(np.uint8)[:, None, None], (1, 1024, 3)), None)
  # 512 -> 256 lines, of which 16 are cut off at either end.
  np.testing.assert_allclose(seen[:, 0, 0].astype(int), np.arange(16, 240), atol=1)


def test_a_random_crop_is_a_window_of_the_padded_image():
  image = picture(32, 32)
  padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
  windows = {padded[y : y + 32, x : x + 32].tobytes(): (y, x) for y in range(9) for x in range(9)}
  crop = crops.random_crop(32, padding=4)
  seen = {windows[crop(image, random.Random(seed)).tobytes()] for seed in range(800)}
  assert len(seen) == 81


def numpy_boxes(height, width, area, ratio, count):
  """The same distribution, all draws at once: rejection instead of ten tries."""
  rng = np.random.default_rng(1)
  target = height * width * rng.uniform(*area, count)
  aspect = np.exp(rng.uniform(*np.log(ratio), count))
  w, h = np.sqrt(target * aspect).round().astype(int), np.sqrt(target / aspect).round().astype(int)
  fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
  return h[fits], w[fits]


def test_inception_boxes_are_distributed_as_stated():
  height, width, area, ratio = 120, 160, (0.05, 1.0), (3 / 4, 4 / 3)
  draw = random.Random(0)
  boxes = np.array([crops.inception_box(draw, height, width, area, ratio) for _ in range(100_000)])
  top, left, h, w = boxes.T
  assert (top >= 0).all() and (left >= 0).all() and (top + h <= height).all() and (left + w <= width).all()
  expected_h, expected_w = numpy_boxes(height, width, area, ratio, 200_000)
  for ours, theirs in ((h * w, expected_h * expected_w), (w / h, expected_w / expected_h)):
    quantiles = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(np.quantile(ours, quantiles), np.quantile(theirs, quantiles), rtol=0.015)
  # The place is uniform over what is left.
  share = (left[w < width - 30] + 0.5) / (width - w[w < width - 30] + 1)
  np.testing.assert_allclose(np.quantile(share, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)


def test_an_inception_box_that_never_fits_is_the_largest_central_one():
  draw = random.Random(0)
  assert crops.inception_box(draw, 10, 1000, (1, 1), (3 / 4, 4 / 3)) == (0, 493, 10, 13)
  assert crops.inception_box(draw, 1000, 10, (1, 1), (3 / 4, 4 / 3)) == (493, 0, 13, 10)


def test_an_inception_crop_is_its_box_resized():
  image, size = picture(), 24
  top, left, h, w = crops.inception_box(random.Random(5), 60, 80, (0.3, 0.5), (0.9, 1.1))
  y, x = (np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1) for n in (h, w))
  rows, columns = (np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n))) for at, n in ((y, h), (x, w)))
  expected = np.einsum("ip,jq,pqc->ijc", rows, columns, image[top : top + h, left : left + w])
  result = crops.inception(size, area=(0.3, 0.5), ratio=(0.9, 1.1))(image, random.Random(5))
  assert np.abs(result - expected).max() <= 1


def test_bounds_in_the_wrong_order_are_an_error():
  with pytest.raises(schema.ConfigError, match="high to low"):
    crops.inception(32, ratio=(2.0, 1.0))
  with pytest.raises(schema.ConfigError, match="smaller than image_size"):
    crops.centre(32, resize=31)


def test_an_image_too_long_to_be_scaled_is_an_error_before_it_is_scaled():
  for crop in (crops.centre(224), crops.random_crop(224)):
    with pytest.raises(ValueError, match=r"1 x 1,000,000 pixels, which take \d[\d,]+ MiB"):
      crop(np.zeros((1_000_000, 1, 3), np.uint8), random.Random(0))
