"""Tests of colour policies against Pillow, colorsys and NumPy."""

import collections
import colorsys
import itertools
import random

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from tests import modules
from vit_jax import schema
from vit_jax.data import colours


def image(height=24, width=20, seed=0):
  return modules.pictures(1, height, width, seed)[0]


def test_gray_is_the_luma_of_pillow_in_all_channels():
  expected = np.asarray(Image.fromarray(image()).convert("L"))
  np.testing.assert_array_equal(colours.to_gray(image()), np.repeat(expected[..., None], 3, axis=2))


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.25, 0.5])
def test_hue_rotation_matches_colorsys(turn):
  ours = colours.rotate_hues(image(), turn).astype(int)
  steps = int(turn * 255)
  expected = np.empty_like(ours)
  for at in np.ndindex(ours.shape[:2]):
    h, s, v = colorsys.rgb_to_hsv(*(image()[at] / 255))
    h, s = (int(h * 255) + steps) % 256 / 255, int(s * 255) / 255
    expected[at] = np.round(np.array(colorsys.hsv_to_rgb(h % 1.0, s, v)) * 255)
  # Pillow quantises hues to 256 steps, while colorsys may differ in the last bit. A step is up to 6 gray levels.
  assert np.abs(ours - expected).max() <= 6 and np.abs(ours - expected).mean() < 0.5


def test_hue_rotation_keeps_gray_images():
  flat = colours.to_gray(image())
  np.testing.assert_array_equal(colours.rotate_hues(flat, 0.3), flat)


@pytest.mark.parametrize("radius", [0.1, 0.7, 1.3, 2.0])
def test_blur_approximates_a_gaussian(radius):
  smooth = np.asarray(Image.fromarray(image(6, 6)).resize((48, 48), Image.Resampling.BICUBIC))
  at = np.arange(-12, 13)
  weights = np.exp(-(at**2) / (2 * radius**2))
  weights /= weights.sum()
  padded = np.pad(smooth, ((12, 12), (12, 12), (0, 0)), "edge").astype(float)
  rows = sum(weight * padded[i : i + 48] for i, weight in enumerate(weights))
  expected = sum(weight * rows[:, i : i + 48] for i, weight in enumerate(weights))
  assert np.abs(colours.gaussian_blur(smooth, radius) - expected)[4:-4, 4:-4].max() <= 4


def enhanced(picture, names, factors):
  for name in names:
    picture = getattr(ImageEnhance, name)(picture).enhance(factors[name])
  return np.asarray(picture)


def test_jitter_applies_pillow_enhancements_in_the_drawn_order():
  policy, orders = colours.colour_jitter(brightness=0.4, contrast=0.3, saturation=0.2), collections.Counter()
  for seed in range(200):
    draw = random.Random(seed)
    keys = {name: draw.random() for name in ("Brightness", "Contrast", "Color")}
    order = tuple(sorted(keys, key=keys.get))
    limits = {"Brightness": 0.4, "Contrast": 0.3, "Color": 0.2}
    factors = {name: 1 - limits[name] + 2 * limits[name] * draw.random() for name in order}
    ours = policy(image(), random.Random(seed)).astype(int)
    assert np.abs(ours - enhanced(Image.fromarray(image()), order, factors)).max() <= 1
    orders[order] += 1
  assert set(orders) == set(itertools.permutations(("Brightness", "Contrast", "Color")))
  assert min(orders.values()) > 15


def test_jitter_factors_are_not_negative_and_zero_jitter_is_valid():
  assert colours.colour_jitter(brightness=0, contrast=0, saturation=0)(image(), None) is not None
  means = [
    colours.colour_jitter(brightness=3.0, contrast=0, saturation=0)(image(), random.Random(seed)).mean()
    / image().mean()
    for seed in range(60)
  ]
  assert 0 <= min(means) < 0.4 and max(means) > 1.3


def test_three_augment_is_one_of_three_operations_and_a_jitter():
  policy, jitter = colours.three_augment(), colours.colour_jitter(brightness=0.3, contrast=0.3, saturation=0.3)
  counts, radii = collections.Counter(), []
  for seed in range(300):
    draw, picture = random.Random(seed), Image.fromarray(image())
    kind = int(draw.random() * 3)
    counts[kind] += 1
    if kind == 0:
      expected = picture.convert("L").convert("RGB")
    elif kind == 1:
      expected = ImageOps.solarize(picture)
    else:
      radii.append(0.1 + draw.random() * 1.9)
      expected = picture.filter(ImageFilter.GaussianBlur(radii[-1]))
    np.testing.assert_array_equal(policy(image(), random.Random(seed)), jitter(np.asarray(expected), draw))
  assert all(count == pytest.approx(100, abs=25) for count in counts.values())
  assert 0.1 <= min(radii) < 0.2 and 1.9 < max(radii) <= 2.0


@pytest.mark.parametrize(
  ("name", "arguments", "output"),
  [
    ("colour_jitter", {"hue": 0.6}, "hue: 0.6 is out of range"),
    ("colour_jitter", {"brightness": -1}, "brightness: -1.0 is out of range"),
    ("three_augment", {"jitter": -0.1}, "jitter"),
  ],
)
def test_amounts_out_of_range_are_refused(name, arguments, output):
  with pytest.raises(schema.ConfigError, match=output):
    schema.bind(schema.Choice(name, arguments), (getattr(colours, name),))


def test_blur_radii_from_high_to_low_are_refused():
  with pytest.raises(schema.ConfigError, match="high to low"):
    colours.three_augment(blur=(2.0, 0.1))
