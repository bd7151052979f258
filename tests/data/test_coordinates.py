"""Tests of pixel coordinates, against indices that are cut into patches like images."""

import numpy as np
import pytest
from einops import rearrange

from tests import modules
from vit_jax.data import coordinates


@pytest.mark.parametrize("patch", [None, 1, 3, 12])
def test_coordinates_of_each_value_are_its_row_and_column(patch):
  images = modules.pictures(2, 12, 12)
  row_and_column = np.broadcast_to(np.indices((12, 12))[..., None], (2, 12, 12, 3))
  if patch is not None:
    images, row_and_column = (
      rearrange(x, "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch) for x in (images, row_and_column)
    )
  assert coordinates.get_image_sides(images, patch) == (12, 12)
  found = [np.broadcast_to(x, images.shape[1:]) for x in coordinates.compute_pixel_coordinates(images, patch)]
  np.testing.assert_array_equal(found, row_and_column)


def test_whole_images_may_be_rectangular():
  images = modules.pictures(2, 5, 8)
  assert coordinates.get_image_sides(images, None) == (5, 8)
  assert [x.shape for x in coordinates.compute_pixel_coordinates(images, None)] == [(5, 1, 1), (8, 1)]


@pytest.mark.parametrize("shape", [(2, 15, 48), (2, 16, 75)])
def test_patches_that_do_not_form_a_square_are_refused(shape):
  with pytest.raises(AssertionError):
    coordinates.get_image_sides(np.zeros(shape, np.uint8), 4)


def test_box_excludes_its_end_row_and_column():
  expected = np.zeros((6, 7, 1), bool)
  expected[2:5, 1:3] = True
  np.testing.assert_array_equal(
    coordinates.is_inside(coordinates.compute_pixel_coordinates(np.zeros((1, 6, 7, 3)), None), (2, 1, 3, 2)), expected
  )
  assert not coordinates.is_inside(
    coordinates.compute_pixel_coordinates(np.zeros((1, 6, 7, 3)), None), (2, 1, 0, 2)
  ).any()
