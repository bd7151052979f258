"""What embeddings have learned: filters of the first layer, and how alike positions are (Dosovitskiy et al. 2021)."""

from typing import NamedTuple

import numpy as np

from vit_jax.shapes import Float, Tensor

FILTERS = 28  # components that figure 7 of the paper shows


class Components(NamedTuple):
  """Principal components of filters, largest first."""

  filters: Float[np.ndarray, "K P P C"]  # of length 1; the sign makes the largest weight positive
  share: Float[np.ndarray, " K"]  # of the filters' variance


def filters(kernel: Float[Tensor, "P P C D"], count: int = FILTERS) -> Components:
  """The first principal components of D filters, as pictures: figure 7 (left) of the paper.

  Each filter is a point of P * P * C dimensions, from which the mean filter is taken away. There are fewer than
  `count` components where the filters, or the pixels that each sees, are fewer: those without variance are left out.
  """
  points = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
  points = points - points.mean(0)
  _, lengths, directions = np.linalg.svd(points, full_matrices=False)
  kept = min(count, int((lengths > 1e-6 * lengths[0]).sum()))
  directions = directions[:kept]
  largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
  variance = lengths**2 / max(np.square(lengths).sum(), np.finfo(np.float64).tiny)
  pictures = (directions * np.sign(largest)).reshape(kept, *kernel.shape[:3])
  return Components(pictures.astype(np.float32), variance[:kept].astype(np.float32))


def similarity(table: Float[Tensor, "T D"], grid: tuple[int, int]) -> Float[np.ndarray, "h w h w"]:
  """Cosine similarity of the position embedding of each patch with those of all: figure 7 (centre) of the paper.

  Args:
    table: position embeddings; those of the patches, row by row, come last, after those of prefix tokens, which are
      left out.
    grid: rows and columns of patches. ValueError where the table has fewer embeddings.

  Returns:
    [i, j] is the map of the patch in row i and column j, from -1 to 1; 0 where an embedding is zero.
  """
  rows, columns = grid
  if len(table) < rows * columns:
    raise ValueError(f"{len(table)} position embeddings; a grid of {rows} x {columns} patches has {rows * columns}")
  patches = np.asarray(table, np.float64)[len(table) - rows * columns :]
  lengths = np.linalg.norm(patches, axis=1, keepdims=True)
  unit = patches / np.where(lengths > 0, lengths, 1)
  return (unit @ unit.T).reshape(rows, columns, rows, columns).astype(np.float32)
