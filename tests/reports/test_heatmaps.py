"""Tests of vit_jax/reports/heatmaps.py by the pixels of its drawings."""

import base64
import re

import cv2
import matplotlib
import numpy as np

from tests.modules import pictures
from vit_jax.reports import heatmaps

draw = np.random.default_rng(0)


def images(svg):
  """Yields the RGBA pixels of the images in an SVG."""
  for data in re.findall(r'href="data:image/png;base64,([^"]*)"', svg):
    pixels = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_UNCHANGED)
    yield cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA)


def points(svg):
  """Returns (x, y) of the dots of a chart, in units of the SVG, with y upwards."""
  found = re.findall(r'<use xlink:href="[^"]*" x="([\d.]+)" y="([\d.]+)" style="fill: var\(--series-0\)', svg)
  return np.array([(float(x), -float(y)) for x, y in found])


def test_small_images_are_enlarged_in_blocks_and_large_ones_reduced():
  for side, size in ((8, 112), (32, 128), (100, 200), (224, 224), (384, 224)):
    [square] = pictures(1, side, side)
    shown = heatmaps.scale_image(square)
    assert shown.shape == (size, size, 3)
    if side < 112:
      times = size // side
      np.testing.assert_array_equal(shown[::times, ::times], square)
      np.testing.assert_array_equal(shown[times - 1 :: times, times - 1 :: times], square)


def test_overlay_of_the_largest_weight_is_yellow_and_of_zero_black():
  black = np.zeros((28, 28, 3), np.uint8)
  weights = np.zeros((7, 7), np.float32)
  weights[2, 5] = 0.01  # its share counts, not its absolute value
  found = heatmaps.draw_overlay(black, weights)
  middle = found[8:12, 20:24].reshape(-1, 3).astype(int)
  assert middle[:, 0].min() > 60 and (middle[:, 0] > middle[:, 2]).all()
  assert found[0, 0].max() <= 2
  assert np.unravel_index(found.sum(-1).argmax(), (28, 28))[0] in range(8, 12)
  np.testing.assert_array_equal(
    heatmaps.draw_overlay(black, np.zeros((7, 7), np.float32)), np.full_like(black, found[0, 0])
  )


def test_image_below_an_overlay_is_gray():
  white = np.full((28, 28, 3), 255, np.uint8)
  np.testing.assert_allclose(heatmaps.draw_overlay(white, np.zeros((7, 7), np.float32)), 115, atol=2)


def test_joined_images_are_side_by_side():
  first, second = pictures(2, 10, 10)
  found = heatmaps.join_images([first, second])
  assert found.shape == (10, 24, 3)
  np.testing.assert_array_equal(found[:, :10], first)
  np.testing.assert_array_equal(found[:, 14:], second)
  assert (found[:, 10:14] == 128).all()


def test_zeros_of_filters_are_gray():
  filters = draw.standard_normal((2, 4, 4, 3)).astype(np.float32)
  filters[0, 1, 2, 0], filters[0, 0, 0, 1], filters[1, 3, 3] = 0, -9, 0
  first, second = heatmaps.draw_filters(filters)
  assert first[1, 2, 0] in (127, 128) and first[0, 0, 1] == 0 and (second[3, 3] == 128).all()
  np.testing.assert_allclose(second, 127.5 * (1 + filters[1] / np.abs(filters[1]).max()), atol=1)


def test_only_every_second_map_of_a_large_grid_is_drawn():
  assert list(heatmaps.select_rows(14)) == list(range(14)) and list(heatmaps.select_rows(16)) == list(range(16))
  assert list(heatmaps.select_rows(24)) == list(range(0, 24, 2))
  assert len(heatmaps.select_rows(37)) == 13 and heatmaps.select_rows(37)[0] == 0


def test_similarities_are_drawn_as_a_grid_of_maps():
  values = draw.uniform(-1, 1, (18, 18, 18, 18)).astype(np.float32)
  image = max(images(heatmaps.draw_similarity(values, "a")), key=lambda one: one.size)
  assert image.shape == (9 * 20 - 2, 9 * 20 - 2, 4)
  for i, j in ((0, 0), (2, 7), (8, 8)):
    tile = image[20 * i : 20 * i + 18, 20 * j : 20 * j + 18]
    expected = matplotlib.colormaps["viridis"]((values[2 * i, 2 * j] + 1) / 2) * 255
    np.testing.assert_allclose(tile, expected, atol=1)
  assert not image[18:20, :, 3].any(), "between the maps is the page"


def test_every_head_is_a_dot_at_its_distance():
  values = np.array([[10, 40, 20], [60, 5, np.nan]], np.float32)
  svg = heatmaps.draw_distances(values, np.array([50, 50], np.float32), 224, "a")
  found = points(svg)
  found = found[np.argsort(found[:, 0])][-5:] if len(found) > 5 else found
  assert len(found) == 5
  heights = found[:, 1]
  expected = np.array([10, 20, 40, 5, 60])  # by layer, nearest first
  slope = (heights[4] - heights[3]) / 55
  np.testing.assert_allclose((heights - heights[0]) / slope, expected - 10, atol=0.05)
  assert "pixels of 224" in svg and "equal attention to all patches" in svg
