"""The order of a mixture: which corpus each position is of, by weights, and each corpus in an order of its own.

Nothing is remembered from one position to the next. The rows of a batch are cut into groups, as `order.Blocks` has
them, or are one group; of each, the corpora take turns such that in any stretch of it each has its weight's share, but
for rounding. A group has its part of every epoch of a corpus: each record comes once an epoch of its corpus.
"""

import dataclasses
import fractions
import functools
import math
from collections.abc import Callable, Iterable, Sequence

from vit_jax import rng
from vit_jax.data import permutation
from vit_jax.data.order import ORDERS, Blocks, Records, Run, distinct
from vit_jax.data.sources import Corpus, Source
from vit_jax.schema import Choice, make

# Positions of a group of which the turns are shuffled: else of two corpora with equal weights every other row would be
# of the first, and a row would always be mixed with one of the other corpus (mixup).
LOT = 16


@dataclasses.dataclass(frozen=True)
class Mixed:
  """The orders of several corpora, by weights."""

  orders: tuple[Records | Blocks, ...]
  firsts: tuple[int, ...]  # the record of the mixture that each corpus begins with
  weights: tuple[int, ...]
  batch: int
  seed: int
  groups: int
  copies = 1

  @property
  def rows(self) -> int:
    """How many rows of a batch share what is read together."""
    return self.batch // self.groups if any(isinstance(each, Blocks) for each in self.orders) else 1

  @property
  def about(self) -> str:
    """What is said of it behind the number of images."""
    shares = ", ".join(f"{weight / sum(self.weights):.1%}" for weight in self.weights)
    return f", mixed {shares}{next((each.about for each in self.orders if each.about), '')}"

  def record(self, position: int) -> int:
    """The record at a position."""
    corpus, group, index = self.turn(position)
    made = self.orders[corpus]
    epoch, index = permutation.locate(made.length, index, group, self.groups)
    return self.firsts[corpus] + made.at(epoch, group, index)

  def visit(self, position: int) -> int:
    """A number that no other position of this record has: the epoch of its corpus."""
    corpus, group, index = self.turn(position)
    return permutation.locate(self.orders[corpus].length, index, group, self.groups)[0]

  @functools.cached_property
  def turn(self) -> Callable[[int], tuple[int, int, int]]:
    """position -> (corpus, group, how many positions of this group were of it before, in the order of turns).

    It takes about as long as `order.Records.record`, and is asked for several times.
    """
    return functools.lru_cache(maxsize=2**12)(self._turn)

  def _turn(self, position):
    group, index = self._place(position)
    lot, within = divmod(index, LOT)
    index = lot * LOT + _shuffled(self.seed, group, lot)[within]
    before, after = self._counts(group, index), self._counts(group, index + 1)
    corpus = next(i for i, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)
    return corpus, group, before[corpus]

  def schedule(self, start: int) -> Callable[[Sequence[int]], Iterable[Run]]:
    """As of `Blocks`."""
    waiting = {}

    def due(positions):
      for position in positions:
        corpus, group, index = self.turn(position)
        if not isinstance(self.orders[corpus], Blocks):
          continue
        if (corpus, group) not in waiting:
          runs = self._runs(corpus, group, start)
          waiting[corpus, group] = runs, *next(runs)
        runs, moment, run = waiting[corpus, group]
        while moment <= index:
          yield run
          moment, run = next(runs)
        waiting[corpus, group] = runs, moment, run

    return due

  def _runs(self, corpus, group, start):
    """(index at which it is to be read, run) of a corpus in a group, from a position on, without end."""
    made, first = self.orders[corpus], self.firsts[corpus]
    index = self._counts(group, self._from(group, start) // LOT * LOT)[corpus]
    for epoch, ahead, run in made.runs(group, *permutation.locate(made.length, index, group, self.groups)):
      wanted = frozenset(first + record for record in run.wanted)
      begin = permutation.begin(made.length, epoch, group, self.groups)
      yield begin + ahead, Run(first + run.first, first + run.stop, wanted)

  def _place(self, position):
    """(group, how many positions it had before)."""
    (step, row), rows = divmod(position, self.batch), self.batch // self.groups
    group, row = divmod(row, rows)
    return group, step * rows + row

  def _from(self, group, start):
    """How many positions a group had before a position of any group."""
    (step, row), rows = divmod(start, self.batch), self.batch // self.groups
    return step * rows + min(max(row - group * rows, 0), rows)

  def _counts(self, group, index):
    """How many of the first so many turns of a group each corpus has.

    The first has its share of them, rounded down from where a phase begins; the next has its share of what is left.
    """
    counts, left = [], index
    for weight, rest, phase in _phases(self.weights, self.seed, group):
      counts.append((left * weight + phase) // rest)
      left -= counts[-1]
    return counts


@functools.lru_cache(maxsize=2**12)
def _phases(weights, seed, group):
  """(weight, sum of it and of those behind it, phase below the sum) of each corpus."""
  draw = rng.draws(seed, "mixture", group)
  sums = [sum(weights[i:]) for i in range(len(weights))]
  return [(weight, rest, int(draw.random() * rest)) for weight, rest in zip(weights, sums, strict=True)]


@functools.lru_cache(maxsize=2**14)
def _shuffled(seed, group, lot):
  draw = rng.draws(seed, "turns", group, lot)
  return sorted(range(LOT), key=[draw.random() for _ in range(LOT)].__getitem__)


def order(choice: Choice, corpora: Sequence[Corpus], batch: int, seed: int, copies: int = 1) -> Mixed:
  """The order of a mixture, each of its corpora in an order of the table `ORDERS`; of records without their copies."""
  lengths = [len(corpus.records) for corpus in corpora]
  made = [
    make(choice, ORDERS, length, batch, _seed(seed, i), corpus.together, copies)
    for i, (length, corpus) in enumerate(zip(lengths, corpora, strict=True))
  ]
  groups = max(each.groups for each in made)
  # Each group needs a record of each corpus.
  groups = max(count for count in range(1, groups + 1) if batch % count == 0 and count <= min(lengths))
  own = distinct(batch, groups, copies)
  orders = [
    dataclasses.replace(each, groups=groups, **({"batch": own, "even": True} if isinstance(each, Blocks) else {}))
    for each in made
  ]
  exact = [fractions.Fraction(str(corpus.weight)) for corpus in corpora]  # 0.7 is seven tenths
  unit = math.lcm(*(weight.denominator for weight in exact))
  weights = [int(weight * unit) for weight in exact]
  firsts = [corpus.records.start for corpus in corpora]
  return Mixed(tuple(orders), tuple(firsts), tuple(weights), own, seed, groups)


def _seed(seed, corpus):
  """Two corpora of one length are not permuted alike."""
  return int(rng.generator(seed, "corpus", corpus).integers(2**31))


def alike(source: Source, record: int) -> range:
  """The records of the corpus that a record is of; of other data than mixtures all of them."""
  return next((corpus.records for corpus in source.corpora if record in corpus.records), range(len(source)))


def epochs(corpora: Sequence[Corpus], position: int) -> dict[str, float]:
  """How many epochs each corpus has seen before a position, by name."""
  total = sum(corpus.weight for corpus in corpora)
  return {corpus.name: position * corpus.weight / total / len(corpus.records) for corpus in corpora}
