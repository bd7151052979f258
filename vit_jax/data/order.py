"""The order of records: which one stands at each position of a stream, a pure function of the position.

An epoch has as many positions as there are records, and each record once. Nothing is remembered from one position to
the next, so that a run may start anywhere, and every process computes the order of its own rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from grain.experimental import index_shuffle

from vit_jax import rng, schema

GROUP = 16  # rows of a batch that share their blocks, at least, if a config does not say how many groups there are
# Grain's function finds its place in at least 2^16 numbers: of 2^15 blocks or more 6 us, of 500 blocks 0.1 ms, of 10
# 5 ms. Up to here all numbers are drawn at once instead, which takes up to 5 ms an epoch.
TABLE = 2**16


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
  rows = 1  # of a batch that share what is read together
  about = ""  # as words behind the number of images

  def record(self, position: int) -> int:
    """The record at a position."""
    epoch, place = divmod(position, self.length)
    return index_shuffle(place, max_index=self.length - 1, seed=_epoch_seed(self.seed, epoch), rounds=4)

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Run]]:
    """As of `Blocks`; nothing is worth reading together."""
    return lambda positions: ()


@dataclasses.dataclass(frozen=True)
class InOrder:
  """Each record once, in order; positions past the end have none."""

  length: int
  rows = 1
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

  @property
  def rows(self) -> int:
    """Of a batch, that share what is read together: a group's."""
    return self.batch // self.groups

  @property
  def about(self) -> str:
    """As words behind the number of images."""
    return f" in blocks of {self.size}, shuffled over windows of {self.window} blocks"

  def record(self, position: int) -> int:
    """The record at a position; 2 us on average."""
    epoch, group, index = self._locate(position)
    part = self._parts(epoch, group)
    window = ((index + 1) * part.windows - 1) // part.positions
    first, records = self._windows(epoch, group, window)
    return int(records[index - first])

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
          runs = self._runs(group, start)
          waiting[group] = runs, *next(runs)
        runs, moment, run = waiting[group]
        while moment <= position:
          yield run
          moment, run = next(runs)
        waiting[group] = runs, moment, run

    return due

  def _runs(self, group: int, start: int) -> Iterator[tuple[int, Run]]:
    """(position at which it is to be read, run) of a group, without end."""
    epoch, index = self._first(group, start)
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
            yield epoch * self.length + ahead * self.groups, Run(first, last, wanted)
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
      shuffled = part.first + first + _permutation(stop - first, self.seed, "window", epoch, group, window)
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
    if whole <= TABLE:
      return int(_table(whole, self.seed, epoch)[block])
    return index_shuffle(block, max_index=whole - 1, seed=_epoch_seed(self.seed, epoch), rounds=4)

  def _offset(self, epoch):
    """The record that the first block begins with."""
    return _epoch_seed(self.seed, epoch) * self.length >> 32


class _Part(NamedTuple):
  """What a group has of the line of an epoch."""

  before: int  # positions of the group before this epoch
  first: int  # place in the line
  positions: int
  windows: int


@functools.lru_cache(maxsize=16)
def _epoch_seed(seed, epoch):
  return int(rng.generator(seed, "order", epoch).integers(2**32))


@functools.lru_cache(maxsize=4)
def _table(blocks, seed, epoch):
  return _permutation(blocks, seed, "blocks", epoch)


def _permutation(size, seed, name, *numbers):
  """Of the numbers below `size`, from bits that no version of NumPy changes (NEP 19), as its `permutation` may."""
  return np.argsort(rng.generator(seed, name, *numbers).bit_generator.random_raw(size), kind="stable")


Order = Records | InOrder | Blocks

# The table: (records, batch, seed, whether records that are neighbours are cheaper read together, *, ...) -> order.


def records(length: int, batch: int | None, seed: int, together: bool) -> Records:
  """All records of the split at random: for local disks, and for what is small."""
  return Records(length, seed)


def blocks(
  length: int,
  batch: int | None,
  seed: int,
  together: bool,
  *,
  size: Annotated[int, schema.Range(1, 4096)] = 32,
  window: Annotated[int, schema.Range(1, 65_536)] = 16,
  groups: Annotated[int, schema.Range(1, 65_536)] | None = None,
) -> Blocks:
  """Blocks of `size` records, each read at one go and shuffled with `window` others: for buckets.

  Args:
    length: records.
    batch: of all processes together.
    seed: of the run.
    together: whether records that are neighbours are cheaper read together.
    size: records that are read at once: a request each.
    window: blocks over which the records are shuffled. All groups together hold size * window * groups images, of
      which each process has the share of its rows.
    groups: of neighbouring rows, into which the batch is cut; more than there are processes, which share no block
      then. Without it as many as have 16 rows or more. They, and nothing of the machines, decide the order.
  """
  if groups is None:
    groups = max(count for count in range(1, max(1, batch // GROUP) + 1) if batch % count == 0)
  if batch % groups:
    near = [count for count in range(1, batch + 1) if batch % count == 0]
    near = sorted(sorted(near, key=lambda count: abs(count - groups))[:2])
    raise schema.ConfigError(f"{groups} groups do not divide a batch of {batch}; nearest that do: {near}", "groups")
  return Blocks(length, batch, seed, size, window, groups)


def auto(length: int, batch: int | None, seed: int, together: bool) -> Records | Blocks:
  """`blocks` where the data are in a bucket, else `records`."""
  return (blocks if together else records)(length, batch, seed, together)


ORDERS = {"auto": auto, "records": records, "blocks": blocks}
