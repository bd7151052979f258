"""Tests of the description files of a corpus, which accompany its shards."""

import pytest

from vit_jax.corpora import description, plan, record_maker
from vit_jax.data import sources
from vit_jax.schema import ConfigError


def make_report(records, rejected=0):
  made = record_maker.ShardReport()
  for i in range(records):
    made.add(record_maker.CorpusRecord(str(i), bytes(10), (i % 2,), ("rotated",) if i == 1 else ()))
  for i in range(rejected):
    made.add(record_maker.CorpusRecord(str(i), rejected=f"{i} x {i + 9} pixels. Allowed: 3"))
  return made


def write_corpus_description(tmp_path, reports, labels=1):
  splits = tuple(plan.CorpusSplit(name, 0, 9, len(each)) for name, each in reports.items())
  made = plan.CorpusPlan("set", {}, sources.Fingerprint(), "", labels, splits, plan.CorpusOptions())
  description.write_description(tmp_path, made, ("a", "b"), reports)


@pytest.mark.parametrize("labels", [1, 4])
def test_tfds_reads_the_description(tmp_path, labels):
  import tensorflow_datasets as tfds

  write_corpus_description(tmp_path, {"train": [make_report(3), make_report(4)], "test": [make_report(2)]}, labels)
  info = tfds.builder_from_directory(tmp_path).info
  assert info.splits["train"].shard_lengths == [3, 4] and info.splits["train"].num_bytes == 70
  label = info.features["label"]
  assert (label.feature if labels > 1 else label).names == ["a", "b"]
  assert [file.name for file in info.splits["test"].filepaths] == ["set-test.array_record-00000-of-00001"]


def test_shard_without_an_image_is_refused_before_the_description(tmp_path):
  with pytest.raises(ConfigError, match="no image is left for 1 of 2 files of split 'train'"):
    write_corpus_description(tmp_path, {"train": [make_report(3), make_report(0, 9)]})
  assert not (tmp_path / "dataset_info.json").exists()


def test_summary_groups_reasons_by_kind():
  lines = description.summarise_reports({"train": [make_report(3, 7), make_report(2, 1)]}, ("a", "b"))
  assert lines[0] == "train: 5 images in 2 files, 0 MiB; 2 classes with 2 ('b') to 3 images ('a')"
  assert lines[1:] == [
    "2 rotated",
    "8 rejected; rejected.jsonl names them",
    "        8  such as 0: 0 x 9 pixels. Allowed: 3",
  ]
  equal = description.summarise_reports({"train": [make_report(4)]}, ("a", "b"))
  assert equal[0] == "train: 4 images in 1 file, 0 MiB; 2 classes with 2 images each"


def test_duplicate_class_names_are_refused():
  description.check_classes(("a", "A", "ä"))
  with pytest.raises(ConfigError, match="several classes are called 'a'"):
    description.check_classes(("a", "b", "a"))
