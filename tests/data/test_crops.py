"""Tests of crops against NumPy."""

import random

import numpy as np
import pytest
from PIL import Image

from tests.image_files import picture
from vit_jax import schema
from vit_jax.data import crops


@pytest.mark.parametrize("name", crops.CROPS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 2), (7, 9), (64, 48), (500, 30)])
@pytest.mark.parametrize("size", [1, 32])
def test_every_crop_has_the_requested_size_for_any_image(name, shape, size):
  image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
  for seed in range(3):
    result = crops.CROPS[name](size)(image, random.Random(seed))
    assert result.shape == (size, size, 3)
    assert result.dtype == np.uint8


@pytest.mark.parametrize("name", crops.TEST_CROPS)
def test_crops_for_evaluation_are_deterministic(name):
  assert crops.TEST_CROPS[name](16)(picture(), None).shape == (16, 16, 3)


def test_shrinking_by_a_whole_factor_is_the_mean_of_blocks():
  image = picture(64, 96)
  blocks = image.reshape(16, 4, 24, 4, 3).mean((1, 3))
  assert np.abs(crops.scale(image, 16, 24) - blocks).max() <= 0.51


@pytest.mark.parametrize(("shape", "expected"), [((64, 96), (8, 12)), ((1, 300), (1, 12)), ((12, 5), (12, 5))])
def test_shrunk_copy_keeps_its_aspect_ratio_and_never_grows(shape, expected):
  image = picture(*shape)
  copy = crops.shrink(image, 12)
  assert copy.shape == (*expected, 3) and not np.shares_memory(copy, image)


def test_enlarging_is_bilinear_between_pixel_centres():
  image = picture(8, 8)
  at = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)
  weight = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(8)))
  expected = np.einsum("ip,jq,pqc->ijc", weight, weight, image)
  assert np.abs(crops.scale(image, 32, 32) - expected).max() <= 1


def cubic(a):
  def weight(x):
    x = np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))

  return weight


# The weight by distance in pixels, and the distance of the last pixel with a weight.
KERNELS = {
  "bilinear": (lambda x: np.maximum(0, 1 - np.abs(x)), 1),
  "bicubic": (cubic(-0.5), 2),
  "lanczos": (lambda x: np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0), 3),
  "bilinear_aliased": (lambda x: np.maximum(0, 1 - np.abs(x)), 1),
  "bicubic_aliased": (cubic(-0.75), 2),
}


def weights(kind, old, new):
  """Returns the weights [new, old] of each old pixel in each new pixel.

  Antialiased kernels are as wide as the new pixels, and are truncated at the border.
  """
  kernel, _ = KERNELS[kind]
  at, width = (np.arange(new) + 0.5) * old / new - 0.5, max(old / new, 1)
  if kind.endswith("aliased"):
    result, taps = np.zeros((new, old)), np.arange(-1, 3)
    for row, x in zip(result, at, strict=True):
      first = int(np.floor(x))
      # pixels outside repeat the border pixel
      np.add.at(row, np.clip(first + taps, 0, old - 1), kernel(x - first - taps))
    return result
  result = kernel((at[:, None] - np.arange(old)) / width)
  return result / result.sum(1, keepdims=True)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("shape", [(20, 30), (61, 47), (33, 90), (64, 64)])
def test_interpolation_matches_its_kernel(kind, shape):
  image = picture(64, 64).astype(np.uint8)
  rows, columns = (weights(kind, 64, new) for new in shape)
  expected = np.einsum("ip,jq,pqc->ijc", rows, columns, image.astype(float)).clip(0, 255)
  ours = crops.scale(image, *shape, kind)
  # Pillow truncates its weights to 22 bits and rounds between the axes. OpenCV truncates its weights to 11 bits.
  assert np.abs(ours - expected).max() <= 1.51


def test_aliased_interpolation_skips_pixels_instead_of_averaging():
  stripes = np.tile(np.array([0, 0, 0, 255], np.uint8)[:, None, None], (16, 64, 3))
  for kind in KERNELS:
    spread = np.ptp(crops.scale(stripes, 16, 64, kind)[3:-3].astype(int))
    mean = crops.scale(stripes, 16, 64, kind)[3:-3].mean()
    assert (abs(mean - 255 / 4) < 4 and spread < 4) == (not kind.endswith("aliased")), kind


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("height", "width", "size", "ratio"), [
  (500, 375, 224, 0.875), (375, 500, 224, 0.9), (333, 501, 32, 0.875), (97, 131, 64, 1.0), (41, 41, 48, 0.95),
])  # fmt: skip
def test_torchvision_crop_is_a_pillow_resize_and_a_central_crop(height, width, size, ratio, interpolation):
  image, small = picture(height, width), int(np.floor(size / ratio))
  long = small * max(height, width) // min(height, width)
  scaled = (small, long) if height >= width else (long, small)  # width, height
  expected = Image.fromarray(image).resize(scaled, Image.Resampling[interpolation.upper()])
  left, top = (int(np.round((side - size) / 2)) for side in scaled)
  expected = np.asarray(expected.crop((left, top, left + size, top + size)))
  ours = crops.torchvision(size, ratio=ratio, interpolation=interpolation)(image, None)
  np.testing.assert_array_equal(ours, expected)


def test_random_crop_with_mirrored_border_is_a_window_of_the_padded_image():
  image = picture(64, 48)
  scaled = np.asarray(Image.fromarray(image).resize((32, 43), Image.Resampling.BICUBIC))
  padded = np.pad(scaled, ((4, 4), (4, 4), (0, 0)), "reflect")
  windows = {padded[y : y + 32, x : x + 32].tobytes(): (y, x) for y in range(20) for x in range(9)}
  crop = crops.random_crop(32, border="mirrored", interpolation="bicubic")
  seen = {windows[crop(image, random.Random(seed)).tobytes()] for seed in range(1200)}
  assert len(seen) > 175


def test_random_interpolation_is_one_of_the_two_in_timm():
  image, counts = picture(), {"bilinear": 0, "bicubic": 0}
  for seed in range(100):
    crop = schema.make(schema.Choice("inception", {"interpolation": "random"}), crops.CROPS, 16)  # as in a config
    ours = crop(image, random.Random(seed))
    for kind in counts:
      counts[kind] += (ours == crops.inception(16, interpolation=kind)(image, random.Random(seed))).all()
  assert sum(counts.values()) == 100 and min(counts.values()) > 30


def test_one_side_may_shrink_while_the_other_grows():
  image = np.repeat(picture(64, 8), 1, axis=0)
  expected = crops.scale(image.reshape(16, 4, 8, 3).mean(1).round().astype(np.uint8), 16, 32)
  assert np.abs(crops.scale(image, 16, 32).astype(int) - expected).max() <= 1


def test_image_of_the_right_size_is_unchanged():
  image = picture(32, 32)
  for crop in (crops.resize(32), crops.centre(32, resize=32), crops.random_crop(32, padding=0)):
    np.testing.assert_array_equal(crop(image, random.Random(0)), image)


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (41, 60), (40, 40)])
def test_central_crop_is_the_middle_of_the_image(height, width):
  image = picture(height, width)
  top, left = (height - 32) // 2, (width - 32) // 2
  result = crops.centre(32, resize=min(height, width))(image, None)
  np.testing.assert_array_equal(result, image[top : top + 32, left : left + 32])


def test_central_crop_scales_the_smaller_side_to_8_7():
  seen = crops.centre(224)(np.tile((np.arange(512) // 2).astype(np.uint8)[:, None, None], (1, 1024, 3)), None)
  # 512 -> 256 rows. 16 rows are cut off at each end.
  np.testing.assert_allclose(seen[:, 0, 0].astype(int), np.arange(16, 240), atol=1)


def test_random_crop_is_a_window_of_the_padded_image():
  image = picture(32, 32)
  padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
  windows = {padded[y : y + 32, x : x + 32].tobytes(): (y, x) for y in range(9) for x in range(9)}
  crop = crops.random_crop(32, padding=4)
  seen = {windows[crop(image, random.Random(seed)).tobytes()] for seed in range(800)}
  assert len(seen) == 81


def numpy_boxes(height, width, area, ratio, count):
  """Draws from the same distribution, with all draws at once: rejection instead of ten attempts."""
  rng = np.random.default_rng(1)
  target = height * width * rng.uniform(*area, count)
  aspect = np.exp(rng.uniform(*np.log(ratio), count))
  w, h = np.sqrt(target * aspect).round().astype(int), np.sqrt(target / aspect).round().astype(int)
  fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
  return h[fits], w[fits]


def test_inception_boxes_have_the_specified_distribution():
  height, width, area, ratio = 120, 160, (0.05, 1.0), (3 / 4, 4 / 3)
  draw = random.Random(0)
  boxes = np.array([crops.draw_inception_box(draw, height, width, area, ratio) for _ in range(100_000)])
  top, left, h, w = boxes.T
  assert (top >= 0).all() and (left >= 0).all() and (top + h <= height).all() and (left + w <= width).all()
  expected_h, expected_w = numpy_boxes(height, width, area, ratio, 200_000)
  for ours, theirs in ((h * w, expected_h * expected_w), (w / h, expected_w / expected_h)):
    quantiles = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(np.quantile(ours, quantiles), np.quantile(theirs, quantiles), rtol=0.015)
  # The position is uniform over the free range.
  share = (left[w < width - 30] + 0.5) / (width - w[w < width - 30] + 1)
  np.testing.assert_allclose(np.quantile(share, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)


def test_inception_box_that_never_fits_is_the_largest_central_box():
  draw = random.Random(0)
  assert crops.draw_inception_box(draw, 10, 1000, (1, 1), (3 / 4, 4 / 3)) == (0, 493, 10, 13)
  assert crops.draw_inception_box(draw, 1000, 10, (1, 1), (3 / 4, 4 / 3)) == (493, 0, 13, 10)


def test_inception_crop_is_its_resized_box():
  image, size = picture(), 24
  top, left, h, w = crops.draw_inception_box(random.Random(5), 60, 80, (0.3, 0.5), (0.9, 1.1))
  y, x = (np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1) for n in (h, w))
  rows, columns = (np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n))) for at, n in ((y, h), (x, w)))
  expected = np.einsum("ip,jq,pqc->ijc", rows, columns, image[top : top + h, left : left + w])
  result = crops.inception(size, area=(0.3, 0.5), ratio=(0.9, 1.1))(image, random.Random(5))
  assert np.abs(result - expected).max() <= 1


def test_invalid_arguments_of_crops_are_an_error():
  with pytest.raises(schema.ConfigError, match="high to low"):
    crops.inception(32, ratio=(2.0, 1.0))
  with pytest.raises(schema.ConfigError, match="smaller than image_size"):
    crops.centre(32, resize=31)


def test_image_too_long_to_scale_is_an_error_before_scaling():
  for crop in (crops.centre(224), crops.random_crop(224)):
    with pytest.raises(ValueError, match=r"1 x 1,000,000 pixels, which need \d[\d,]+ MiB"):
      crop(np.zeros((1_000_000, 1, 3), np.uint8), random.Random(0))
