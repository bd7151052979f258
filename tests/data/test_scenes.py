"""Tests of generated scenes: their masks, classes and colours, and their dependence on the record number alone."""

import itertools

import numpy as np

from tests.image_files import decoded
from vit_jax.data import masks, scenes


def first(split, count):
  return list(itertools.islice(scenes.examples()[split], count))


def mask_of(record):
  return masks.decode_numbers(record["mask"].getvalue(), 10**6, 10)


def test_images_are_deterministic_and_distinct():
  def files():
    return [record["image"].getvalue() for split in ("train", "test") for record in first(split, 40)]

  assert files() == files() and len(set(files())) == 80


def test_image_and_mask_match_the_drawn_scene():
  for number, record in enumerate(first("train", 20)):
    pixels, mask = scenes.draw_scene(number)
    np.testing.assert_array_equal(decoded(record["image"].getvalue()), pixels)
    np.testing.assert_array_equal(mask_of(record), mask)
    assert pixels.shape == (scenes.PIXELS, scenes.PIXELS, 3) and mask.shape == pixels.shape[:2]


def test_label_is_the_class_with_most_pixels_and_all_classes_occur():
  seen = np.zeros(len(scenes.CLASSES) + 1, int)
  for record in first("train", 200):
    counts = np.array([np.sum(mask_of(record) == number) for number in range(len(seen))])
    assert counts[1:].argmax() == record["label"] and counts[0] > 0 and counts[1:].sum() > 0
    seen += counts
  assert seen[0] / seen.sum() > 0.6 and (seen[1:] / seen.sum() > 0.01).all()


def test_colours_separate_objects_from_the_ground_but_not_outlines():
  colours = {}
  for number in range(400):
    pixels, mask = scenes.draw_scene(number)
    for kind in np.unique(mask):
      colours.setdefault(kind, []).append(pixels[mask == kind].mean(0))
  means = np.array([np.mean(colours[kind], 0) for kind in range(len(scenes.OUTLINES) + 1)])
  spread = np.mean([np.std(some, 0) for some in colours.values()])
  assert np.ptp(means[1:], 0).max() < 0.75 * spread < (means[1:] - means[0]).min()


def test_textures_vary_within_a_patch_and_outlines_do_not():
  rough = {}
  for number in range(300):
    pixels, mask = scenes.draw_scene(number)
    for top, left in itertools.product(range(0, 64, 8), repeat=2):
      patch, of_class = (array[top : top + 8, left : left + 8] for array in (pixels, mask))
      if (of_class == of_class[0, 0]).all() and of_class[0, 0]:
        rough.setdefault(scenes.CLASSES[of_class[0, 0] - 1], []).append(patch.astype(float).std((0, 1)).mean())
  typical = {name: np.median(some) for name, some in rough.items()}
  assert max(typical[name] for name in scenes.OUTLINES) < 0.6 * min(typical[name] for name in scenes.TEXTURES)
