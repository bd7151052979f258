"""What a kernel of attention does to queries and keys before their products: root mean square norm, then rotation.

Both work on 128 lanes at once, which are whole heads of up to 128 channels. Sums over the channels of a head, which
then stand in all its lanes, and the exchange of its two halves are products with a constant matrix: eight tokens take
the matrix units four cycles of a v3, where a reduction or a rotation of lanes takes eight.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.kernels import tiling
from vit_jax.shapes import Float, Tensor

Lanes = Float[Tensor, "_ 128"]  # queries may be fewer than keys


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
) -> list[tuple[str, Float[Tensor, "..."]]]:
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
  """Functions of one group of lanes, in a kernel that was given `operands`.

  Queries and keys go through the matrix unit together, so that it loads each constant once for both.
  """

  def __init__(self, placing: Placing, refs):
    refs = list(refs)
    self.eps, self.turned = placing.eps, placing.turned
    self.gains, self.mean = (refs[:2], refs[2]) if placing.eps is not None else (None, None)
    turning = refs[3 * (placing.eps is not None) :]
    self.tables, self.exchange = ((turning[:2], turning[2:4]), turning[4]) if placing.turned else (None, None)

  def forward(self, pair: Sequence[Lanes], group: int) -> tuple[list[Lanes], list[Lanes] | None]:
    """(queries and keys, normalised and turned; what they were divided by, for `backward`)."""
    rates = None
    if self.eps is not None:
      # A power of two, which two units beside the vector unit compute: a reciprocal root takes ten of its instructions.
      rates = [jnp.exp2(-0.5 * jnp.log2(squares + self.eps)) for squares in _products([x * x for x in pair], self.mean)]
      pair = [x * gain for x, gain in zip(pair, self._gains(group), strict=True)]  # does not wait for the rates
    if self.turned:
      exchanged = _products(pair, self.exchange)
      pair = [x * cos[...] + y * sin[...] for x, y, (cos, sin) in zip(pair, exchanged, self.tables, strict=True)]
    return list(pair) if rates is None else [x * rate for x, rate in zip(pair, rates, strict=True)], rates

  def backward(
    self,
    gradients: Sequence[Lanes],
    pair: Sequence[Lanes],
    placed: Sequence[Lanes],
    rates: Sequence[Lanes] | None,
    group: int,
  ) -> tuple[list[Lanes], list[Lanes]]:
    """(gradients of queries and keys as they were, those of the gains [1, 128], if any) for those of `forward`."""
    if self.eps is not None:
      # The radial part, by the queries and keys that were made: a rotation changes no inner product.
      means = _products([gradient * x for gradient, x in zip(gradients, placed, strict=True)], self.mean)
    if self.turned:
      sines = [gradient * sin[...] for gradient, (_, sin) in zip(gradients, self.tables, strict=True)]
      exchanged = _products(sines, self.exchange)
      gradients = [
        gradient * cos[...] - y for gradient, y, (cos, _) in zip(gradients, exchanged, self.tables, strict=True)
      ]
    if self.eps is None:
      return list(gradients), []
    normed = [x * rate for x, rate in zip(pair, rates, strict=True)]
    of_gains = [(gradient * x).sum(0, keepdims=True) for gradient, x in zip(gradients, normed, strict=True)]
    gradients = [gradient * gain for gradient, gain in zip(gradients, self._gains(group), strict=True)]
    parts = zip(rates, gradients, normed, means, strict=True)
    return [rate * (gradient - x * mean) for rate, gradient, x, mean in parts], of_gains

  def _gains(self, group):
    return [gain[:, tiling.at(group)] for gain in self.gains]


def _products(pair, constant):
  """Both [R, 128] times the matrix."""
  rows = pair[0].shape[0]
  both = jax.lax.dot_general(
    jnp.concatenate(pair), constant[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
  )
  return both[:rows], both[rows:]
