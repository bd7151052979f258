"""The order of records: which one stands at each position of a stream, a pure function of the position.

An epoch has as many positions as there are records, and each record once. Nothing is remembered from one position to
the next, so that a run may start anywhere, and every process computes the order of its own rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from vit_jax import schema
from vit_jax.data import permutation
from vit_jax.schema import amount

GROUP = 16  # rows of a batch that share their blocks, at least, if a config does not say how many groups there are
SIZE, WINDOW = 32, 16  # records of a block, blocks of a window
LARGEST = 4096  # records of a block


class Run(NamedTuple):
  """Neighbouring records, `first` to `stop`, of which some are wanted: those that no position before the start had."""

  first: int
  stop: int
  wanted: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Records:
  """A new permutation of all records every epoch."""

  length: int
  seed: int
  groups: int = 1  # that each have a part of every epoch, where a mixture asks for it
  rows = 1  # of a batch that share what is read together
  copies = 1  # of a record in a batch
  about = ""  # as words behind the number of images

  def record(self, position: int) -> int:
    """The record at a position."""
    epoch, index = divmod(position, self.length)
    return permutation.entry(index, self.length, self.seed, epoch)

  def at(self, epoch: int, group: int, index: int) -> int:
    """The record at an index of a group's part of an epoch."""
    return self.record(epoch * self.length + permutation.part(self.length, epoch, group, self.groups)[index])

  def visit(self, position: int) -> int:
    """A number that no other position of this record has: the epoch."""
    return position // self.length

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Run]]:
    """As of `Blocks`; nothing is worth reading together."""
    return lambda positions: ()


@dataclasses.dataclass(frozen=True)
class InOrder:
  """Each record once, in order; positions past the end have none."""

  length: int
  rows = 1
  copies = 1
  about = ""

  def record(self, position: int) -> int:
    """The record at a position."""
    return position

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Run]]:
    """As of `Blocks`: positions that are neighbours are records that are."""

    def due(positions):
      there = np.array([position for position in positions if position < self.length], np.int64)
      for some in np.split(there, np.flatnonzero(np.diff(there) != 1) + 1):
        if len(some):
          yield Run(int(some[0]), int(some[-1]) + 1, frozenset(some.tolist()))

    return due


@dataclasses.dataclass(frozen=True)
class Blocks:
  """Blocks of neighbouring records in a new permutation every epoch, shuffled over windows of several blocks.

  The global batch is cut into groups of neighbouring rows. All blocks of the epoch, permuted, stand in one line, of
  which each group has the part that fits its positions, whatever the epoch's length is; where two parts meet in a
  block, each has its records of it. A group's part is cut into windows of equal size, and each window is shuffled. So
  a block is of one group, and of one process as long as processes have whole groups. Where the first block begins is
  drawn every epoch, so that neighbours do not stay together.
  """

  length: int  # records
  batch: int
  seed: int
  size: int  # records of a block
  window: int  # blocks
  groups: int
  even: bool = False  # groups have parts as `permutation.part` says, whatever the batch: for mixtures
  copies = 1

  @property
  def rows(self) -> int:
    """How many rows of a batch share what is read together: those of a group."""
    return self.batch // self.groups

  @property
  def about(self) -> str:
    """What is said of it behind the number of images."""
    return f" in blocks of {self.size}, shuffled over windows of {amount(self.window, 'block')}"

  def record(self, position: int) -> int:
    """The record at a position; 2 us on average."""
    return self.at(*self._locate(position))

  def at(self, epoch: int, group: int, index: int) -> int:
    """The record at an index of a group's part of an epoch."""
    part = self._parts(epoch, group)
    window = ((index + 1) * part.windows - 1) // part.positions
    first, records = self._windows(epoch, group, window)
    return int(records[index - first])

  def visit(self, position: int) -> int:
    """A number that no other position of this record has: the epoch."""
    return position // self.length

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Run]]:
    """The function of the next positions, of whichever rows, that gives the runs to read now, each once.

    Positions of a group are expected to rise, from `start` on, but a few. A run is given a window and a quarter before
    the group is there, so that at any time about as many records wait as a window has.
    """
    waiting = {}

    def due(positions):
      for position in positions:
        _, group, _ = self._locate(position)
        if group not in waiting:
          runs = self.runs(group, *self._first(group, start))
          runs = ((epoch * self.length + ahead * self.groups, run) for epoch, ahead, run in runs)
          waiting[group] = runs, *next(runs)
        runs, moment, run = waiting[group]
        while moment <= position:
          yield run
          moment, run = next(runs)
        waiting[group] = runs, moment, run

    return due

  def runs(self, group: int, epoch: int, index: int) -> Iterator[tuple[int, int, Run]]:
    """(epoch, index at which it is to be read, run) of a group from there on, without end."""
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
            yield epoch, ahead, Run(first, last, wanted)
        at = stop
      epoch, index = epoch + 1, 0

  def _locate(self, position):
    """(epoch, group, how many positions this group had in the epoch before)."""
    step, row = divmod(position, self.batch)
    rows = self.batch // self.groups
    group = row // rows
    epoch = position // self.length
    return epoch, group, step * rows + row - group * rows - self._parts(epoch, group).before

  def _first(self, group, start):
    """(epoch, index) of a group's first position from `start` on."""
    rows = self.batch // self.groups
    step, row = divmod(start, self.batch)
    row = max(row, group * rows)
    if row >= (group + 1) * rows:
      step, row = step + 1, group * rows
    epoch, _, index = self._locate(step * self.batch + row)
    return epoch, index

  @functools.cached_property
  def _parts(self):
    """(epoch, group) -> its `_Part`; kept for a few epochs."""

    def positions(end, groups):
      """How many positions before `end` are of the first so many groups."""
      return end // self.batch * groups * rows + min(end % self.batch, groups * rows)

    @functools.lru_cache(maxsize=4 * self.groups)
    def part(epoch, group):
      if self.even:
        line = permutation.part(self.length, epoch, group, self.groups)
        return _Part(0, line.start, len(line), max(1, round(len(line) / (self.size * self.window))))
      ends = epoch * self.length, (epoch + 1) * self.length
      (low, high), (below, above) = ([positions(end, groups) for groups in (group, group + 1)] for end in ends)
      count = above - high - (below - low)
      return _Part(high - low, below - low, count, max(1, round(count / (self.size * self.window))))

    rows = self.batch // self.groups
    return part

  @functools.cached_property
  def _windows(self):
    """(epoch, group, window) -> (index of its first position, records of its positions); kept for a few windows."""

    @functools.lru_cache(maxsize=4 * self.groups)
    def records(epoch, group, window):
      part = self._parts(epoch, group)
      first, stop = (number * part.positions // part.windows for number in (window, window + 1))
      shuffled = part.first + first + permutation.drawn(stop - first, self.seed, "window", epoch, group, window)
      blocks, within = np.divmod(shuffled, self.size)
      low, high = int(blocks.min()), int(blocks.max())
      moved = np.array([self._block(epoch, block) for block in range(low, high + 1)])
      return first, (self._offset(epoch) + moved[blocks - low] * self.size + within) % self.length

    return records

  def _neighbours(self, epoch, at, stop):
    """The records in a piece of a block of the line, as (first, stop): two where it goes round the end."""
    first = (self._offset(epoch) + self._block(epoch, at // self.size) * self.size + at % self.size) % self.length
    last = first + stop - at
    return [(first, last)] if last <= self.length else [(first, self.length), (0, last - self.length)]

  def _block(self, epoch, block):
    """Which block stands there in the line; what is less than a block stands at its end."""
    whole = self.length // self.size
    if block >= whole:
      return block
    return permutation.of_blocks(block, whole, self.seed, epoch)

  def _offset(self, epoch):
    """The record that the first block begins with."""
    return permutation.epoch_seed(self.seed, epoch) * self.length >> 32


class _Part(NamedTuple):
  """What a group has of the line of an epoch."""

  before: int  # positions of the group before this epoch
  first: int  # place in the line
  positions: int
  windows: int


Order = Records | InOrder | Blocks

# The table: (records, batch, seed, neighbours that are stored together, 0 where they are no cheaper, copies of each
# record in a batch, *, ...) -> order of the records that a batch has, without their copies.


def records(length: int, batch: int, seed: int, together: int, copies: int = 1) -> Records:
  """All records of the split at random: for local disks, and for what is small."""
  return Records(length, seed)


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
) -> Blocks:
  """Blocks of `size` records, each read at one go and shuffled with `window` others: for buckets.

  Args:
    length: records.
    batch: of all processes together.
    seed: of the run.
    together: neighbours that are stored together, 0 where neighbours are no cheaper than others.
    copies: of each record in a batch; see `repeats`.
    size: records that are read at once: a request each.
    window: blocks over which the records are shuffled. All groups together hold size * window * groups images, of
      which each process has the share of its rows.
    groups: of neighbouring rows, into which the batch is cut; more than there are processes, which share no block
      then. Without it as many as have 16 rows or more, or records. They, and nothing of the machines, decide the order.
  """
  if groups is None:
    groups = max(count for count in range(1, max(1, batch // (GROUP * copies)) + 1) if batch % count == 0)
  if batch % groups:
    near = [count for count in range(1, batch + 1) if batch % count == 0]
    near = sorted(sorted(near, key=lambda count: abs(count - groups))[:2])
    raise schema.ConfigError(f"{groups} groups do not divide a batch of {batch}; nearest that do: {near}", "groups")
  return Blocks(length, distinct(batch, groups, copies), seed, size, window, groups)


def distinct(batch: int, groups: int, copies: int) -> int:
  """Records of a batch: of every group's rows one for each so many copies, and for what is left of them."""
  return groups * -(-(batch // groups) // copies)


def auto(length: int, batch: int, seed: int, together: int, copies: int = 1) -> Records | Blocks:
  """`blocks` where neighbours are cheaper read together, as in a bucket, of at least as many as are stored together.

  Else `records`. Of larger blocks a window has fewer, so that no more images wait.
  """
  if not together:
    return records(length, batch, seed, together)
  size = min(max(together, SIZE), LARGEST)
  return blocks(length, batch, seed, together, copies, size=size, window=max(1, SIZE * WINDOW // size))


ORDERS = {"auto": auto, "records": records, "blocks": blocks}
