"""Muon: momentum whose matrices are made nearly orthogonal; everything that is no matrix of a block goes by Adam."""

import math
from typing import Literal

import optax
from optax import contrib

from vit_jax import trees
from vit_jax.schema import Count, Momentum, Positive

# Input and output axes of the kernels that are matrices, counted from the end: axes before them are stacked layers.
MATRICES = (
  (r".*attention/(query|key|value)/kernel", contrib.MuonDimensionNumbers(-3, (-2, -1))),  # [D, H, K]
  (r".*attention/out/kernel", contrib.MuonDimensionNumbers((-3, -2), -1)),  # [H, K, D]
  (r".*(mlp|tokens)/(up|down)/kernel", contrib.MuonDimensionNumbers(-2, -1)),  # [D, F], [F, D]
)


def muon(
  *,
  momentum: Momentum = 0.95,
  iterations: Count = 5,
  b1: Momentum = 0.9,
  b2: Momentum = 0.999,
  eps: Positive = 1e-8,
  mu_dtype: Literal["float32", "bfloat16"] = "float32",
):
  """Muon (Jordan et al. 2024) for the kernels of attention and MLPs; `b1`, `b2` and `eps` are Adam's for all others.

  A matrix is Nesterov's momentum after `iterations` of Newton-Schulz, all heads together and each layer by itself,
  times 0.2 sqrt(max(inputs, outputs)): the size of Adam's updates, so that one lr serves both (Liu et al. 2025).
  """

  def labels(params):
    return trees.map_named(lambda path, _: "adam" if dimensions(path) is None else "matrix", params)

  def numbers(updates):
    return trees.map_named(lambda path, _: dimensions(path), updates)

  matrix = optax.chain(
    contrib.scale_by_muon(
      ns_steps=iterations, beta=momentum, mu_dtype=mu_dtype, nesterov=True, weight_dimension_numbers=numbers
    ),
    optax.stateless(lambda updates, _: trees.map_named(_as_large_as_adams, updates)),
  )
  return optax.partition({"matrix": matrix, "adam": optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)}, labels)


def dimensions(path: str) -> contrib.MuonDimensionNumbers | None:
  """Which axes of the kernel of this path are inputs and outputs; None where it is no matrix and goes by Adam."""
  first = trees.first_match([pattern for pattern, _ in MATRICES], path)
  return None if first is None else MATRICES[first][1]


def _as_large_as_adams(path, update):
  axes = dimensions(path)
  sides = (axis if isinstance(axis, tuple) else (axis,) for axis in axes)
  return 0.2 * math.sqrt(max(math.prod(update.shape[i] for i in side) for side in sides)) * update
