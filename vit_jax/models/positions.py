"""Position embeddings: tables added to the tokens, of a sequence or of a grid; fixed tables are no parameters."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.shapes import Float, Tensor

# How a learned table is resampled when weights are used at another resolution; see `importers.resampling`.
#   zoom: linear, corners stay corners: scipy.ndimage.zoom of order 1 (vision_transformer, big_vision).
#   bilinear: PyTorch, align_corners=False (compact transformers).
#   bilinear_antialiased: PyTorch with antialias=True.
#   bicubic: PyTorch, align_corners=False, a = -0.75 (DeiT III, EVA-02, rope-vit, Swin, and ViT, DeiT, SigLIP and DINOv2
#     in Transformers).
#   bicubic_antialiased: PyTorch with antialias=True, a = -0.5 (timm, and DINOv2 with registers).
#   bicubic_offset: PyTorch with the scale factor (new + 0.1) / old (DINO, and DINOv2 without registers).
Resampling = Literal["zoom", "bilinear", "bilinear_antialiased", "bicubic", "bicubic_antialiased", "bicubic_offset"]


@functools.cache
def sine(tokens: int, width: int) -> Float[np.ndarray, "{tokens} {width}"]:
  """Fixed 1-D table (Vaswani et al. 2017): angle p / 10000^(2 (i // 2) / D), sine for even i, cosine for odd."""
  index = np.arange(width)
  # The angles are rounded to float32 first, as the published compact transformers do: they reach hundreds.
  angles = (np.arange(tokens)[:, None] / 10000 ** (2 * (index // 2) / width)).astype(np.float32)
  return np.where(index % 2, np.cos(angles), np.sin(angles)).astype(np.float32)


@functools.cache
def sincos2d(rows: int, columns: int, width: int) -> Float[np.ndarray, "{rows*columns} {width}"]:
  """Fixed 2-D table: sin x, cos x, sin y, cos y of D/4 frequencies each (Chen et al. 2021)."""
  y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1)
  # With one frequency the published formula divides by zero; that frequency is 1.
  frequencies = 10000.0 ** -(np.arange(width // 4) / max(width // 4 - 1, 1))
  parts = [np.sin(x * frequencies), np.cos(x * frequencies), np.sin(y * frequencies), np.cos(y * frequencies)]
  return np.concatenate(parts, axis=1).astype(np.float32)


def skipping(table: Float[Tensor, "T D"], first: int, count: int) -> Float[Tensor, "T+{count} D"]:
  """The table with `count` rows of zeros from row `first` on, for tokens that have no position."""
  if not count:
    return table
  return jnp.concatenate([table[:first], jnp.zeros((count, table.shape[1])), table[first:]])


class Fixed(nnx.Module):
  """A computed table, which is not a parameter. `leading` rows of zeros come first, for a class token."""

  def __init__(self, table: Callable[..., np.ndarray], sizes: tuple[int, ...], *, leading: int = 0):
    self.table, self.sizes, self.leading = table, sizes, leading

  def __call__(self) -> Float[np.ndarray, "T D"]:
    return np.pad(self.table(*self.sizes), ((self.leading, 0), (0, 0)))

  def of(self, grid: tuple[int, int]) -> Float[np.ndarray, "T D"]:
    """The table of another grid, (rows, columns)."""
    return np.pad(self.table(*grid, self.sizes[-1]), ((self.leading, 0), (0, 0)))


class Learned(nnx.Module):
  """One free vector a token. `leading` as in Fixed."""

  def __init__(self, tokens, width, *, leading: int = 0, std, rngs):
    self.table = nnx.Param(std * jax.random.normal(rngs.params(), (tokens, width), jnp.float32))
    self.leading = leading

  def __call__(self) -> Float[Tensor, "T D"]:
    return skipping(self.table[...], 0, self.leading)


class Factored(nnx.Module):
  """A free vector of width D/2 for the column, then one for the row. `leading` as in Fixed."""

  def __init__(self, rows, columns, width, *, leading, std, rngs):
    self.columns = nnx.Param(std * jax.random.normal(rngs.params(), (columns, width // 2), jnp.float32))
    self.rows = nnx.Param(std * jax.random.normal(rngs.params(), (rows, width // 2), jnp.float32))
    self.leading = leading

  def __call__(self) -> Float[Tensor, "T D"]:
    columns, rows = self.columns[...], self.rows[...]
    shape = (rows.shape[0], columns.shape[0], rows.shape[1])
    parts = [jnp.broadcast_to(columns[None], shape), jnp.broadcast_to(rows[:, None], shape)]
    table = jnp.concatenate(parts, axis=-1).reshape(-1, 2 * shape[2])
    return jnp.pad(table, ((self.leading, 0), (0, 0)))
