"""Tests of the catalog's rows: defaults, instructions for manual downloads, and names of derived classes."""

import pytest

from vit_jax.data import catalog, dataset_row


def test_row_with_only_a_reader_has_defaults():
  row = dataset_row.DatasetRow(print)
  assert (row.builder, row.classes, row.labels, row.label, row.image, row.subset) == (None, None, 1, None, None, None)
  assert row.flip and row.crop and not (row.splits or row.slices or row.manual)


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_manual_rows_have_steps_and_label_rules_name_every_class(name):
  row = catalog.CATALOG[name]
  assert bool(row.manual) == bool(row.steps)
  if isinstance(row.label, dataset_row.LabelRule):
    assert len(row.label.names) == row.classes
  if row.subset:
    assert max(row.subset) < row.classes
