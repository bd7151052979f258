"""Tests of generated signs: their number, their classes, and their dependence on the record number alone."""

import itertools

import numpy as np

from tests.image_files import decoded
from vit_jax.data import glyphs


def first(split, count):
  return list(itertools.islice(glyphs.examples()[split], count))


def ink(record):
  return decoded(record["image"].getvalue())[..., 0].astype(float)


def test_classes_alternate_in_both_splits():
  for split, images in (("train", glyphs.TRAIN), ("test", glyphs.TEST)):
    assert images % len(glyphs.CLASSES) == 0
    assert [record["label"] for record in first(split, 250)] == [i % 200 for i in range(250)]


def test_images_are_deterministic_and_distinct():
  files = [record["image"].getvalue() for split in ("train", "test") for record in first(split, 400)]
  assert files == [record["image"].getvalue() for split in ("train", "test") for record in first(split, 400)]
  assert len(set(files)) == len(files)


def test_image_is_ink_on_black():
  for record in first("train", 200):
    image = decoded(record["image"].getvalue())
    assert image.shape == (glyphs.PIXELS, glyphs.PIXELS, 3)
    assert (image == image[..., :1]).all()
    assert image.max() > 100
    assert np.mean(image < 30) > 0.4  # most of the image stays black


def test_curve_matches_de_casteljau_and_keeps_its_end_points():
  points = np.random.default_rng(0).normal(size=(4, 2))
  line = glyphs.sample_curve(points)
  np.testing.assert_allclose(line[[0, -1]], points[[0, -1]], atol=1e-12)

  def casteljau(points, t):
    while len(points) > 1:
      points = points[:-1] + t * (points[1:] - points[:-1])
    return points[0]

  expected = [casteljau(points, t) for t in np.linspace(0, 1, len(line))]
  np.testing.assert_allclose(line, expected, atol=1e-12)


def test_class_means_classify_held_out_images_above_chance():
  pictures = np.array([ink(record).ravel() for record in first("train", 6_000)]).reshape(30, 200, -1)
  pictures /= np.linalg.norm(pictures, axis=-1, keepdims=True)
  means = pictures[:20].mean(0)
  nearest = np.argmax(pictures[20:] @ means.T, axis=-1)
  accuracy = np.mean(nearest == np.arange(200))
  assert 0.25 < accuracy < 0.9, accuracy  # chance is 0.005, and pixels alone do not solve the task
