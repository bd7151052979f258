"""Augmentation on the device, against NumPy and published fixtures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import augment

DECILES = [0.1, 0.3, 0.5, 0.7, 0.9]


def pictures(batch=6, height=9, width=9, seed=0):
  return np.random.default_rng(seed).integers(0, 256, (batch, height, width, 3), dtype=np.uint8)


def warp(images, angle=0.0, skew=0.0, zoom=1.0, shift=(0.0, 0.0)):
  ones = jnp.ones(len(images))
  return np.asarray(
    augment.warp_affine(images, angle * ones, skew * ones, zoom * ones, ones[:, None] * jnp.array(shift))
  )


def test_normalising_is_the_formula():
  images, mean, std = pictures(), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
  expected = (images / 255.0 - np.array(mean)) / np.array(std)
  np.testing.assert_allclose(augment.normalise(images, mean=mean, std=std), expected, atol=1e-6)
  half = augment.normalise(images, jnp.bfloat16, mean=mean, std=std)
  assert half.dtype == jnp.bfloat16
  np.testing.assert_allclose(half.astype(jnp.float32), expected, rtol=2**-8, atol=2**-8)


def test_the_defaults_span_minus_one_to_one():
  np.testing.assert_allclose(augment.normalise(np.array([[[[0, 255, 0]]]], np.uint8))[0, 0, 0], [-1, 1, -1], atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 9), (8, 8), (5, 12)])
def test_a_warp_by_nothing_changes_nothing(shape):
  images = pictures(3, *shape)
  np.testing.assert_array_equal(warp(images), images)


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_right_angles_turn_counter_clockwise(size, turns):
  images = pictures(3, size, size)
  # cos(90 degrees) is 4e-8, so a point on the border may fall 2e-7 outside: an error of that share of 255.
  np.testing.assert_allclose(warp(images, angle=turns * np.pi / 2), np.rot90(images, turns, (1, 2)), atol=1e-3)


def test_shifts_are_down_and_right_with_black_behind():
  images = pictures(2)
  expected = np.zeros_like(images)
  expected[:, 2:, :-3] = images[:, :-2, 3:]
  np.testing.assert_array_equal(warp(images, shift=(2, -3)), expected)


def test_half_a_pixel_is_the_mean_of_neighbours():
  images = pictures(2).astype(float)
  result = warp(images.astype(np.uint8), shift=(0, 0.5))
  np.testing.assert_allclose(result[:, :, 1:], (images[:, :, 1:] + images[:, :, :-1]) / 2, atol=1e-4)
  np.testing.assert_allclose(result[:, :, 0], images[:, :, 0] / 2, atol=1e-4)


def numpy_warp(image, angle, skew, zoom, shift):
  """One pixel at a time, with the forward matrix inverted by NumPy."""
  height, width, _ = image.shape
  turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # of (x, y), y downwards
  inverse = np.linalg.inv(zoom * turn @ np.array([[1, np.tan(skew)], [0, 1]]))
  middle = np.array([(width - 1) / 2, (height - 1) / 2])
  result = np.zeros(image.shape)
  for y in range(height):
    for x in range(width):
      at = inverse @ (np.array([x, y]) - middle - np.array(shift)[::-1]) + middle
      for row in range(height):
        for column in range(width):
          weight = max(0, 1 - abs(at[1] - row)) * max(0, 1 - abs(at[0] - column))
          result[y, x] += weight * image[row, column]
  return result


@pytest.mark.parametrize(
  "numbers", [(0.3, 0.0, 1.0, (0.0, 0.0)), (-0.5, 0.4, 1.3, (1.2, -0.7)), (2.0, -0.8, 0.6, (-3.0, 0.1))]
)
def test_a_warp_equals_one_computed_pixel_by_pixel(numbers):
  images = pictures(2, 6, 8)
  expected = np.stack([numpy_warp(image, *numbers) for image in images])
  np.testing.assert_allclose(warp(images, *numbers), expected, atol=2e-3)


def test_affine_draws_stay_in_their_ranges_and_are_used():
  # Two white pixels on black: their centroid gives the shift, their distance the zoom, their direction the angle.
  image = np.zeros((2000, 33, 33, 3), np.uint8)
  image[:, 16, 10:23] = 255
  result = np.asarray(jax.jit(augment.affine(degrees=20, translate=0.1, scale=(0.8, 1.25)))(jax.random.key(0), image))[
    ..., 0
  ]
  y, x = np.mgrid[:33, :33]
  mass = result.sum((1, 2))
  shift = np.stack([(result * y).sum((1, 2)) / mass - 16, (result * x).sum((1, 2)) / mass - 16], -1)
  assert np.abs(shift).max() < 3.3 + 0.2  # a turned line is not exactly symmetric
  np.testing.assert_allclose(np.quantile(shift, [0.1, 0.5, 0.9], axis=0).T, [[-2.64, 0, 2.64]] * 2, atol=0.25)
  dy, dx = y - 16 - shift[:, 0, None, None], x - 16 - shift[:, 1, None, None]
  angle = np.rad2deg(-0.5 * np.arctan2(2 * (result * dx * dy).sum((1, 2)), (result * (dx**2 - dy**2)).sum((1, 2))))
  assert np.abs(angle).max() < 20.5
  np.testing.assert_allclose(np.quantile(angle, [0.1, 0.5, 0.9]), [-16, 0, 16], atol=1)
  # Length and thickness both grow with the zoom; along the line the second moment grows as its square.
  along = np.sqrt((result * (dx**2 + dy**2)).sum((1, 2)) / mass / np.mean((np.arange(13) - 6) ** 2))
  np.testing.assert_allclose(np.quantile(along, [0.1, 0.5, 0.9]), [0.845, 1.025, 1.205], atol=0.03)


def test_a_probability_leaves_the_rest_untouched():
  images = pictures(1000)
  result = jax.jit(augment.affine(degrees=40, probability=0.3))(jax.random.key(1), images)
  same = (np.asarray(result) == images).all((1, 2, 3))
  assert 0.65 < same.mean() < 0.75
  np.testing.assert_array_equal(jax.jit(augment.affine(probability=0.0))(jax.random.key(1), images), images)


def test_the_draw_of_an_example_depends_neither_on_the_batch_nor_on_the_devices():
  images, key = pictures(16), jax.random.key(3)
  warp_all = jax.jit(augment.affine(degrees=30))
  whole = np.asarray(warp_all(key, images))
  np.testing.assert_array_equal(whole[:4], warp_all(key, images[:4]))
  mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  shared = jax.device_put(images, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
  np.testing.assert_allclose(warp_all(key, shared), whole, atol=1e-3)


def mixing_draws(mixing, count=1000):
  """Kept share, and whether the image is cut rather than blended, of many keys; images are 1 and partners 0."""
  images = jnp.stack([jnp.ones((20, 20, 3)), jnp.zeros((20, 20, 3))])
  targets = jnp.eye(2)
  mixed, soft = jax.jit(jax.vmap(mixing, (0, None, None)))(jax.random.split(jax.random.key(0), count), images, targets)
  np.testing.assert_allclose(mixed[:, 0].mean((1, 2, 3)), soft[:, 0, 0], atol=1e-5)
  np.testing.assert_allclose(soft.sum(-1), 1, atol=1e-6)
  return np.asarray(soft[:, 0, 0]), np.asarray(((mixed == 0) | (mixed == 1)).all((1, 2, 3, 4)))


def test_mixup_shares_follow_the_beta_distribution():
  share, cut = mixing_draws(augment.mixup(alpha=0.8), 4000)
  expected = np.random.default_rng(0).beta(0.8, 0.8, 100_000)
  np.testing.assert_allclose(np.quantile(share, DECILES), np.quantile(expected, DECILES), atol=0.03)
  assert cut.mean() < 0.05


def test_cutmix_cuts_boxes_and_corrects_the_share():
  share, cut = mixing_draws(augment.cutmix(alpha=1.0))
  assert cut.all()
  rng = np.random.default_rng(0)
  length = np.floor(20 * np.sqrt(1 - rng.uniform(size=50_000))).astype(int)
  first = rng.integers(0, 20, (2, 50_000)) - length // 2
  sides = np.minimum(first + length, 20) - np.maximum(first, 0)
  np.testing.assert_allclose(np.quantile(share, DECILES), np.quantile(1 - sides.prod(0) / 400, DECILES), atol=0.05)


def test_the_switch_chooses_cutmix_as_often_as_it_says():
  _, cut = mixing_draws(augment.mixup_cutmix(mixup_alpha=2.0, switch=0.75))
  assert abs(cut.mean() - 0.75) < 0.05


@pytest.mark.parametrize(
  ("warp_name", "mixing_name"),
  [*((name, "none") for name in augment.WARPS), *(("none", name) for name in augment.MIXINGS)],
)
def test_every_warp_and_mixing_runs_under_jit(warp_name, mixing_name):
  apply = augment.build(10, jnp.bfloat16, warp=config.Choice(warp_name), mixing=config.Choice(mixing_name))
  images, targets = jax.jit(apply)(jax.random.key(0), pictures(8), np.arange(8))
  assert images.shape == (8, 9, 9, 3)
  assert images.dtype == jnp.bfloat16
  assert targets.dtype == jnp.float32
  np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)


def test_without_warp_and_mixing_images_are_only_normalised():
  images, targets = augment.build(10, jnp.float32)(jax.random.key(0), pictures(8), np.arange(8))
  np.testing.assert_array_equal(images, augment.normalise(pictures(8)))
  np.testing.assert_array_equal(targets, np.eye(10)[:8])
