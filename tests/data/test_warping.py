"""Tests of warps on the device, against NumPy."""

import jax
import numpy as np
import pytest

from tests import modules
from vit_jax.data import warping

pytestmark = pytest.mark.heavy

warp_affine = jax.jit(warping.warp_affine)


def warp(images, angle=0.0, skew=0.0, zoom=1.0, shift=(0.0, 0.0)):
  ones = np.ones(len(images), np.float32)
  return np.asarray(warp_affine(images, angle * ones, skew * ones, zoom * ones, np.outer(ones, shift)))


@pytest.mark.parametrize("shape", [(9, 9), (8, 8), (5, 12)])
def test_identity_warp_keeps_images(shape):
  images = modules.pictures(3, *shape)
  np.testing.assert_array_equal(warp(images), images)


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_right_angles_rotate_counter_clockwise(size, turns):
  images = modules.pictures(3, size, size)
  # cos(90 degrees) is 4e-8, so a point on the border may be 2e-7 outside. The error is that share of 255.
  np.testing.assert_allclose(warp(images, angle=turns * np.pi / 2), np.rot90(images, turns, (1, 2)), atol=1e-3)


def test_shifts_move_down_and_right_and_fill_with_black():
  images = modules.pictures(3)
  expected = np.zeros_like(images)
  expected[:, 2:, :-3] = images[:, :-2, 3:]
  np.testing.assert_array_equal(warp(images, shift=(2, -3)), expected)


def test_shift_by_half_a_pixel_is_the_mean_of_neighbours():
  images = modules.pictures(3).astype(float)
  result = warp(images.astype(np.uint8), shift=(0, 0.5))
  np.testing.assert_allclose(result[:, :, 1:], (images[:, :, 1:] + images[:, :, :-1]) / 2, atol=1e-4)
  np.testing.assert_allclose(result[:, :, 0], images[:, :, 0] / 2, atol=1e-4)


def numpy_warp(image, angle, skew, zoom, shift):
  """Computes one pixel at a time, with the forward matrix inverted by NumPy."""
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
def test_warp_matches_the_computation_by_pixel(numbers):
  images = modules.pictures(2, 6, 8)
  expected = np.stack([numpy_warp(image, *numbers) for image in images])
  np.testing.assert_allclose(warp(images, *numbers), expected, atol=2e-3)


def test_affine_draws_stay_in_their_ranges_and_are_applied():
  # The centroid of a white line gives the shift, its length the zoom, and its direction the angle.
  image = np.zeros((1000, 33, 33, 3), np.uint8)
  image[:, 16, 10:23] = 255
  apply = jax.jit(warping.affine(degrees=20, translate=0.1, scale=(0.8, 1.25)))
  result = np.asarray(apply(modules.keys(1000), image))[..., 0]
  y, x = np.mgrid[:33, :33]
  mass = result.sum((1, 2))
  shift = np.stack([(result * y).sum((1, 2)) / mass - 16, (result * x).sum((1, 2)) / mass - 16], -1)
  assert np.abs(shift).max() < 3.3 + 0.2  # a rotated line is not exactly symmetric
  np.testing.assert_allclose(np.quantile(shift, [0.1, 0.5, 0.9], axis=0).T, [[-2.64, 0, 2.64]] * 2, atol=0.25)
  dy, dx = y - 16 - shift[:, 0, None, None], x - 16 - shift[:, 1, None, None]
  angle = np.rad2deg(-0.5 * np.arctan2(2 * (result * dx * dy).sum((1, 2)), (result * (dx**2 - dy**2)).sum((1, 2))))
  assert np.abs(angle).max() < 20.5
  np.testing.assert_allclose(np.quantile(angle, [0.1, 0.5, 0.9]), [-16, 0, 16], atol=1)
  # Length and thickness both grow with the zoom. The second moment along the line grows with its square.
  along = np.sqrt((result * (dx**2 + dy**2)).sum((1, 2)) / mass / np.mean((np.arange(13) - 6) ** 2))
  np.testing.assert_allclose(np.quantile(along, [0.1, 0.5, 0.9]), [0.845, 1.025, 1.205], atol=0.03)


def test_images_outside_the_probability_are_unchanged():
  images = modules.pictures(1000)
  result = jax.jit(warping.affine(degrees=40, probability=0.3))(modules.keys(1000), images)
  same = (np.asarray(result) == images).all((1, 2, 3))
  assert 0.65 < same.mean() < 0.75
  np.testing.assert_array_equal(jax.jit(warping.affine(probability=0.0))(modules.keys(1000), images), images)
