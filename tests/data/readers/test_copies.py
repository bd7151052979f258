"""Tests of records that contain the same image: search by keys, against loops over all pairs."""

import numpy as np
import pytest

from vit_jax.data import sources
from vit_jax.data.readers import copies
from vit_jax.data.readers.copies import Pair


def test_keys_are_positive_numbers_that_depend_only_on_the_text():
  texts = ["", "a", "b", "\ud800", "a" * 1000]
  keys = [copies.compute_key(text) for text in texts]
  assert keys == [copies.compute_key(text) for text in texts] and len(set(keys)) == len(keys)
  assert all(0 < key < 2**63 for key in keys) and copies.UNKNOWN not in keys


@pytest.mark.parametrize("values", [[], [5], [0, 0, 0], [3, 1, 3, 0, 1, 3, 0], [2] * 5])
def test_each_repeat_is_paired_with_the_first_record_of_its_key(values):
  expected = [[values.index(value), i] for i, value in enumerate(values) if value and values.index(value) < i]
  assert copies.find_repeats(np.array(values, np.int64)).tolist() == expected


def by_loops(splits, keys):
  used = {
    role: [
      (part, i) for part, numbers in sources.select_parts(spec, {k: len(v) for k, v in keys.items()}) for i in numbers
    ]
    for role, spec in splits.specs().items()
  }
  trained, result = used.pop("train"), {}
  for role, records in used.items():
    result[role] = []
    for part, i in records:
      same = [(split, j) for split, j in trained if keys[split][j] == keys[part][i] != 0]
      if same and (part, i) not in trained:
        result[role].append(Pair(same[0], (part, i)))
  return result


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
  "specs",
  [("train", None, "test"), ("train[:60%]", "train[60%:]", "test"), ("test+train[5:]", "val", "train"),
   ("all", None, "test"), ("train", "val", "train[:9]")],
)  # fmt: skip
def test_overlaps_match_the_loop_over_all_pairs(specs, seed):
  draw = np.random.default_rng(seed)
  keys = {name: draw.integers(0, 30, size) for name, size in (("none", 0), ("train", 20), ("val", 9), ("test", 15))}
  splits = sources.Splits(*specs)
  assert copies.find_overlaps(splits, keys) == by_loops(splits, keys)


def test_missing_split_has_no_overlaps():
  keys = {"train": np.array([4, 5])}
  assert copies.find_overlaps(sources.Splits("train", None, "test"), keys) == {}
  assert copies.find_overlaps(sources.Splits("x", None, "train"), keys) == {"test": []}
  assert copies.find_overlaps(sources.Splits("x", None, "y"), {}) == {}


def test_sampled_pairs_are_evenly_spaced():
  assert list(copies.sample_pairs(range(5), 8)) == [0, 1, 2, 3, 4]
  assert list(copies.sample_pairs(range(100), 4)) == [0, 25, 50, 75]


def test_note_contains_counts_and_an_example():
  end = "Results on these images do not show how well a model generalises"
  assert copies.describe_overlap("val", 1, "a and b") == (
    f"data overlap: 1 image of val is also in the training data, for example a and b. {end}"
  )
  assert copies.describe_overlap("test", 3, "a and b", 32, 5000) == (
    "data overlap: 3 of 32 compared images of test are also in the training data, for example a and b. 5,000 images of "
    f"test have the name and the size of a training image. {end}"
  )
