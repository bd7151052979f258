"""Repeated augmentation: each record occurs several times in a batch, with different augmentation each time.

Source: Hoffer et al. 2020 (arXiv:1901.09335), in the form of DeiT's sampler.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from vit_jax.data.mixture_order import MixedOrder
from vit_jax.data.order import BlockOrder, RecordOrder, Span


@dataclasses.dataclass(frozen=True)
class RepeatedOrder:
  """An order in which every record fills `copies` neighbouring rows of a batch.

  An epoch has as many positions as the dataset has records, as in DeiT. An epoch therefore uses only one in `copies`
  records, and uses each of these records `copies` times. After `copies` epochs, all records have occurred equally
  often. (DeiT selects records independently in each epoch, so some records wait longer.)

  The rows of a batch, or of a group of `BlockOrder`, need not be a multiple of `copies`. In this case the last record
  of these rows has fewer copies, and slightly fewer epochs are needed to use all records.

  Attributes:
    inner: order of the records without copies. Its batch contains the first copy of each record.
    batch: number of rows of a global batch.
    copies: number of rows per record.
  """

  inner: RecordOrder | BlockOrder | MixedOrder
  batch: int
  copies: int

  @property
  def rows(self) -> int:
    """Number of rows of a batch whose records are read together."""
    return self._group if self.inner.rows > 1 else 1

  @property
  def about(self) -> str:
    """Description of the order, which follows the number of images in messages."""
    return f"{self.inner.about}, each {self.copies} times in a batch"

  def record(self, position: int) -> int:
    """Returns the record number at a position."""
    return self.inner.record(self.locate(position)[0])

  def visit(self, position: int) -> int:
    """Returns a number that differs between all positions of the same record."""
    inner, copy = self.locate(position)
    return self.inner.visit(inner) * self.copies + copy

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Span]]:
    """Returns a function that yields the runs to read next, each once for all copies. See `order.BlockOrder.schedule`.

    Args:
      start: position from which the records are used.
    """
    due = self.inner.schedule(self.locate(start)[0])
    return lambda positions: due(list(dict.fromkeys(self.locate(position)[0] for position in positions)))

  @property
  def _group(self) -> int:
    """Number of rows of a group. Groups do not share records."""
    return self.batch // self.inner.groups

  def locate(self, position: int) -> tuple[int, int]:
    """Returns (position in `inner`, number of the copy) of a position."""
    group, row = divmod(position, self._group)
    return group * -(-self._group // self.copies) + row // self.copies, row % self.copies
