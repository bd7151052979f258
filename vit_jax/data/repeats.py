"""Repeated augmentation: each record several times in a batch, every time with other draws.

Source: Hoffer et al. 2020 (arXiv:1901.09335), in the form of DeiT's sampler.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from vit_jax.data.mixed import Mixed
from vit_jax.data.order import Blocks, Records, Run


@dataclasses.dataclass(frozen=True)
class Repeated:
  """An order whose every record fills `copies` neighbouring rows of a batch.

  The length of an epoch stays that of the dataset, in positions, as in DeiT: it has one record in `copies`, each so
  many times, and all have had their turn after `copies` epochs, in which no record comes more often than another. (In
  DeiT each epoch draws its records anew, and some wait longer.) Where the rows of a batch, or of a group of `Blocks`,
  are no multiple of `copies`, the last record of them has fewer, and all have had their turn a little earlier.
  """

  inner: Records | Blocks | Mixed  # of the records, each once: of the first rows of all copies
  batch: int
  copies: int

  @property
  def rows(self) -> int:
    """How many rows of a batch share what is read together: those of a group."""
    return self._group if self.inner.rows > 1 else 1

  @property
  def about(self) -> str:
    """What is said of it behind the number of images."""
    return f"{self.inner.about}, each {self.copies} times in a batch"

  def record(self, position: int) -> int:
    """The record at a position."""
    return self.inner.record(self._locate(position)[0])

  def visit(self, position: int) -> int:
    """A number that no other position of this record has."""
    inner, copy = self._locate(position)
    return self.inner.visit(inner) * self.copies + copy

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Run]]:
    """As of `Blocks`; each run once for all copies of its records."""
    due = self.inner.schedule(self._locate(start)[0])
    return lambda positions: due(list(dict.fromkeys(self._locate(position)[0] for position in positions)))

  @property
  def _group(self):
    """Rows whose records are theirs alone."""
    return self.batch // self.inner.groups

  def _locate(self, position):
    """(position in `inner`, which copy)."""
    group, row = divmod(position, self._group)
    return group * -(-self._group // self.copies) + row // self.copies, row % self.copies
