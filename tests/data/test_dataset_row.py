"""What rows of the catalog say."""

import pytest

from vit_jax.data import catalog, dataset_row


def test_a_row_of_nothing_but_a_reader_promises_nothing():
  row = dataset_row.DatasetRow(print)
  assert (row.builder, row.classes, row.labels, row.label, row.image, row.subset) == (None, None, 1, None, None, None)
  assert row.flip and row.crop and not (row.splits or row.slices or row.manual)


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_what_is_fetched_by_hand_has_steps_and_a_rule_has_a_name_for_each_class(name):
  row = catalog.CATALOG[name]
  assert bool(row.manual) == bool(row.steps)
  if isinstance(row.label, dataset_row.LabelRule):
    assert len(row.label.names) == row.classes
  if row.subset:
    assert max(row.subset) < row.classes
