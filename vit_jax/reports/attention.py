"""What attention weights say of a picture: how far heads look, and from where the output is made.

Weights are softmax(q k^T) as `models.capture(function, "blocks/*/attention/weights")` gives them, [B, H, T, T]: of T
tokens the last are the patches of a grid, row by row, and those in front are prefix tokens (class and distillation
token, registers). Functions are pure, and may be traced.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from vit_jax.shapes import Array, Float, Tensor

Heads = Literal["mean", "max"]


def between(grid: tuple[int, int], patch: float) -> Float[Array, "N N"]:
  """Distances between the centres of the patches of a grid (rows, columns), whose sides are `patch` pixels."""
  row, column = jnp.divmod(jnp.arange(grid[0] * grid[1]), grid[1])
  return patch * jnp.hypot(*(jnp.float32(x[:, None] - x) for x in (row, column)))


def distance(weights: Float[Tensor, "B H T T"], grid: tuple[int, int], patch: float) -> Float[Array, "B H"]:
  """Mean attention distance of each head, in pixels: figure 7 (right) and appendix D.7 of Dosovitskiy et al. 2021.

  Of each patch as a query: the mean distance to all patches, weighted by its attention; then the mean over queries.
  The paper averages this over 128 images of 224 pixels, and does not say what becomes of the class token. Here prefix
  tokens are neither queries nor keys, and the weights of a query to patches are scaled to sum to 1, as Walmer et al.
  2023 do; the widespread code of Gosthipaty and Paul (keras.io, 2022) leaves the scaling out, so that a head which
  looks at the class token seems to look nearby. For windows (Swin) they are in the place of the images, and their
  grid is that of one window.

  Args:
    weights: of one layer.
    grid: rows and columns of patches.
    patch: pixels from one patch to the next.
  """
  count = grid[0] * grid[1]
  patches = weights[..., -count:, -count:].astype(jnp.float32)
  total, seen = (patches * between(grid, patch)).sum(-1), patches.sum(-1)
  # A query that sees prefix tokens alone sees nothing at any distance.
  return jnp.where(seen > 0, total / jnp.where(seen > 0, seen, 1), 0).mean(-1)


def maps(
  weights: Float[Tensor, "B H T T"], pooling: Float[Tensor, "#B T"], grid: tuple[int, int]
) -> Float[Array, "B H h w"]:
  """Attention of the output to each patch in one layer, by head.

  Args:
    weights: of that layer, usually the last.
    pooling: the share that each token of the last layer has in the output: 1 for a class token, equal shares of all
      patches for their mean, learned ones for sequence pooling.
    grid: rows and columns of patches.
  """
  seen = jnp.einsum("bm,bhmn->bhn", jnp.broadcast_to(pooling, (weights.shape[0], weights.shape[-1])), weights)
  return _on(grid, seen)


def rollout(
  weights: Sequence[Float[Tensor, "B H T T"]],
  pooling: Float[Tensor, "#B T"],
  grid: tuple[int, int],
  heads: Heads = "mean",
) -> Float[Array, "B h w"]:
  """Attention rollout: the share of each patch in the output, through all layers (Abnar and Zuidema 2020).

  A layer mixes tokens by half the mean of its heads' weights and, for the residual connection, half the identity; rows
  are scaled to sum to 1, and layers are multiplied. Dosovitskiy et al. 2021 show the row of the class token (figure 6).
  What is missing of 1 in the sum over patches is the share of prefix tokens.

  Args:
    weights: of each layer, from the first to the last.
    pooling: of the output over the tokens of the last layer, as in `maps`.
    grid: rows and columns of patches.
    heads: "max" takes the largest weight of all heads in place of their mean.
  """
  share = jnp.broadcast_to(pooling, (weights[0].shape[0], weights[0].shape[-1])).astype(jnp.float32)
  for layer in reversed(weights):
    mixed = layer.mean(1) if heads == "mean" else layer.max(1)
    mixed = 0.5 * mixed + 0.5 * jnp.eye(mixed.shape[-1])
    share = jnp.einsum("bm,bmn->bn", share, mixed / mixed.sum(-1, keepdims=True))
  return _on(grid, share)


def _on(grid: tuple[int, int], tokens: jax.Array) -> jax.Array:
  """[..., T] -> [..., h, w], without prefix tokens."""
  return tokens[..., tokens.shape[-1] - grid[0] * grid[1] :].reshape(*tokens.shape[:-1], *grid)
