"""Tests of record orders.

An order is a permutation per epoch and a function of the position. Blocks belong to one process, with a read schedule.
"""

import collections
import timeit

import numpy as np
import pytest

from vit_jax import rng, schema
from vit_jax.data import order
from vit_jax.schema import Choice

SIZES = [(1000, 64, 8, 4, 4), (1003, 48, 10, 3, 6), (50, 16, 7, 2, 16), (17, 16, 5, 1, 2), (4, 4, 32, 16, 1),
         (97, 12, 1, 5, 3), (5, 12, 2, 2, 4), (640, 64, 16, 2, 4)]  # fmt: skip


def blocks(length, batch, size, window, groups, seed=3):
  return order.BlockOrder(length, batch, seed, size, window, groups)


def rows(position, made):
  """Returns the group of a position."""
  return position % made.batch * made.groups // made.batch


def slowly(made, epochs):
  """Yields the same order with lists.

  The blocks of an epoch are put in a line and dealt to the groups. Each group is shuffled window by window.
  """
  for epoch in range(epochs):
    positions = range(epoch * made.length, (epoch + 1) * made.length)
    start = int(rng.make_numpy_generator(made.seed, "order", epoch).integers(2**32)) * made.length // 2**32
    records = [(start + i) % made.length for i in range(made.length)]
    cut = [records[i : i + made.size] for i in range(0, made.length, made.size)]
    whole = made.length // made.size
    draw = rng.make_numpy_generator(made.seed, "blocks", epoch).bit_generator.random_raw(whole)
    line = [record for block in sorted(range(whole), key=draw.__getitem__) for record in cut[block]]
    line += [record for block in cut[whole:] for record in block]
    stream = {}
    for group in range(made.groups):
      mine = [position for position in positions if rows(position, made) == group]
      part, line = line[: len(mine)], line[len(mine) :]
      windows = max(1, round(len(mine) / (made.size * made.window)))
      for i in range(windows):
        some = slice(i * len(mine) // windows, (i + 1) * len(mine) // windows)
        draw = rng.make_numpy_generator(made.seed, "window", epoch, group, i).bit_generator.random_raw(len(part[some]))
        stream |= zip(mine[some], [part[some][j] for j in np.argsort(draw)], strict=True)
    yield from (stream[position] for position in positions)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_block_order_matches_lists_of_blocks(sizes):
  made = blocks(*sizes)
  assert [made.record(position) for position in range(4 * made.length)] == [*slowly(made, 4)]


@pytest.mark.parametrize("name", ["records", "blocks"])
@pytest.mark.parametrize(("length", "batch"), [(1000, 64), (1003, 100), (17, 16), (1, 4), (5, 12), (129, 128)])
def test_every_epoch_is_a_different_permutation(name, length, batch):
  made = schema.make(Choice(name), order.ORDERS, length, batch, 0, False)
  seen = [made.record(position) for position in range(3 * length)]
  epochs = [seen[i * length : (i + 1) * length] for i in range(3)]
  assert all(sorted(epoch) == [*range(length)] for epoch in epochs)
  if length > 5:
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.heavy
def test_blocks_that_exceed_the_table_are_permuted():
  made = blocks(140_000, 96, 2, 8, 6)
  seen = np.array([made.record(position) for position in range(made.length)])
  np.testing.assert_array_equal(np.sort(seen), np.arange(made.length))
  assert abs(np.corrcoef(seen, np.arange(made.length))[0, 1]) < 0.01


def test_seeds_give_different_orders():
  one, two = ([blocks(1000, 64, 8, 4, 4, seed).record(i) for i in range(2000)] for seed in (0, 1))
  assert one[:1000] != two[:1000] and one[1000:] != two[:1000]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_reads_of_a_group_contain_each_of_its_records_once(sizes):
  made, epochs = blocks(*sizes), 3
  owners = {(i // made.length, made.record(i)): rows(i, made) for i in range(epochs * made.length)}
  for group in range(made.groups):
    due = made.schedule(0)
    mine = [i for i in range((epochs + 2) * made.length) if rows(i, made) == group]
    found = collections.Counter()
    for run in due(mine):
      assert 0 <= run.first < run.stop <= made.length and run.stop - run.first <= made.size
      assert run.wanted == frozenset(range(run.first, run.stop))
      found.update(run.wanted)
    expected = collections.Counter(record for (_, record), owner in owners.items() if owner == group)
    assert all(found[record] >= count for record, count in expected.items())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("start", [0, 1, 5, 23])
def test_schedule_at_a_start_matches_the_records_from_there(sizes, start):
  made = blocks(*sizes)
  for hosts in (1, 2):
    for host in range(hosts if made.groups % hosts == 0 else 0):
      due, waiting, read = made.schedule(start * made.batch), collections.Counter(), 0
      for step in range(start, start + 40):
        here = [step * made.batch + row for row in range(made.batch)]
        here = here[host * made.batch // hosts : (host + 1) * made.batch // hosts]
        for run in due(here):
          waiting.update(run.wanted)
          read += 1
        records = [made.record(position) for position in here]
        for record in records:  # every record was scheduled; it is neither read alone nor read twice
          assert waiting[record] > 0
          waiting[record] -= 1
      # About 1.25 windows of each group wait. Reads from before the start do not remain.
      longest = max(made.size * made.window * 3 // 2, 1) + made.size + 1
      share = made.groups // hosts
      assert sum(waiting.values()) <= share * (1.25 * longest + 4 * made.batch // made.groups + made.size)


def test_large_datasets_need_few_requests_and_few_microseconds():
  made = order.blocks(300_000_000, 4096, 0, True)
  assert (made.groups, made.size, made.window) == (256, 32, 16)
  here = range(10**12 // 4096 * 4096, 10**12 // 4096 * 4096 + 16)
  due = made.schedule(here[0])
  runs = [run for step in range(1000) for run in due([4096 * step + position for position in here])]
  assert len(runs) <= 16_000 / 32 + 2 * 16 + 2  # 1.25 windows ahead
  positions = [4096 * step + position for step in range(500) for position in here]
  assert min(timeit.repeat(lambda: [made.record(i) for i in positions], number=1, repeat=2)) / len(positions) < 50e-6


def test_sequential_neighbours_are_one_read():
  due = order.SequentialOrder(20).schedule(0)
  assert [(run.first, run.stop) for run in due([3, 4, 5, 9, 10, 19, 20, 21])] == [(3, 6), (9, 11), (19, 20)]
  assert not [*due([20, 21])] and not [*order.RecordOrder(20, 0).schedule(0)([1, 2])]


def test_block_order_separates_most_neighbours():
  made = blocks(100_000, 512, 32, 16, 32)
  seen = np.array([made.record(position) for position in range(10_000)])
  assert (np.abs(np.diff(seen)) < 32).mean() < 3 / 16
  assert len({record // 32 for record in seen[:512]}) > 250


@pytest.mark.parametrize(
  ("batch", "groups"), [(1024, 64), (4096, 256), (128, 8), (100, 5), (8, 1), (1, 1), (1000, 50), (17, 1)]
)
def test_batch_is_divided_into_groups_of_at_least_16_rows(batch, groups):
  assert order.blocks(10_000, batch, 0, True).groups == groups


def test_groups_that_do_not_divide_the_batch_are_an_error():
  with pytest.raises(
    schema.ConfigError, match=r"a batch of 64 cannot be divided into 7 equal groups. Nearest numbers of groups: 4, 8"
  ):
    schema.make(Choice("blocks", {"groups": 7}), order.ORDERS, 1000, 64, 0, True)


def test_auto_order_uses_blocks_if_records_are_stored_together():
  kinds = [type(schema.make(Choice("auto"), order.ORDERS, 1000, 64, 0, together)) for together in (False, True)]
  assert kinds == [order.RecordOrder, order.BlockOrder]
