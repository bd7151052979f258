"""Tests of ImageNet and its test sets: published sizes, and the classes of ImageNet-A and ImageNet-R."""

import pytest

from vit_jax.data import catalog
from vit_jax.data.catalog import imagenet

IMAGES = {
  "imagenet2012_real": 50_000,
  "imagenet2012_multilabel": 20_000,
  "imagenet_v2": 10_000,
  "imagenet_v2_threshold": 10_000,
  "imagenet_v2_topimages": 10_000,
  "imagenet_a": 7_500,
  "imagenet_r": 30_000,
  "imagenet_sketch": 50_889,
  "imagenet2012_corrupted": 50_000,
}


@pytest.mark.parametrize("name", IMAGES)
def test_imagenet_test_sets_have_their_published_sizes(name):
  row = catalog.CATALOG[name]
  assert (row.splits[row.test], row.classes, row.train) == (IMAGES[name], 1000, row.test)
  assert (row.labels > 1) == (name in ("imagenet2012_real", "imagenet2012_multilabel"))


@pytest.mark.parametrize("classes", [imagenet.A, imagenet.R])
def test_subset_has_200_sorted_classes(classes):
  assert len(classes) == 200
  assert list(classes) == sorted(set(classes))
  assert classes[0] >= 0 and classes[-1] < 1000


def test_sums_of_subsets_match_the_lists_of_timm():
  assert (sum(imagenet.A), sum(imagenet.R), len({*imagenet.A} & {*imagenet.R})) == (102_178, 86_135, 86)
  assert 0 not in {*imagenet.A, *imagenet.R}  # class 0 (tench) is in neither subset
