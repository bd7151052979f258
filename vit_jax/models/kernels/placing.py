"""What a kernel of attention does to queries and keys before their products: root mean square norm, then rotation.

Both work on 128 lanes at once, which are whole heads of up to 128 channels. Sums over the channels of a head, which
then stand in all its lanes, and the exchange of its two halves are products with a constant matrix: the matrix unit has
time for them, where reductions and rotations of lanes would take that of the vector unit.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.kernels import tiling
from vit_jax.shapes import Float, Tensor


class Placing(NamedTuple):
  """What is done: a norm with this epsilon, if any; a rotation."""

  eps: float | None
  turned: bool

  @property
  def operands(self) -> int:
    """How many arrays a kernel takes for it: `operands` makes them."""
    return 3 * (self.eps is not None) + 5 * self.turned


def fits(size: int) -> bool:
  """Whether heads of this size fill groups of lanes."""
  return tiling.LANES % size == 0 and size % 2 == 0


def operands(
  placing: Placing,
  layout: tiling.Layout,
  gains: tuple[Float[Tensor, " F"], ...],
  angles: Float[np.ndarray, "N K2"] | None,
) -> list[tuple[str, jax.Array]]:
  """Pairs of kind and array, in the order in which `Placed` reads them."""
  made, size = [], layout.size
  lane = np.arange(tiling.LANES)
  if placing.eps is not None:
    same = lane[:, None] // size == lane // size
    made += [*(("bias", gain) for gain in gains), ("constant", jnp.asarray(same / size, jnp.float32))]
  if placing.turned:
    turns = np.tile(np.concatenate([angles, angles], axis=1), (1, tiling.LANES // size))
    for kind, rows in (("chunk table", layout.chunk), ("table", layout.rows)):
      made += [
        (kind, jnp.asarray(_arranged(part(turns), rows, layout.packed), jnp.float32)) for part in (np.cos, np.sin)
      ]
    second = lane % size >= size // 2
    from_first = (
      lane[:, None] == lane - size // 2
    ) & second  # the first half comes to the second, the second to it, negative
    from_second = (lane[:, None] == lane + size // 2) & ~second
    made.append(("constant", jnp.asarray(from_first.astype(np.float32) - from_second)))
  return made


def _arranged(table, rows, packed):
  """[N, 128] as `tiling.load` has tokens, `rows` at a time: even ones first where two are packed in a word."""
  table = np.pad(table, ((0, -len(table) % rows), (0, 0)))
  if packed:
    table = table.reshape(-1, rows // 2, 2, tiling.LANES).swapaxes(1, 2)
  return table.reshape(-1, tiling.LANES)


class Placed:
  """Functions of one group of lanes, in a kernel that was given `operands`."""

  def __init__(self, placing: Placing, refs):
    refs = list(refs)
    self.eps, self.turned = placing.eps, placing.turned
    self.gains, self.mean = (refs[:2], refs[2]) if placing.eps is not None else (None, None)
    turning = refs[3 * (placing.eps is not None) :]
    self.tables, self.exchange = ((turning[:2], turning[2:4]), turning[4]) if placing.turned else (None, None)

  def forward(self, x: Tensor, which: int, group: int) -> jax.Array:
    """Queries (`which` 0) or keys (1), normalised and turned."""
    if self.eps is not None:
      x = x * self._rate(x) * self.gains[which][:, tiling.at(group)]
    if self.turned:
      cos, sin = self.tables[which]
      x = x * cos[...] + _product(x, self.exchange[...]) * sin[...]
    return x

  def backward(self, gradient: Tensor, x: Tensor, which: int, group: int) -> tuple[jax.Array, jax.Array | None]:
    """(gradient of x, that of the gain [1, 128] or None) for the gradient of `forward`."""
    if self.turned:
      cos, sin = self.tables[which]
      gradient = gradient * cos[...] - _product(gradient * sin[...], self.exchange[...])
    if self.eps is None:
      return gradient, None
    rate = self._rate(x)
    normed = x * rate
    of_gain = (gradient * normed).sum(0, keepdims=True)
    gradient = gradient * self.gains[which][:, tiling.at(group)]
    return rate * (gradient - normed * _product(gradient * normed, self.mean[...])), of_gain

  def _rate(self, x):
    return jax.lax.rsqrt(_product(x * x, self.mean[...]) + self.eps)


def _product(a, b):
  return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
