"""Tables of positions with and without rows for the tokens in front of the patches: the blocks get the same."""

import numpy as np
import pytest

from vit_jax.importers import position_tables
from vit_jax.models import Description
from vit_jax.schema import Choice


def described(position):
  return Description(Choice("ViT-S/8", {"position": position, "pool": "distilled"}), 16, 3)


def arrays(rows):
  rng = np.random.default_rng(0)
  shapes = {"cls": (6,), "distillation": (6,), position_tables.TABLE: (rows, 6)}
  return {path: rng.standard_normal(shape).astype(np.float32) for path, shape in shapes.items()}


def tokens(arrays, leading):
  """What is added to the patches, and the tokens in front of them with their positions."""
  table = arrays[position_tables.TABLE]
  return np.stack([arrays[name] + (table[i] if leading else 0) for i, name in enumerate(("cls", "distillation"))]), (
    table[2:] if leading else table
  )


@pytest.mark.parametrize(("have", "want"), [("learned", "learned_patches"), ("learned_patches", "learned")])
def test_a_token_that_loses_its_row_has_it_added_and_one_that_gets_a_row_gets_zeros(have, want):
  before = arrays(6 if have == "learned" else 4)
  after, description = position_tables.convert_position(before, described(have), want)
  assert description.settings()["position"] == want
  for one, other in zip(tokens(before, have == "learned"), tokens(after, want == "learned"), strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("have", "want"), [("learned", "learned"), ("sincos2d", "learned"), ("learned", None)])
def test_other_tables_are_left_alone(have, want):
  before = arrays(6)
  after, description = position_tables.convert_position(before, described(have), want)
  assert after is before and description == described(have)
