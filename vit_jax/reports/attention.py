"""Attention of a model to an image: distances of heads, and maps of the output.

Weights are softmax(q k^T), as returned by `models.capture(function, "blocks/*/attention/weights")`. Their shape is
(B, H, T, T). The last of the T tokens are the patches of a grid, row by row. Prefix tokens (class and distillation
token, registers) precede them. All functions are pure and may be traced.
"""

from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp

from vit_jax.shapes import Array, Float, Tensor

Heads = Literal["mean", "max"]


def measure_patch_distances(grid: tuple[int, int], patch: float) -> Float[Array, "N N"]:
  """Returns the distances between the centres of the patches of a grid, in pixels.

  Args:
    grid: rows and columns of patches.
    patch: size of a patch in pixels.
  """
  row, column = jnp.divmod(jnp.arange(grid[0] * grid[1]), grid[1])
  return patch * jnp.hypot(*(jnp.float32(x[:, None] - x) for x in (row, column)))


def measure_head_distances(
  weights: Float[Tensor, "B H T T"], grid: tuple[int, int], patch: float
) -> Float[Array, "B H"]:
  """Computes the mean attention distance of each head in pixels.

  The distance is that of figure 7 (right) and appendix D.7 of Dosovitskiy et al. 2021. For each patch as a query, it is
  the mean distance to all patches, weighted by attention. The result is the mean over queries. The paper averages this
  over 128 images of 224 pixels, and does not specify how it treats the class token.

  Here prefix tokens are neither queries nor keys. The weights of a query are scaled to sum to 1 over the patches, as in
  Walmer et al. 2023. The widespread code of Gosthipaty and Paul (keras.io, 2022) omits the scaling. Without scaling, a
  head that attends to the class token seems to attend to near patches. For windows (Swin), pass the windows as images,
  and the grid of one window.

  Args:
    weights: weights of one layer.
    grid: rows and columns of patches.
    patch: distance between adjacent patches in pixels.
  """
  count = grid[0] * grid[1]
  patches = weights[..., -count:, -count:].astype(jnp.float32)
  total, seen = (patches * measure_patch_distances(grid, patch)).sum(-1), patches.sum(-1)
  # A query that attends only to prefix tokens has distance 0.
  return jnp.where(seen > 0, total / jnp.where(seen > 0, seen, 1), 0).mean(-1)


def compute_attention_maps(
  weights: Float[Tensor, "B H T T"], pooling: Float[Tensor, "#B T"], grid: tuple[int, int]
) -> Float[Array, "B H h w"]:
  """Computes the attention of the output to each patch in one layer, by head.

  Args:
    weights: weights of the layer, usually the last.
    pooling: share of each token of the last layer in the output. The share is 1 for a class token, equal for all
      patches with mean pooling, and learned with sequence pooling.
    grid: rows and columns of patches.
  """
  seen = jnp.einsum("bm,bhmn->bhn", jnp.broadcast_to(pooling, (weights.shape[0], weights.shape[-1])), weights)
  return _reshape_to_grid(grid, seen)


def compute_rollout(
  weights: Sequence[Float[Tensor, "B H T T"]],
  pooling: Float[Tensor, "#B T"],
  grid: tuple[int, int],
  heads: Heads = "mean",
) -> Float[Array, "B h w"]:
  """Computes attention rollout: the share of each patch in the output, through all layers (Abnar and Zuidema 2020).

  The matrix of a layer is the average of two matrices: the mean weights of its heads, and the identity. The identity
  represents the residual connection. The rows are scaled to sum to 1. The matrices of all layers are multiplied.
  Dosovitskiy et al. 2021 show the row of the class token (figure 6). The shares of patches and prefix tokens sum to 1.

  Args:
    weights: weights of each layer, from the first to the last.
    pooling: share of each token of the last layer in the output, as in `compute_attention_maps`.
    grid: rows and columns of patches.
    heads: "mean" averages the heads, "max" takes the largest weight of all heads.
  """
  share = jnp.broadcast_to(pooling, (weights[0].shape[0], weights[0].shape[-1])).astype(jnp.float32)
  for layer in reversed(weights):
    mixed = layer.mean(1) if heads == "mean" else layer.max(1)
    mixed = 0.5 * mixed + 0.5 * jnp.eye(mixed.shape[-1])
    share = jnp.einsum("bm,bmn->bn", share, mixed / mixed.sum(-1, keepdims=True))
  return _reshape_to_grid(grid, jnp.asarray(share))


def _reshape_to_grid(grid: tuple[int, int], tokens: Array) -> Array:
  """Converts tokens (..., T) to a grid (..., h, w) without prefix tokens."""
  return tokens[..., tokens.shape[-1] - grid[0] * grid[1] :].reshape(*tokens.shape[:-1], *grid)
