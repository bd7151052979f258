"""Tests of repeated augmentation: the content of an epoch, separate draws for each copy, restarts and processes."""

import collections

import numpy as np
import pytest

from tests.streams import RANDOM, records, same, source, train
from vit_jax import rng, schema
from vit_jax.data import mixture_order, order, repeats, stream
from vit_jax.data.sources import Corpus
from vit_jax.data.views import Fields
from vit_jax.schema import Choice


def repeated(length, batch, copies, name="records", seed=0, **args):
  inner = schema.make(Choice(name, args), order.ORDERS, length, batch, seed, 0, copies)
  return repeats.RepeatedOrder(inner, batch, copies)


@pytest.mark.parametrize("name", ["records", "blocks"])
@pytest.mark.parametrize(
  ("length", "batch", "copies"), [(60, 12, 3), (60, 24, 2), (61, 12, 3), (7, 12, 4), (500, 96, 3)]
)
def test_epoch_has_a_share_of_the_records_with_all_copies(name, length, batch, copies):
  made = repeated(length, batch, copies, name)
  steps = -(-2 * length * copies // batch)
  seen = np.array([made.record(position) for position in range(steps * batch)]).reshape(steps, -1, copies)
  # All copies of a record are adjacent in one batch.
  assert (seen == seen[..., :1]).all()
  once = seen[..., 0].ravel()[: 2 * length].reshape(2, length)
  for turn in once:
    assert sorted(turn) == [*range(length)]
  assert (once[0] != once[1]).any()


@pytest.mark.parametrize("name", ["records", "blocks"])
def test_last_record_of_a_batch_has_fewer_copies_if_they_do_not_divide(name):
  made = repeated(1000, 64, 3, name, **({"groups": 2} if name == "blocks" else {}))
  rows = 64 // (2 if name == "blocks" else 1)
  for step in range(20):
    batch = [made.record(step * 64 + row) for row in range(64)]
    for first in range(0, 64, rows):
      counts = list(collections.Counter(batch[first : first + rows]).values())
      assert counts == [3] * (rows // 3) + [rows % 3] * (rows % 3 > 0)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", ["records", "blocks"])
def test_pairs_of_record_and_visit_are_unique(name, copies):
  made = repeated(23, 20, copies, name)
  seen = {(made.record(position), made.visit(position)) for position in range(20 * 9)}
  assert len(seen) == 20 * 9


def test_one_repeat_does_not_change_the_stream():
  same(train(source(50), 20, 3, repeats=1), train(source(50), 20, 3))
  plain, wrapped = order.RecordOrder(50, 0), repeats.RepeatedOrder(order.RecordOrder(50, 0), 20, 1)
  for position in range(60):
    assert (plain.record(position), plain.visit(position)) == (wrapped.record(position), wrapped.visit(position))


def test_copies_have_their_own_draws_by_seed_visit_and_record():
  batches = train(source(40, gradient=True), 30, 8, repeats=3, **RANDOM | {"image_size": 8})
  draws = np.concatenate([b["draw"] for b in batches])
  assert len(np.unique(draws)) == len(draws)
  made = stream.train_examples(source(40), 0, Fields(), 30, repeats=3).order
  for position in (0, 1, 2, 3, 100, 239):
    expected = rng.make_python_generator(0, "example", made.visit(position), made.record(position))
    assert draws[position] == int(expected.random() * 2**32)
  images = batches[0]["image"].reshape(10, 3, -1)
  assert (images[:, 0] != images[:, 1]).any(1).mean() > 0.8


@pytest.mark.parametrize("name", ["records", "blocks"])
def test_restarts_and_other_process_counts_give_the_same_batches(name):
  args = {"repeats": 3, "order": Choice(name)} | RANDOM
  whole = train(source(70), 24, 12, **args)
  same(train(source(70), 24, 5, start=7, **args), whole[7:])
  for processes in (2, 4):
    rows = np.arange(24).reshape(processes, -1)
    parts = [train(source(70), 24, 12, rows=some, **args) for some in rows]
    joined = [
      {key: np.concatenate([part[key] for part in step]) for key in step[0]} for step in zip(*parts, strict=True)
    ]
    same(joined, whole)


def test_bad_record_is_replaced_separately_for_each_copy():
  batches = train(source(30, bad=[4]), 30, 3, repeats=3, on_error="skip")
  made = stream.train_examples(source(30), 0, Fields(), 30, repeats=3).order
  seen, planned = records(batches), np.array([made.record(position) for position in range(90)])
  assert (seen != 4).all() and (seen[planned != 4] == planned[planned != 4]).all()
  assert len(set(seen[planned == 4].tolist())) > 1


@pytest.mark.parametrize("blocks", [{}, {"size": 4, "window": 2, "groups": 2}])
@pytest.mark.parametrize(("batch", "copies"), [(24, 3), (24, 2), (20, 3)])
def test_corpora_of_a_mixture_keep_their_shares_and_epochs(blocks, batch, copies):
  corpora = [Corpus("small", range(30), 1, 0), Corpus("large", range(30, 100), 2.5, 8)]
  choice = Choice("blocks", blocks) if blocks else Choice("records")
  made = repeats.RepeatedOrder(mixture_order.create_order(choice, corpora, batch, 4, copies), batch, copies)
  steps = -(-4 * 100 * copies // batch)
  rows = batch // made.inner.groups
  seen, firsts = set(), []
  for start in range(0, steps * batch, rows):
    group = [(made.record(position), made.visit(position)) for position in range(start, start + rows)]
    # Copies are adjacent, and each copy has its own draws.
    assert [record for record, _ in group] == [group[row - row % copies][0] for row in range(rows)]
    # A group reads only its own records.
    groups = {made.inner.turn(made.locate(position)[0])[1] for position in range(start, start + rows)}
    assert groups == {start // rows % made.inner.groups}
    assert len(seen | set(group)) == len(seen) + rows
    seen |= set(group)
    firsts += [(record, visit // copies) for record, visit in group[::copies]]
  share = sum(record < 30 for record, _ in firsts) / len(firsts)
  assert share == pytest.approx(1 / 3.5, abs=0.03)
  for corpus in corpora:
    for epoch in range(2):
      assert sorted(record for record, of in firsts if record in corpus.records and of == epoch) == [*corpus.records]


def test_more_copies_than_rows_are_refused():
  with pytest.raises(schema.ConfigError, match=r"9 copies of a record do not fit a batch of 8. Allowed: 1 to 8"):
    stream.train_examples(source(30), 0, Fields(), 8, repeats=9)


def test_overview_contains_the_number_of_copies():
  assert repeated(1000, 96, 3).about == ", each 3 times in a batch"
  assert repeated(1000, 96, 3, "blocks").rows == 48
