"""Analysis of embeddings: filters of the first layer, and similarity of positions (Dosovitskiy et al. 2021)."""

from typing import NamedTuple

import numpy as np

from vit_jax.shapes import Float, Tensor

FILTERS = 28  # number of components in figure 7 of the paper


class FilterComponents(NamedTuple):
  """Principal components of filters, largest first.

  Attributes:
    filters: the components, scaled to length 1. The sign makes the largest weight positive.
    share: share of each component in the variance of the filters.
  """

  filters: Float[np.ndarray, "K P P C"]
  share: Float[np.ndarray, " K"]


def compute_filters(kernel: Float[Tensor, "P P C D"], count: int = FILTERS) -> FilterComponents:
  """Computes the first principal components of D filters as images, as in figure 7 (left) of the paper.

  Each filter is a point in P * P * C dimensions. The mean filter is subtracted. Components without variance are
  omitted. The result therefore has fewer than `count` components if there are fewer filters, or fewer pixels per
  filter.

  Args:
    kernel: kernel of the first layer (P, P, C, D).
    count: maximum number of components.
  """
  points = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
  points = points - points.mean(0)
  _, lengths, directions = np.linalg.svd(points, full_matrices=False)
  kept = min(count, int((lengths > 1e-6 * lengths[0]).sum()))
  directions = directions[:kept]
  largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
  variance = lengths**2 / max(np.square(lengths).sum(), np.finfo(np.float64).tiny)
  pictures = (directions * np.sign(largest)).reshape(kept, *kernel.shape[:3])
  return FilterComponents(pictures.astype(np.float32), variance[:kept].astype(np.float32))


def compute_similarity(table: Float[Tensor, "T D"], grid: tuple[int, int]) -> Float[np.ndarray, "h w h w"]:
  """Computes the cosine similarity of the position embeddings of all pairs of patches: figure 7 (centre) of the paper.

  Args:
    table: position embeddings. The embeddings of patches come last, row by row. The embeddings of prefix tokens are
      ignored.
    grid: rows and columns of patches.

  Returns:
    Similarities from -1 to 1. Element [i, j] is the map of the patch in row i and column j. Zero embeddings have
    similarity 0.

  Raises:
    ValueError: the table has fewer embeddings than the grid has patches.
  """
  rows, columns = grid
  if len(table) < rows * columns:
    raise ValueError(
      f"{len(table)} position embeddings, but a grid of {rows} x {columns} patches needs {rows * columns}"
    )
  patches = np.asarray(table, np.float64)[len(table) - rows * columns :]
  lengths = np.linalg.norm(patches, axis=1, keepdims=True)
  unit = patches / np.where(lengths > 0, lengths, 1)
  return (unit @ unit.T).reshape(rows, columns, rows, columns).astype(np.float32)
