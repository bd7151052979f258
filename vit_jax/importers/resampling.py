"""Resampling of position tables to another grid, with the rule of each publisher."""

import numpy as np

from vit_jax.models.interpolation import compute_weights
from vit_jax.models.positions import Resampling


def resample(table: np.ndarray, old: tuple[int, int], new: tuple[int, int], method: Resampling = "zoom") -> np.ndarray:
  """Resamples a position table to another grid.

  Args:
    table: table (rows * columns, D) for the grid `old`, row by row.
    old: (rows, columns) of the table.
    new: (rows, columns) of the result. An equal grid returns an equal table.
    method: rule of the publisher. See `positions.Resampling`.

  Returns:
    A float32 table (rows * columns, D) for the grid `new`.

  Raises:
    ValueError: if the number of rows of the table does not match the grid.
  """
  if table.shape[0] != old[0] * old[1]:
    raise ValueError(f"a table of {table.shape[0]} rows is not a grid of {old[0]} x {old[1]}")
  if old == new:
    return table.astype(np.float32)
  # The offset also moves the centres along an axis of unchanged length, as in the published code.
  down, right = (compute_weights(a, b, method) for a, b in zip(old, new, strict=True))
  grid = table.reshape(*old, -1).astype(np.float64)
  return np.einsum("ra,sb,abd->rsd", down, right, grid, optimize=True).reshape(-1, table.shape[1]).astype(np.float32)
