"""Tests that position tables with and without rows for prefix tokens give the blocks the same input."""

import numpy as np
import pytest

from vit_jax.importers import position_tables
from vit_jax.models import Description
from vit_jax.schema import Choice


def describe(position):
  return Description(Choice("ViT-S/8", {"position": position, "pool": "distilled"}), 16, 3)


def arrays(rows):
  rng = np.random.default_rng(0)
  shapes = {"cls": (6,), "distillation": (6,), position_tables.TABLE: (rows, 6)}
  return {path: rng.standard_normal(shape).astype(np.float32) for path, shape in shapes.items()}


def tokens(arrays, leading):
  """Returns the prefix tokens plus their positions, and the positions of the patches."""
  table = arrays[position_tables.TABLE]
  return np.stack([arrays[name] + (table[i] if leading else 0) for i, name in enumerate(("cls", "distillation"))]), (
    table[2:] if leading else table
  )


@pytest.mark.parametrize(("have", "want"), [("learned", "learned_patches"), ("learned_patches", "learned")])
def test_converted_table_keeps_the_input_of_the_blocks(have, want):
  before = arrays(6 if have == "learned" else 4)
  after, description = position_tables.convert_position(before, describe(have), want)
  assert description.settings()["position"] == want
  for one, other in zip(tokens(before, have == "learned"), tokens(after, want == "learned"), strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("have", "want"), [("learned", "learned"), ("sincos2d", "learned"), ("learned", None)])
def test_tables_without_a_change_are_returned_as_they_are(have, want):
  before = arrays(6)
  after, description = position_tables.convert_position(before, describe(have), want)
  assert after is before and description == describe(have)
