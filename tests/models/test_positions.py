"""Tests of the position tables in vit_jax/models/positions.py against their formulas."""

import numpy as np
import pytest

from tests import modules
from vit_jax.models import positions


def test_sine_table_matches_its_formula():
  table = positions.compute_sine(5, 6)
  for p in range(5):
    for i in range(6):
      angle = p / 10000 ** (2 * (i // 2) / 6)
      np.testing.assert_allclose(table[p, i], np.cos(angle) if i % 2 else np.sin(angle), atol=1e-6)


def test_sincos2d_table_matches_its_formula():
  table = positions.compute_sincos2d(2, 3, 12).reshape(2, 3, 4, 3)
  for y in range(2):
    for x in range(3):
      for i in range(3):
        frequency = 10000 ** (-i / 2)
        angles = [np.sin(x * frequency), np.cos(x * frequency), np.sin(y * frequency), np.cos(y * frequency)]
        np.testing.assert_allclose(table[y, x, :, i], angles, atol=1e-6)


def test_fixed_table_has_zero_rows_for_leading_tokens():
  table = positions.Fixed(positions.compute_sincos2d, (2, 3, 8), leading=1)
  np.testing.assert_array_equal(table()[1:], positions.compute_sincos2d(2, 3, 8))
  assert table().shape == (7, 8) and not np.any(table()[0])


def test_smallest_sincos2d_is_finite():
  assert np.all(np.isfinite(positions.compute_sincos2d(2, 2, 4)))


@pytest.mark.heavy
def test_factored_table_joins_column_and_row_vectors():
  table = modules.layer(lambda rngs: positions.Factored(2, 3, 8, leading=1, std=0.02, rngs=rngs))
  values = np.asarray(table())
  assert not np.any(values[0])
  for row in range(2):
    for column in range(3):
      np.testing.assert_array_equal(
        values[1 + 3 * row + column], np.concatenate([table.columns[column], table.rows[row]])
      )
