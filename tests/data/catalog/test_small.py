"""Tests of small datasets: their splits in the few-shot suite of big_vision."""

import pytest

from vit_jax.data import catalog, sources


@pytest.mark.parametrize(
  ("name", "train", "test"), [("cifar10", 50_000, 10_000), ("cars196", 8144, 8041), ("uc_merced", 1000, 1100)]
)
def test_splits_match_big_vision(name, train, test):
  row = catalog.CATALOG[name]
  parts = [sources.select_parts(spec, row.splits) for spec in (row.train, row.test)]
  assert [sum(len(numbers) for _, numbers in part) for part in parts] == [train, test]
