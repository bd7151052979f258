"""Position embeddings: tables that are added to the tokens of a sequence or a grid. Fixed tables are not parameters."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.parameters import Keys
from vit_jax.shapes import Float, Tensor

# Methods of resampling a learned table to another resolution, see `importers.resampling`:
#   zoom: linear with aligned corners, scipy.ndimage.zoom of order 1 (vision_transformer, big_vision).
#   bilinear: PyTorch, align_corners=False (compact transformers).
#   bilinear_antialiased: PyTorch with antialias=True.
#   bicubic: PyTorch, align_corners=False, a = -0.75 (DeiT III, EVA-02, rope-vit, Swin, and ViT, DeiT, SigLIP and DINOv2
#     in Transformers).
#   bicubic_antialiased: PyTorch with antialias=True, a = -0.5 (timm, and DINOv2 with registers).
#   bicubic_offset: PyTorch with the scale factor (new + 0.1) / old (DINO, and DINOv2 without registers).
Resampling = Literal["zoom", "bilinear", "bilinear_antialiased", "bicubic", "bicubic_antialiased", "bicubic_offset"]


@functools.cache
def compute_sine(tokens: int, width: int) -> Float[np.ndarray, "{tokens} {width}"]:
  """Returns the fixed 1-D table of Vaswani et al. 2017.

  The angle of position p and channel i is p / 10000^(2 (i // 2) / D). Even channels contain its sine, odd channels its
  cosine.

  Args:
    tokens: number of tokens.
    width: number of channels D.
  """
  index = np.arange(width)
  # The angles reach hundreds. They are rounded to float32 first, as in the published compact transformers.
  angles = (np.arange(tokens)[:, None] / 10000 ** (2 * (index // 2) / width)).astype(np.float32)
  return np.where(index % 2, np.cos(angles), np.sin(angles)).astype(np.float32)


@functools.cache
def compute_sincos2d(rows: int, columns: int, width: int) -> Float[np.ndarray, "{rows*columns} {width}"]:
  """Returns the fixed 2-D table of Chen et al. 2021. Its four quarters are sin x, cos x, sin y and cos y of D/4
  frequencies.

  Args:
    rows: number of rows of patches.
    columns: number of columns of patches.
    width: number of channels D.
  """
  y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1)
  # With a single frequency the published formula divides by zero. That frequency is 1.
  frequencies = 10000.0 ** -(np.arange(width // 4) / max(width // 4 - 1, 1))
  parts = [np.sin(x * frequencies), np.cos(x * frequencies), np.sin(y * frequencies), np.cos(y * frequencies)]
  return np.concatenate(parts, axis=1).astype(np.float32)


def insert_zeros(table: Float[Tensor, "T D"], first: int, count: int) -> Float[Tensor, "T+{count} D"]:
  """Inserts rows of zeros into a table, for tokens without a position.

  Args:
    table: positions, (T, D).
    first: number of the first inserted row.
    count: number of inserted rows.

  Returns:
    The table, (T + count, D).
  """
  if not count:
    return table
  return jnp.concatenate([table[:first], jnp.zeros((count, table.shape[1])), table[first:]])


class Fixed(nnx.Module):
  """A computed table, which is not a parameter.

  Args:
    table: function that computes the table from sizes.
    sizes: arguments of `table`. The last one is the width.
    leading: number of rows of zeros in front, for tokens such as the class token.
  """

  def __init__(self, table: Callable[..., np.ndarray], sizes: tuple[int, ...], *, leading: int = 0) -> None:
    self.table, self.sizes, self.leading = table, sizes, leading

  def __call__(self) -> Float[np.ndarray, "T D"]:
    return np.pad(self.table(*self.sizes), ((self.leading, 0), (0, 0)))

  def compute_for_grid(self, grid: tuple[int, int]) -> Float[np.ndarray, "T D"]:
    """Returns the table for another grid (rows, columns)."""
    return np.pad(self.table(*grid, self.sizes[-1]), ((self.leading, 0), (0, 0)))


class Learned(nnx.Module):
  """A table with one learned vector per token.

  Args:
    tokens: number of learned rows.
    width: number of channels.
    leading: number of rows of zeros in front, for tokens such as the class token.
    std: standard deviation of the initial values.
    rngs: source of keys.
  """

  def __init__(self, tokens: int, width: int, *, leading: int = 0, std: float, rngs: Keys) -> None:
    self.table = nnx.Param(std * jax.random.normal(rngs.params(), (tokens, width), jnp.float32))
    self.leading = leading

  def __call__(self) -> Float[Tensor, "T D"]:
    return insert_zeros(self.table[...], 0, self.leading)


class Factored(nnx.Module):
  """A table of learned vectors. A patch has a vector of width D/2 for its column, followed by one for its row.

  Args:
    rows: number of rows of patches.
    columns: number of columns of patches.
    width: number of channels D.
    leading: number of rows of zeros in front, for tokens such as the class token.
    std: standard deviation of the initial values.
    rngs: source of keys.
  """

  def __init__(self, rows: int, columns: int, width: int, *, leading: int, std: float, rngs: Keys) -> None:
    self.columns = nnx.Param(std * jax.random.normal(rngs.params(), (columns, width // 2), jnp.float32))
    self.rows = nnx.Param(std * jax.random.normal(rngs.params(), (rows, width // 2), jnp.float32))
    self.leading = leading

  def __call__(self) -> Float[Tensor, "T D"]:
    columns, rows = self.columns[...], self.rows[...]
    shape = (rows.shape[0], columns.shape[0], rows.shape[1])
    parts = [jnp.broadcast_to(columns[None], shape), jnp.broadcast_to(rows[:, None], shape)]
    table = jnp.concatenate(parts, axis=-1).reshape(-1, 2 * shape[2])
    return jnp.pad(table, ((self.leading, 0), (0, 0)))
