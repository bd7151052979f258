"""Tests of permutations per epoch, and of parts that partition an epoch between groups."""

import numpy as np
import pytest

from vit_jax import rng
from vit_jax.data import permutation


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_permutation_has_each_number_once_and_differs_between_epochs(length, monkeypatch):
  for function in (permutation.permute_index, permutation.permute_block):
    epochs = [[function(i, length, 3, epoch) for i in range(length)] for epoch in range(3)]
    assert all(sorted(epoch) == [*range(length)] for epoch in epochs)
    assert length == 1 or len(set(map(tuple, epochs))) == 3
  table = [permutation.permute_block(i, length, 3, 0) for i in range(length)]
  assert table == sorted(
    range(length), key=rng.make_numpy_generator(3, "blocks", 0).bit_generator.random_raw(length).__getitem__
  )
  monkeypatch.setattr(permutation, "TABLE", 0)
  assert [permutation.permute_block(i, length, 3, 0) for i in range(length)] == [
    permutation.permute_index(i, length, 3, 0) for i in range(length)
  ]


@pytest.mark.parametrize(("length", "groups"), [(10, 3), (64, 64), (64, 5), (1001, 16), (97, 1), (3, 5)])
def test_parts_partition_each_epoch_and_groups_stay_balanced(length, groups):
  had = [0] * groups
  for epoch in range(12):
    parts = [permutation.select_indices(length, epoch, group, groups) for group in range(groups)]
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(length))
    assert [permutation.count_earlier(length, epoch, group, groups) for group in range(groups)] == had
    for group, part in enumerate(parts):
      for index in range(len(part)):
        assert permutation.locate(length, had[group] + index, group, groups) == (epoch, index)
    had = [count + len(part) for count, part in zip(had, parts, strict=True)]
    assert max(had) - min(had) <= 1
