"""Normalisation (RMS norm) and rotation (rotary positions) of queries and keys inside of attention kernels.

The norm and the rotation process 128 lanes at once. These lanes contain whole heads of up to 128 channels. Two
operations are computed as products with a constant matrix:

- The sum over the channels of a head, which writes its result to all lanes of the head.
- The exchange of the two halves of a head.

On a TPU v3, such a product takes four cycles of the matrix units for eight tokens. A reduction or a rotation of lanes
takes eight cycles.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.kernels import tiling
from vit_jax.models.kernels.tiling import Ref
from vit_jax.shapes import Array, Float, Tensor

Lanes = Float[Array, "_ 128"]  # there may be fewer queries than keys


class Operations(NamedTuple):
  """The operations on queries and keys.

  Attributes:
    eps: epsilon of the norm, or None without a norm.
    rotates: whether queries and keys are rotated.
  """

  eps: float | None
  rotates: bool

  @property
  def operands(self) -> int:
    """Number of arrays that a kernel needs for these operations, see `list_operands`."""
    return 3 * (self.eps is not None) + 5 * self.rotates


def supports(size: int) -> bool:
  """Returns whether groups of lanes contain only whole heads, if heads have `size` channels."""
  return tiling.LANES % size == 0 and size % 2 == 0


def list_operands(
  operations: Operations,
  layout: tiling.Layout,
  gains: tuple[Float[Tensor, " F"], ...],
  angles: Float[np.ndarray, "N K2"] | None,
) -> list[tuple[str, Float[Tensor, "..."]]]:
  """Returns the arrays that a kernel needs, as pairs (kind, array) in the order in which `Transform` reads them.

  Args:
    operations: the operations.
    layout: layout of the kernel's arrays.
    gains: factors of queries and keys after the norm, (F,) each. Empty without a norm.
    angles: rotation angles of each token, (N, K / 2), or None.
  """
  made, size = [], layout.size
  lane = np.arange(tiling.LANES)
  if operations.eps is not None:
    same = lane[:, None] // size == lane // size
    made += [*(("bias", gain) for gain in gains), ("constant", jnp.asarray(same / size, jnp.float32))]
  if operations.rotates:
    turns = np.tile(np.concatenate([angles, angles], axis=1), (1, tiling.LANES // size))
    for kind, rows in (("chunk table", layout.chunk), ("table", layout.rows)):
      made += [
        (kind, jnp.asarray(_arrange(part(turns), rows, layout.packed), jnp.float32)) for part in (np.cos, np.sin)
      ]
    second = lane % size >= size // 2
    from_first = (
      lane[:, None] == lane - size // 2
    ) & second  # moves the first half to the second, and the negative second half to the first
    from_second = (lane[:, None] == lane + size // 2) & ~second
    made.append(("constant", jnp.asarray(from_first.astype(np.float32) - from_second)))
  return made


def _arrange(table: Float[np.ndarray, "N 128"], rows: int, packed: bool) -> Float[np.ndarray, "M 128"]:
  """Arranges a table [N, 128] in the order of tokens from `tiling.load`, in chunks of `rows`.

  If two tokens are packed in a word, even tokens come first.
  """
  table = np.pad(table, ((0, -len(table) % rows), (0, 0)))
  if packed:
    table = table.reshape(-1, rows // 2, 2, tiling.LANES).swapaxes(1, 2)
  return table.reshape(-1, tiling.LANES)


class Transform:
  """The operations on one group of lanes, inside of a kernel that received `list_operands`.

  Queries and keys pass through the matrix unit together, so that it loads each constant once for both.

  Args:
    operations: the operations.
    refs: references to the arrays from `list_operands`.
  """

  def __init__(self, operations: Operations, refs: Sequence[Ref]) -> None:
    refs = list(refs)
    self.eps, self.rotates = operations.eps, operations.rotates
    self.gains, self.mean = (refs[:2], refs[2]) if operations.eps is not None else (None, None)
    rotating = refs[3 * (operations.eps is not None) :]
    self.tables, self.exchange = ((rotating[:2], rotating[2:4]), rotating[4]) if operations.rotates else (None, None)

  def forward(self, pair: Sequence[Lanes], group: int) -> tuple[list[Lanes], list[Lanes] | None]:
    """Normalises and rotates queries and keys.

    Args:
      pair: queries and keys, (rows, 128) each.
      group: number of the group of lanes.

    Returns:
      Normalised and rotated queries and keys, and the factors of the norm for `backward` (None without a norm).
    """
    rates = None
    if self.eps is not None:
      # exp2 and log2 run on two other units than the vector unit. A reciprocal root takes ten vector instructions.
      rates = [jnp.exp2(-0.5 * jnp.log2(squares + self.eps)) for squares in _multiply([x * x for x in pair], self.mean)]
      pair = [x * gain for x, gain in zip(pair, self._read_gains(group), strict=True)]  # independent of the rates
    if self.rotates:
      exchanged = _multiply(pair, self.exchange)
      pair = [x * cos[...] + y * sin[...] for x, y, (cos, sin) in zip(pair, exchanged, self.tables, strict=True)]
    return list(pair) if rates is None else [x * rate for x, rate in zip(pair, rates, strict=True)], rates

  def backward(
    self,
    gradients: Sequence[Lanes],
    pair: Sequence[Lanes],
    transformed: Sequence[Lanes],
    rates: Sequence[Lanes] | None,
    group: int,
  ) -> tuple[list[Lanes], list[Lanes]]:
    """Computes gradients from the gradients of the results of `forward`.

    Args:
      gradients: gradients of the normalised and rotated queries and keys.
      pair: queries and keys before `forward`.
      transformed: queries and keys after `forward`.
      rates: factors of the norm from `forward`.
      group: number of the group of lanes.

    Returns:
      Gradients of queries and keys, and gradients of their gains, [1, 128] each (empty without a norm).
    """
    if self.eps is not None:
      # The radial part, computed from rotated queries and keys, because rotations preserve inner products.
      means = _multiply([gradient * x for gradient, x in zip(gradients, transformed, strict=True)], self.mean)
    if self.rotates:
      sines = [gradient * sin[...] for gradient, (_, sin) in zip(gradients, self.tables, strict=True)]
      exchanged = _multiply(sines, self.exchange)
      gradients = [
        gradient * cos[...] - y for gradient, y, (cos, _) in zip(gradients, exchanged, self.tables, strict=True)
      ]
    if self.eps is None or rates is None:
      return list(gradients), []
    normed = [x * rate for x, rate in zip(pair, rates, strict=True)]
    gain_gradients = [(gradient * x).sum(0, keepdims=True) for gradient, x in zip(gradients, normed, strict=True)]
    gradients = [gradient * gain for gradient, gain in zip(gradients, self._read_gains(group), strict=True)]
    parts = zip(rates, gradients, normed, means, strict=True)
    return [rate * (gradient - x * mean) for rate, gradient, x, mean in parts], gain_gradients

  def _read_gains(self, group: int) -> list[Lanes]:
    return [gain[:, tiling.slice_group(group)] for gain in self.gains]


def _multiply(pair: Sequence[Lanes], constant: Ref) -> tuple[Lanes, Lanes]:
  """Returns the products of two arrays [R, 128] with a constant matrix."""
  rows = pair[0].shape[0]
  both = jax.lax.dot_general(
    jnp.concatenate(pair), constant[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
  )
  return both[:rows], both[rows:]
