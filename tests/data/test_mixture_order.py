"""Tests of the order of a mixture: shares by weight in every range, epochs of each corpus, and the read schedule."""

import collections
import fractions

import numpy as np
import pytest

from vit_jax import schema
from vit_jax.data import mixture_order
from vit_jax.data.sources import Corpus
from vit_jax.schema import Choice


def made(lengths, weights, batch=32, seed=3, together=None, **blocks):
  ends = np.cumsum([0, *lengths]).tolist()
  together = together or [0] * len(lengths)
  corpora = [
    Corpus(f"c{i}", range(ends[i], ends[i + 1]), weight, each)
    for i, (weight, each) in enumerate(zip(weights, together, strict=True))
  ]
  return mixture_order.create_order(
    Choice("blocks", blocks) if blocks else Choice("auto"), corpora, batch, seed
  ), corpora


CASES = {
  "two": dict(lengths=(70, 50), weights=(1, 1)),
  "small and large": dict(lengths=(7, 120), weights=(0.1, 0.9), batch=20),
  "four": dict(lengths=(25, 10, 15, 32), weights=(3, 1, 0.5, 2), batch=12),
  "blocks": dict(lengths=(300, 130), weights=(2, 1), batch=48, size=8, window=3, groups=4),
  "blocks of odd sizes": dict(lengths=(97, 41, 64), weights=(1, 1, 5), batch=10, size=5, window=2, groups=5),
  "by itself": dict(lengths=(200, 150), weights=(1, 2), batch=64, together=[0, 32]),
  "one": dict(lengths=(33,), weights=(0.3,), batch=8),
}  # fmt: skip


def parts(order, corpora, positions):
  """Yields (corpus, epoch of the corpus, record of the corpus) at each position."""
  for position in positions:
    record = order.record(position)
    corpus = next(i for i, each in enumerate(corpora) if record in each.records)
    yield corpus, order.visit(position), record - corpora[corpus].records.start


@pytest.mark.parametrize("name", CASES)
def test_every_epoch_of_a_corpus_is_a_different_permutation(name):
  order, corpora = made(**CASES[name])
  count = 5 * max(int(len(c.records) * sum(d.weight for d in corpora) / c.weight) for c in corpora)
  epochs = collections.defaultdict(list)
  for corpus, epoch, record in parts(order, corpora, range(count)):
    epochs[corpus, epoch].append(record)
  for i, corpus in enumerate(corpora):
    seen = [epochs[i, epoch] for epoch in range(4)]
    assert all(sorted(each) == [*range(len(corpus.records))] for each in seen), i
    assert len(set(map(tuple, seen))) == 4
    # An epoch ends in all groups at about the same time.
    expected = mixture_order.count_epochs(corpora, count)[corpus.name]
    assert abs(max(epoch for other, epoch in epochs if other == i) - expected) <= 1 + 2 * order.groups / len(seen[0])


@pytest.mark.parametrize("name", CASES)
def test_any_range_of_a_group_has_the_share_of_each_weight(name):
  order, corpora = made(**CASES[name])
  weights = [fractions.Fraction(str(corpus.weight)) for corpus in corpora]
  rows = order.batch // order.groups
  for group in {0, order.groups - 1}:
    mine = [step * order.batch + group * rows + row for step in range(3000 // rows) for row in range(rows)]
    turns = np.array([order.turn(position)[0] for position in mine])
    for first, stop in ((0, len(mine)), (0, 16), (320, 1600), (5, 1234), (777, 790), (16, 48)):
      counts = np.bincount(turns[first:stop], minlength=len(weights))
      shares = np.array([float((stop - first) * weight / sum(weights)) for weight in weights])
      # Rounding of each preceding corpus adds less than 1, and both ends may be inside a lot.
      rounding = len(weights) + (mixture_order.LOT if first % mixture_order.LOT or stop % mixture_order.LOT else 0)
      assert np.abs(counts - shares).max() < rounding


def test_turns_match_a_slow_count():
  """Counts slowly as a second formulation.

  The first corpus gets its share of all turns so far, rounded from its phase. The next corpora share the remaining
  turns in the same way.
  """
  order, _ = made((50, 20, 90), (3, 1, 0.5), batch=8)
  phases = mixture_order.draw_phases(order.weights, order.seed, 0)
  assert order.weights == (6, 2, 1)
  turns, had = [], [0, 0, 0]
  for _ in range(600):
    left = len(turns) + 1
    for i, (weight, rest, phase) in enumerate(phases):
      due = (left * fractions.Fraction(weight, rest) + fractions.Fraction(phase, rest)).__floor__()
      if due > had[i]:
        turns.append((i, had[i]))
        had[i] += 1
        break
      left -= due
  for lot in range(0, 592, mixture_order.LOT):
    assert sorted((c, n) for c, _, n in map(order.turn, range(lot, lot + 16))) == sorted(turns[lot : lot + 16])


def test_rows_of_a_batch_mix_the_corpora():
  order, _ = made((5000, 5000), (1, 1), batch=64)
  turns = np.array([order.turn(position)[0] for position in range(64 * 100)]).reshape(100, 64)
  assert (abs(turns.mean(1) - 0.5) <= 1 / 64).all()
  assert turns.mean(0).min() > 0.3 and turns.mean(0).max() < 0.7
  pairs = (turns != turns[:, ::-1]).mean()  # as mixup pairs them
  assert 0.4 < pairs < 0.6


def test_order_depends_on_the_seed_and_differs_between_corpora():
  one, two = (made((60, 60), (1, 1), seed=seed)[0] for seed in (0, 1))
  records = [[order.record(i) for i in range(240)] for order in (one, two)]
  assert records[0] != records[1]
  first, second = ([record % 60 for record in records[0] if record // 60 == i] for i in (0, 1))
  assert first[:60] != second[:60]


@pytest.mark.parametrize("name", ["blocks", "blocks of odd sizes", "by itself"])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_schedule_at_a_start_matches_the_records_from_there(name, start):
  order, _ = made(**CASES[name])
  for hosts in (1, 2):
    if order.groups % hosts:
      continue
    rows = order.batch // hosts
    for host in range(hosts):
      due, waiting = order.schedule(start * order.batch), collections.Counter()
      for step in range(start, start + 40):
        here = [step * order.batch + row for row in range(host * rows, (host + 1) * rows)]
        for run in due(here):
          assert run.wanted <= frozenset(range(run.first, run.stop))
          waiting.update(run.wanted)
        for position in here:
          corpus, _, _ = order.turn(position)
          if order.orders[corpus].rows > 1:
            record = order.record(position)
            assert waiting[record] > 0
            waiting[record] -= 1
      largest = max(each.size * each.window for each in order.orders if each.rows > 1)
      assert sum(waiting.values()) <= 3 * order.groups // hosts * (1.9 * largest + 8 * order.batch // order.groups + 16)


def test_small_corpus_reduces_the_number_of_groups():
  order, _ = made((1000, 3), (1, 1), batch=64, together=[32, 32])
  assert order.groups == 2
  with pytest.raises(schema.ConfigError, match="cannot be divided into 7 equal groups"):
    made((1000, 30), (1, 1), batch=64, groups=7, size=4)


def test_weights_are_exact_decimals():
  order, corpora = made((10, 10, 10), (0.7, 0.1, 0.2), batch=10)
  assert order.weights == (7, 1, 2) and mixture_order.count_epochs(corpora, 1000) == {
    "c0": 70.0,
    "c1": 10.0,
    "c2": 20.0,
  }
