"""Tests of the plan of a corpus."""

import dataclasses
import json

import pytest

from vit_jax.corpora import plan
from vit_jax.data import sources
from vit_jax.schema import ConfigError

SPLITS = (plan.CorpusSplit("train", 5, 1005, 7), plan.CorpusSplit("test", 0, 5, 1))
PLAN = plan.CorpusPlan(
  "set", {"name": "folder", "path": "/a"}, sources.Fingerprint("n"), "c", 1, SPLITS, plan.CorpusOptions(), (("x", "y"),)
)


@pytest.mark.parametrize(("length", "shards"), [(1, 1), (2, 1), (10, 3), (1000, 7), (999, 64)])
def test_shards_match_tfds_buckets_of_ordered_keys(length, shards):
  from tensorflow_datasets.core import shuffle

  split = plan.CorpusSplit("train", 0, length, shards)
  cut = [split.positions(shard) for shard in range(shards)]
  assert [position for each in cut for position in each] == list(range(length))
  for shard, positions in enumerate(cut):
    assert positions and {shuffle.get_bucket_number(p, shards, length - 1) for p in positions} == {shard}


@pytest.mark.parametrize("together", [False, True])
def test_each_record_is_listed_once_in_an_order_that_depends_on_the_seed(together):
  split = SPLITS[0]
  orders = [
    [record for shard in range(7) for record in plan.list_numbers(split, split.positions(shard), seed, together)]
    for seed in (0, 0, 1)
  ]
  assert orders[0] == orders[1] != orders[2]
  assert sorted(orders[0]) == list(range(5, 1005)) != orders[0]


def test_input_is_shuffled_widely_and_read_in_blocks():
  split = plan.CorpusSplit("train", 0, 20_000, 4)
  first = list(plan.list_numbers(split, range(512), 0, True))
  assert max(first) - min(first) > 10_000
  assert len({record // 32 for record in first}) < 40  # 512 single records would be in about 350 blocks


def test_plan_is_stored_as_json_and_read_again(tmp_path):
  assert plan.CorpusPlan.read(json.loads(json.dumps(PLAN.to_json()))) == PLAN
  assert not PLAN.check(tmp_path / "plan.json")
  (tmp_path / "plan.json").write_text(json.dumps(PLAN.to_json() | {"records": {"train": 9}}))
  assert PLAN.check(tmp_path / "plan.json")
  assert dataclasses.replace(PLAN, data={"name": "folder", "path": "/moved"}).check(tmp_path / "plan.json")


@pytest.mark.parametrize(
  ("field", "value", "output"),
  [
    ("options", plan.CorpusOptions(size=9), "size: None, now 9"),
    ("fingerprint", sources.Fingerprint("other"), "the input's files: names"),
    ("classes", "d", "classes: 'c', now 'd'"),
    ("against", (), "against"),
    ("form", 2, "form: 1, now 2"),
  ],
)
def test_different_plan_is_refused_with_the_difference(tmp_path, field, value, output):
  (tmp_path / "plan.json").write_text(json.dumps(PLAN.to_json()))
  with pytest.raises(ConfigError, match=f"started with other input or options .*{output}.*use another name"):
    dataclasses.replace(PLAN, **{field: value}).check(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ['{"name": "se', "", "[]", "{}"])
def test_damaged_plan_is_refused(tmp_path, text):
  (tmp_path / "plan.json").write_text(text)
  output = f"^{tmp_path}/plan.json .*damaged.*remove {tmp_path}, and run the same command again"
  with pytest.raises(ConfigError, match=output):
    PLAN.check(tmp_path / "plan.json")


def test_splits_match_the_input_without_empty_splits():
  read = lambda i: (bytes(2**20), 0)  # noqa: E731
  parts = ("test", range(0)), ("train", range(3000))
  source = sources.Source("set", "all", ("a",), 3000, read, str, parts=parts)
  assert plan.plan_splits(source, plan.CorpusOptions()) == (plan.CorpusSplit("train", 0, 3000, 12),)  # of 250 MiB each
  assert plan.plan_splits(source, plan.CorpusOptions(shards=3)) == (plan.CorpusSplit("train", 0, 3000, 3),)
  small = dataclasses.replace(source, read=lambda i: (bytes(10), 0))
  assert plan.plan_splits(small, plan.CorpusOptions()) == (
    plan.CorpusSplit("train", 0, 3000, 6),
  )  # one shard for each of six cores


def test_memory_error_of_a_sample_is_reported():
  def fail(i):
    raise MemoryError

  source = sources.Source("set", "all", ("a",), 70, fail, lambda i: f"set, record {i}")
  with pytest.raises(ConfigError, match=r"set, record 0: not enough memory. Use a machine with more memory"):
    plan.plan_splits(source, plan.CorpusOptions())
