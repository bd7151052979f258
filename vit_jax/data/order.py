"""Orders of records: the record number at each position of a stream, as a pure function of the position.

An epoch has as many positions as there are records, and contains each record once. Orders have no state. A run can
therefore start at any position, and every process can compute the order of its own rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from vit_jax import schema
from vit_jax.data import permutation
from vit_jax.schema import format_amount

GROUP = 16  # smallest number of rows of a group by default
SIZE, WINDOW = 32, 16  # default number of records of a block, and of blocks of a window
LARGEST = 4096  # largest number of records of a block


class Span(NamedTuple):
  """Neighbouring records that are read together.

  Attributes:
    first: number of the first record.
    stop: number after the last record.
    wanted: records that are used. Records that belong to positions before the start are not included.
  """

  first: int
  stop: int
  wanted: frozenset[int]


@dataclasses.dataclass(frozen=True)
class RecordOrder:
  """An order with a new permutation of all records in every epoch.

  Attributes:
    length: number of records.
    seed: seed of the permutations.
    groups: number of groups. In mixtures, each group gets a part of every epoch.
    rows: number of rows of a batch whose records are read together.
    copies: number of rows per record in a batch.
    about: description of the order, which follows the number of images in messages.
  """

  length: int
  seed: int
  groups: int = 1
  rows = 1
  copies = 1
  about = ""

  def record(self, position: int) -> int:
    """Returns the record number at a position."""
    epoch, index = divmod(position, self.length)
    return permutation.permute_index(index, self.length, self.seed, epoch)

  def get_record(self, epoch: int, group: int, index: int) -> int:
    """Returns the record number at an index of a group's part of an epoch.

    Args:
      epoch: number of the epoch.
      group: number of the group.
      index: index within the part.
    """
    return self.record(epoch * self.length + permutation.select_indices(self.length, epoch, group, self.groups)[index])

  def visit(self, position: int) -> int:
    """Returns a number that differs between all positions of the same record: the epoch."""
    return position // self.length

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Span]]:
    """Returns a function that yields no runs, because records are read one by one."""
    return lambda positions: ()


@dataclasses.dataclass(frozen=True)
class SequentialOrder:
  """The order for evaluation: each record once, by number. Positions past the end have no record.

  Attributes:
    length: number of records.
  """

  length: int
  rows = 1
  copies = 1
  about = ""

  def record(self, position: int) -> int:
    """Returns the record number at a position."""
    return position

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Span]]:
    """Returns a function that yields runs of neighbouring positions. See `BlockOrder.schedule`."""

    def find_due_spans(positions: Iterable[int]) -> Iterator[Span]:
      there = np.array([position for position in positions if position < self.length], np.int64)
      for some in np.split(there, np.flatnonzero(np.diff(there) != 1) + 1):
        if len(some):
          yield Span(int(some[0]), int(some[-1]) + 1, frozenset(some.tolist()))

    return find_due_spans


@dataclasses.dataclass(frozen=True)
class BlockOrder:
  """An order of blocks of neighbouring records, for storage in which neighbours are cheaper to read together.

  Every epoch has a new permutation of the blocks. Records are shuffled over windows of several blocks:

  1. The rows of a global batch are divided into groups of neighbouring rows.
  2. The permuted blocks of an epoch form one sequence. Each group gets the section that fits its positions in the
  epoch, for any length of the epoch. If a block crosses the border of two sections, each group gets its records of the
  block.
  3. Each section is divided into windows of equal size, and the records of each window are shuffled.

  Except at borders, a block is thus used by one group. The block is also used by only one process if each process has
  whole groups. The first record of the first block is drawn in every epoch, so that neighbours do not always share a
  block.

  Attributes:
    length: number of records.
    batch: number of records of a global batch, without repeats.
    seed: seed of the permutations.
    size: number of records of a block.
    window: number of blocks of a window.
    groups: number of groups.
    even: whether sections are those of `permutation.select_indices`, independent of the batch. Used for mixtures.
  """

  length: int
  batch: int
  seed: int
  size: int
  window: int
  groups: int
  even: bool = False
  copies = 1

  @property
  def rows(self) -> int:
    """Number of rows of a batch whose records are read together: the rows of a group."""
    return self.batch // self.groups

  @property
  def about(self) -> str:
    """Description of the order, which follows the number of images in messages."""
    return f" in blocks of {self.size}, shuffled over windows of {format_amount(self.window, 'block')}"

  def record(self, position: int) -> int:
    """Returns the record number at a position. Takes 2 us on average."""
    return self.get_record(*self._locate(position))

  def get_record(self, epoch: int, group: int, index: int) -> int:
    """Returns the record number at an index of a group's section of an epoch.

    Args:
      epoch: number of the epoch.
      group: number of the group.
      index: index within the section.
    """
    part = self._parts(epoch, group)
    window = ((index + 1) * part.windows - 1) // part.positions
    first, records = self._windows(epoch, group, window)
    return int(records[index - first])

  def visit(self, position: int) -> int:
    """Returns a number that differs between all positions of the same record: the epoch."""
    return position // self.length

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Span]]:
    """Returns a function of the next positions that yields the runs to read now, each run once.

    The positions may belong to any rows. The positions of each group must increase from `start` on, apart from small
    differences. A run is yielded one and a quarter windows before the group reaches it. The number of waiting records
    is therefore about the size of a window.

    Args:
      start: position from which the records are used.
    """
    waiting = {}

    def find_due_spans(positions: Iterable[int]) -> Iterator[Span]:
      for position in positions:
        _, group, _ = self._locate(position)
        if group not in waiting:
          runs = (
            (epoch * self.length + ahead * self.groups, run)
            for epoch, ahead, run in self.iterate_runs(group, *self._first(group, start))
          )
          waiting[group] = runs, *next(runs)
        runs, moment, run = waiting[group]
        while moment <= position:
          yield run
          moment, run = next(runs)
        waiting[group] = runs, moment, run

    return find_due_spans

  def iterate_runs(self, group: int, epoch: int, index: int) -> Iterator[tuple[int, int, Span]]:
    """Yields (epoch, index at which to read, run) of a group, without end.

    Args:
      group: number of the group.
      epoch: first epoch.
      index: index in the group's section of the first epoch. Records are used from this index on.
    """
    while True:
      part = self._parts(epoch, group)
      begin, done = 0, frozenset()
      if index:
        window = ((index + 1) * part.windows - 1) // part.positions
        begin, records = self._windows(epoch, group, window)
        done = frozenset(records[: index - begin].tolist())
      at = part.first + begin
      while at < part.first + part.positions:
        stop = min(at - at % self.size + self.size, part.first + part.positions)
        ahead = at - part.first - part.positions // part.windows * 5 // 4 - 2 * self.rows
        for first, last in self._neighbours(epoch, at, stop):
          if wanted := frozenset(range(first, last)) - done:
            yield epoch, ahead, Span(first, last, wanted)
        at = stop
      epoch, index = epoch + 1, 0

  def _locate(self, position: int) -> tuple[int, int, int]:
    """Returns (epoch, group, number of earlier positions of the group in the epoch)."""
    step, row = divmod(position, self.batch)
    rows = self.batch // self.groups
    group = row // rows
    epoch = position // self.length
    return epoch, group, step * rows + row - group * rows - self._parts(epoch, group).before

  def _first(self, group: int, start: int) -> tuple[int, int]:
    """Returns (epoch, index) of a group's first position from `start` on."""
    rows = self.batch // self.groups
    step, row = divmod(start, self.batch)
    row = max(row, group * rows)
    if row >= (group + 1) * rows:
      step, row = step + 1, group * rows
    epoch, _, index = self._locate(step * self.batch + row)
    return epoch, index

  @functools.cached_property
  def _parts(self) -> "Callable[[int, int], _Section]":
    """Cached function (epoch, group) that returns the section of the group."""

    def positions(end: int, groups: int) -> int:
      """Returns the number of positions before `end` that belong to the first `groups` groups."""
      return end // self.batch * groups * rows + min(end % self.batch, groups * rows)

    @functools.lru_cache(maxsize=4 * self.groups)
    def part(epoch: int, group: int) -> "_Section":
      if self.even:
        line = permutation.select_indices(self.length, epoch, group, self.groups)
        return _Section(0, line.start, len(line), max(1, round(len(line) / (self.size * self.window))))
      ends = epoch * self.length, (epoch + 1) * self.length
      (low, high), (below, above) = ([positions(end, groups) for groups in (group, group + 1)] for end in ends)
      count = above - high - (below - low)
      return _Section(high - low, below - low, count, max(1, round(count / (self.size * self.window))))

    rows = self.batch // self.groups
    return part

  @functools.cached_property
  def _windows(self) -> Callable[[int, int, int], tuple[int, np.ndarray]]:
    """Cached function (epoch, group, window) that returns (index of the first position, record numbers)."""

    @functools.lru_cache(maxsize=4 * self.groups)
    def records(epoch: int, group: int, window: int) -> tuple[int, np.ndarray]:
      part = self._parts(epoch, group)
      first, stop = (number * part.positions // part.windows for number in (window, window + 1))
      shuffled = (
        part.first + first + permutation.draw_permutation(stop - first, self.seed, "window", epoch, group, window)
      )
      blocks, within = np.divmod(shuffled, self.size)
      low, high = int(blocks.min()), int(blocks.max())
      moved = np.array([self._block(epoch, block) for block in range(low, high + 1)])
      return first, (self._offset(epoch) + moved[blocks - low] * self.size + within) % self.length

    return records

  def _neighbours(self, epoch: int, at: int, stop: int) -> list[tuple[int, int]]:
    """Returns the records in a section of a block as (first, stop) pairs: two pairs if the block wraps around."""
    first = (self._offset(epoch) + self._block(epoch, at // self.size) * self.size + at % self.size) % self.length
    last = first + stop - at
    return [(first, last)] if last <= self.length else [(first, self.length), (0, last - self.length)]

  def _block(self, epoch: int, block: int) -> int:
    """Returns the block at a position of the permuted sequence. An incomplete block stays at the end."""
    complete_blocks = self.length // self.size
    if block >= complete_blocks:
      return block
    return permutation.permute_block(block, complete_blocks, self.seed, epoch)

  def _offset(self, epoch: int) -> int:
    """Returns the first record of the first block."""
    return permutation.derive_epoch_seed(self.seed, epoch) * self.length >> 32


class _Section(NamedTuple):
  """The section of an epoch that belongs to a group.

  Attributes:
    before: number of positions of the group before this epoch.
    first: position of the section in the permuted sequence.
    positions: number of positions of the section.
    windows: number of windows of the section.
  """

  before: int
  first: int
  positions: int
  windows: int


TrainOrder = RecordOrder | BlockOrder
Order = TrainOrder | SequentialOrder

# Functions of `ORDERS` have the parameters (length, batch, seed, together, copies, *, ...). The order that they
# return contains each record of a batch once, without its copies.


def records(length: int, batch: int, seed: int, together: int, copies: int = 1) -> RecordOrder:
  """Returns a random order of all records, which suits local disks and small datasets.

  Args:
    length: number of records.
    batch: number of rows of a global batch. Not used.
    seed: seed of the run.
    together: number of neighbouring records that are stored together. Not used.
    copies: number of rows per record in a batch. Not used.
  """
  return RecordOrder(length, seed)


def blocks(
  length: int,
  batch: int,
  seed: int,
  together: int,
  copies: int = 1,
  *,
  size: Annotated[int, schema.Range(1, LARGEST)] = SIZE,
  window: Annotated[int, schema.Range(1, 65_536)] = WINDOW,
  groups: Annotated[int, schema.Range(1, 65_536)] | None = None,
) -> BlockOrder:
  """Returns an order of blocks of `size` records, which are read together and shuffled over `window` blocks.

  It suits data in buckets.

  Args:
    length: number of records.
    batch: number of rows of a global batch, of all processes together.
    seed: seed of the run.
    together: number of neighbouring records that are stored together, or 0 if neighbours are not cheaper to read. Not
      used.
    copies: number of rows per record in a batch, see `repeats`.
    size: number of records that are read with one request.
    window: number of blocks over which the records are shuffled. All groups together hold size * window * groups images
      in memory. Each process holds a share in proportion to its rows.
    groups: number of groups of neighbouring rows into which a batch is divided. With at least as many groups as
      processes, processes do not share blocks. Default: the largest number with at least 16 rows or records per group.
      The order depends on the groups, but not on the number of machines.

  Raises:
    ConfigError: if `groups` does not divide `batch`.
  """
  if groups is None:
    groups = max(count for count in range(1, max(1, batch // (GROUP * copies)) + 1) if batch % count == 0)
  if batch % groups:
    divisors = [count for count in range(1, batch + 1) if batch % count == 0]
    near = ", ".join(map(str, sorted(sorted(divisors, key=lambda count: abs(count - groups))[:2])))
    raise schema.ConfigError(
      f"a batch of {batch} cannot be divided into {groups} equal groups. Nearest numbers of groups: {near}", "groups"
    )
  return BlockOrder(length, count_distinct(batch, groups, copies), seed, size, window, groups)


def count_distinct(batch: int, groups: int, copies: int) -> int:
  """Returns the number of different records of a batch.

  Args:
    batch: number of rows of a batch.
    groups: number of groups into which the rows are divided.
    copies: number of rows per record. The last record of a group may have fewer rows.
  """
  return groups * -(-(batch // groups) // copies)


def auto(length: int, batch: int, seed: int, together: int, copies: int = 1) -> RecordOrder | BlockOrder:
  """Returns `blocks` if neighbours are cheaper to read together, as in a bucket, else `records`.

  A block has at least `together` records. If blocks are larger, a window has fewer blocks, so that the number of
  waiting images does not grow.

  Args:
    length: number of records.
    batch: number of rows of a global batch.
    seed: seed of the run.
    together: number of neighbouring records that are stored together, or 0 if neighbours are not cheaper to read.
    copies: number of rows per record in a batch, see `repeats`.
  """
  if not together:
    return records(length, batch, seed, together)
  size = min(max(together, SIZE), LARGEST)
  return blocks(length, batch, seed, together, copies, size=size, window=max(1, SIZE * WINDOW // size))


ORDERS = {"auto": auto, "records": records, "blocks": blocks}
