"""vit_jax/models/positions.py against the tables of the original codes."""

import numpy as np
import parity
import pytest
import small

from vit_jax.models import positions


@pytest.mark.parametrize(("tokens", "width"), [(64, 256), (65, 128)])
def test_sine_is_the_table_of_the_compact_transformers(tokens, width):
  stored = parity.array_file("posemb/posemb_compact_transformers.npz")[f"sine_1d_{tokens}x{width}"]
  np.testing.assert_allclose(positions.sine(tokens, width), stored[0], atol=2e-6)


@pytest.mark.parametrize(("rows", "columns", "width"), [(14, 14, 64), (3, 5, 16), (7, 7, 384)])
def test_sincos2d_is_the_table_of_big_vision(rows, columns, width):
  stored = parity.array_file("posemb/posemb_resize_zoom.npz")[f"sincos2d_{rows}x{columns}x{width}"]
  np.testing.assert_allclose(positions.sincos2d(rows, columns, width), stored[0], atol=1e-5)


def test_fixed_tables_are_no_parameters_and_may_have_rows_in_front():
  table = positions.Fixed(positions.sincos2d, (2, 3, 8), leading=1)
  np.testing.assert_array_equal(table()[1:], positions.sincos2d(2, 3, 8))
  assert table().shape == (7, 8) and not np.any(table()[0])


def test_smallest_sincos2d_is_finite():
  assert np.all(np.isfinite(positions.sincos2d(2, 2, 4)))


def test_factored_joins_the_vectors_of_column_and_row():
  table = small.layer(lambda rngs: positions.Factored(2, 3, 8, leading=1, std=0.02, rngs=rngs))
  values = np.asarray(table())
  assert not np.any(values[0])
  for row in range(2):
    for column in range(3):
      np.testing.assert_array_equal(
        values[1 + 3 * row + column], np.concatenate([table.columns[column], table.rows[row]])
      )
