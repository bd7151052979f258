"""The order of records in a mixture: weights select the corpus of each position, and each corpus has its own order.

The order is a function of the position and needs no state. The rows of a batch are divided into groups as in
`order.BlockOrder`, or form one group. Within a group, the corpora take turns. Each corpus gets its share of any
sequence
of turns, up to rounding. Each group gets a part of every epoch of a corpus. Each record occurs once in an epoch of its
corpus.
"""

import dataclasses
import fractions
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from vit_jax import rng
from vit_jax.data import permutation
from vit_jax.data.order import ORDERS, BlockOrder, RecordOrder, Span, count_distinct
from vit_jax.data.sources import Corpus, Source
from vit_jax.schema import Choice, make

# Number of successive positions of a group among which the turns are shuffled. Otherwise every second row would
# belong to the first of two corpora with equal weights. Mixup would then always mix rows of different corpora.
LOT = 16


@dataclasses.dataclass(frozen=True)
class MixedOrder:
  """The orders of several corpora, combined by weights.

  Attributes:
    orders: order of each corpus.
    firsts: number of the first record of each corpus in the mixture.
    weights: integer weight of each corpus.
    batch: number of records of a global batch, without repeats.
    seed: seed of the turns.
    groups: number of groups into which the rows of a batch are divided.
  """

  orders: tuple[RecordOrder | BlockOrder, ...]
  firsts: tuple[int, ...]
  weights: tuple[int, ...]
  batch: int
  seed: int
  groups: int
  copies = 1

  @property
  def rows(self) -> int:
    """Number of rows of a batch whose records are read together."""
    return self.batch // self.groups if any(isinstance(each, BlockOrder) for each in self.orders) else 1

  @property
  def about(self) -> str:
    """Description of the order, which follows the number of images in messages."""
    shares = ", ".join(f"{weight / sum(self.weights):.1%}" for weight in self.weights)
    return f", mixed {shares}{next((each.about for each in self.orders if each.about), '')}"

  def record(self, position: int) -> int:
    """Returns the record number at a position."""
    corpus, group, index = self.turn(position)
    made = self.orders[corpus]
    epoch, index = permutation.locate(made.length, index, group, self.groups)
    return self.firsts[corpus] + made.get_record(epoch, group, index)

  def visit(self, position: int) -> int:
    """Returns a number that differs between all positions of the same record: the epoch of the corpus."""
    corpus, group, index = self.turn(position)
    return permutation.locate(self.orders[corpus].length, index, group, self.groups)[0]

  @functools.cached_property
  def turn(self) -> Callable[[int], tuple[int, int, int]]:
    """Cached function from a position to (corpus, group, number of earlier positions of this corpus in the group).

    The earlier positions are counted in the order of turns. The function takes about as long as
    `order.RecordOrder.record` and is called several times per position.
    """
    return functools.lru_cache(maxsize=2**12)(self._turn)

  def _turn(self, position: int) -> tuple[int, int, int]:
    group, index = self._place(position)
    lot, within = divmod(index, LOT)
    index = lot * LOT + _shuffle_lot(self.seed, group, lot)[within]
    before, after = self._counts(group, index), self._counts(group, index + 1)
    corpus = next(i for i, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)
    return corpus, group, before[corpus]

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Span]]:
    """Returns a function that yields the runs to read next. See `order.BlockOrder.schedule`.

    Args:
      start: position from which the records are used.
    """
    waiting = {}

    def find_due_spans(positions: Iterable[int]) -> Iterator[Span]:
      for position in positions:
        corpus, group, index = self.turn(position)
        if not isinstance(self.orders[corpus], BlockOrder):
          continue
        if (corpus, group) not in waiting:
          runs = self._runs(corpus, group, start)
          waiting[corpus, group] = runs, *next(runs)
        runs, moment, run = waiting[corpus, group]
        while moment <= index:
          yield run
          moment, run = next(runs)
        waiting[corpus, group] = runs, moment, run

    return find_due_spans

  def _runs(self, corpus: int, group: int, start: int) -> Iterator[tuple[int, Span]]:
    """Yields the runs of a corpus in a group, starting at a position, without end:

    (index at which to read the run, run).
    """
    made, first = self.orders[corpus], self.firsts[corpus]
    assert isinstance(made, BlockOrder)
    index = self._counts(group, self._count_before(group, start) // LOT * LOT)[corpus]
    for epoch, ahead, run in made.iterate_runs(group, *permutation.locate(made.length, index, group, self.groups)):
      wanted = frozenset(first + record for record in run.wanted)
      begin = permutation.count_earlier(made.length, epoch, group, self.groups)
      yield begin + ahead, Span(first + run.first, first + run.stop, wanted)

  def _place(self, position: int) -> tuple[int, int]:
    """Returns (group, number of earlier positions of the group)."""
    (step, row), rows = divmod(position, self.batch), self.batch // self.groups
    group, row = divmod(row, rows)
    return group, step * rows + row

  def _count_before(self, group: int, start: int) -> int:
    """Returns the number of positions that a group has before `start`."""
    (step, row), rows = divmod(start, self.batch), self.batch // self.groups
    return step * rows + min(max(row - group * rows, 0), rows)

  def _counts(self, group: int, index: int) -> list[int]:
    """Returns the number of turns that each corpus has among the first `index` turns of a group.

    The first corpus gets its share, rounded down after a random phase is added. The next corpus gets its share of the
    remaining turns.
    """
    counts, remaining = [], index
    for weight, rest, phase in draw_phases(self.weights, self.seed, group):
      counts.append((remaining * weight + phase) // rest)
      remaining -= counts[-1]
    return counts


@functools.lru_cache(maxsize=2**12)
def draw_phases(weights: Sequence[int], seed: int, group: int) -> list[tuple[int, int, int]]:
  """Draws the random phase of each corpus of a mixture.

  Args:
    weights: one positive integer per corpus.
    seed: seed of the run.
    group: number of the group of rows.

  Returns:
    (weight, sum of this and the following weights, phase below the sum) of each corpus.
  """
  draw = rng.make_python_generator(seed, "mixture", group)
  sums = [sum(weights[i:]) for i in range(len(weights))]
  return [(weight, rest, int(draw.random() * rest)) for weight, rest in zip(weights, sums, strict=True)]


@functools.lru_cache(maxsize=2**14)
def _shuffle_lot(seed: int, group: int, lot: int) -> list[int]:
  draw = rng.make_python_generator(seed, "turns", group, lot)
  return sorted(range(LOT), key=[draw.random() for _ in range(LOT)].__getitem__)


def create_order(choice: Choice, corpora: Sequence[Corpus], batch: int, seed: int, copies: int = 1) -> MixedOrder:
  """Returns the order of a mixture.

  Args:
    choice: order of each corpus, from the table `ORDERS`.
    corpora: corpora of the mixture, with their weights.
    batch: number of rows of a global batch.
    seed: seed of the run.
    copies: number of times that each record occurs in a batch. The order contains each record once.
  """
  lengths = [len(corpus.records) for corpus in corpora]
  made = [
    make(choice, ORDERS, length, batch, _derive_seed(seed, i), corpus.together, copies)
    for i, (length, corpus) in enumerate(zip(lengths, corpora, strict=True))
  ]
  groups = max(each.groups for each in made)
  # Each group needs at least one record of each corpus.
  groups = max(count for count in range(1, groups + 1) if batch % count == 0 and count <= min(lengths))
  own = count_distinct(batch, groups, copies)
  orders = [
    dataclasses.replace(each, groups=groups, **({"batch": own, "even": True} if isinstance(each, BlockOrder) else {}))
    for each in made
  ]
  exact = [fractions.Fraction(str(corpus.weight)) for corpus in corpora]  # exactly 7/10 for 0.7
  unit = math.lcm(*(weight.denominator for weight in exact))
  weights = [int(weight * unit) for weight in exact]
  firsts = [corpus.records.start for corpus in corpora]
  return MixedOrder(tuple(orders), tuple(firsts), tuple(weights), own, seed, groups)


def _derive_seed(seed: int, corpus: int) -> int:
  """Returns the seed of a corpus. Corpora of equal length need different permutations."""
  return int(rng.make_numpy_generator(seed, "corpus", corpus).integers(2**31))


def find_corpus_records(source: Source, record: int) -> range:
  """Returns the record numbers of the corpus that contains a record, or all record numbers outside of mixtures.

  Args:
    source: source of the record.
    record: record number.
  """
  return next((corpus.records for corpus in source.corpora if record in corpus.records), range(len(source)))


def count_epochs(corpora: Sequence[Corpus], position: int) -> dict[str, float]:
  """Returns the number of epochs that each corpus has completed before a position, by name.

  Args:
    corpora: corpora of the mixture.
    position: position in the stream of examples.
  """
  total = sum(corpus.weight for corpus in corpora)
  return {corpus.name: position * corpus.weight / total / len(corpus.records) for corpus in corpora}
