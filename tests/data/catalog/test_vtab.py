"""Tests of VTAB-1k against the table of task_adaptation: tasks, slices and classes."""

import collections

import pytest

from vit_jax.data import catalog, sources
from vit_jax.data.catalog import vtab

# Number of classes, number of test images, split of val200, split of test.
PUBLISHED = {
  "caltech101": (102, 6084, "train[2754:2954]", "test"),
  "cifar100": (100, 10_000, "train[45000:45200]", "test"),
  "dtd": (47, 1880, "validation[:200]", "test"),
  "oxford_flowers102": (102, 6149, "validation[:200]", "test"),
  "oxford_iiit_pet": (37, 3669, "train[2944:3144]", "test"),
  "sun397": (397, 21_750, "validation[:200]", "test"),
  "svhn_cropped": (10, 26_032, "train[65931:66131]", "test"),
  "patch_camelyon": (2, 32_768, "validation[:200]", "test"),
  "eurosat": (10, 5400, "train[16200:16400]", "train[21600:]"),
  "resisc45": (45, 6300, "train[18900:19100]", "train[25200:]"),
  "diabetic_retinopathy": (5, 42_670, "validation[:200]", "test"),
  "clevr_count": (8, 15_000, "train[63000:63200]", "validation"),
  "clevr_distance": (6, 15_000, "train[63000:63200]", "validation"),
  "dmlab": (6, 22_735, "validation[:200]", "test"),
  "dsprites_location": (16, 73_728, "train[589824:590024]", "train[663552:]"),
  "dsprites_orientation": (16, 73_728, "train[589824:590024]", "train[663552:]"),
  "kitti_distance": (4, 711, "validation[:200]", "test"),
  "smallnorb_azimuth": (18, 12_150, "test[:200]", "test[12150:]"),
  "smallnorb_elevation": (9, 12_150, "test[:200]", "test[12150:]"),
}


def records(name, split):
  """Returns (split, number) of every record, in order."""
  row = catalog.CATALOG[name]
  splits = sources.Splits(row.train, None, row.test, row.slices)
  return [(part, i) for part, numbers in splits.select(split, row.splits) for i in numbers]


def written(name, spec):
  return [(part, i) for part, numbers in sources.select_parts(spec, catalog.CATALOG[name].splits) for i in numbers]


def test_nineteen_tasks_are_in_three_groups():
  assert list(vtab.TASKS) == list(PUBLISHED) == list(vtab.ROWS)
  assert collections.Counter(task.group for task in vtab.TASKS.values()) == {
    "natural": 7, "specialized": 4, "structured": 8
  }  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_task_has_the_slices_of_vtab(name):
  classes, images, val, test = PUBLISHED[name]
  assert catalog.CATALOG[name].classes == classes
  train800, val200, tested = (records(name, split) for split in ("train800", "val200", "test"))
  assert train800 == written(name, "train[:800]")
  assert val200 == written(name, val) and len(val200) == 200
  assert tested == written(name, test) and len(tested) == images
  assert records(name, "train800val200") == records(name, "train1000") == train800 + val200
  assert not set(train800) & set(val200) and not set(train800 + val200) & set(tested)


def test_slice_can_be_used_as_a_split_and_added_to_other_splits():
  assert records("dtd", "train800 + val200") == records("dtd", "train1000")
  assert len(records("dtd", "val200+test")) == 2080
  with pytest.raises(sources.SplitError, match=r"no split 'train80'. Did you mean 'train800'"):
    records("dtd", "train80")
  with pytest.raises(sources.SplitError, match=r"'val200\[:9\]' cuts 'val200'.*Use it without a range"):
    records("dtd", "val200[:9]")


def test_augmentations_that_change_the_label_are_off():
  names = set(vtab.TASKS)
  assert {name for name in names if not catalog.CATALOG[name].flip} == {
    "dsprites_orientation", "smallnorb_azimuth", "dsprites_location"
  }  # fmt: skip
  assert {name for name in names if not catalog.CATALOG[name].crop} == {
    "clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location"
  }  # fmt: skip
