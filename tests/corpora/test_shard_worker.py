"""Tests of the tasks of a worker process: hashes of test sets, and shards with their reports."""

import pathlib

import numpy as np
import pytest

from tests.corpora import folders
from tests.image_files import decoded
from vit_jax.corpora import duplicates, plan, shard_worker
from vit_jax.data import sources
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import AbsentError


def test_set_is_a_folder_or_a_prepared_dataset(tmp_path):
  root = folders.folder(tmp_path / "photos", 3, split="test")
  folders.made(root, tmp_path / "data")
  assert (
    len(shard_worker.open_test_set(str(root))) == len(shard_worker.open_test_set(f"{tmp_path}/data/corpus/1.0.0")) == 6
  )
  with pytest.raises(
    ConfigError, match=r"--dedup-against: .cifar11. is neither a folder nor a dataset. Did you mean 'cifar10'"
  ):
    shard_worker.open_test_set("cifar11")
  with pytest.raises(AbsentError, match="prepare cifar10"):
    shard_worker.open_test_set("cifar10")


def test_hashes_cover_each_image_and_its_mirror_image(tmp_path):
  root = folders.folder(tmp_path, 3, split="test")
  worker = shard_worker.Worker(None, shard_worker.Folders.locate(tmp_path, "corpus"))
  hashes = worker(shard_worker.HashTask(str(root), 1, 3), print)
  source = shard_worker.open_test_set(str(root))
  images = [decoded(source.read(i)[0]) for i in (1, 2)]
  assert hashes == [duplicates.compute_hash(each) for image in images for each in (image, np.fliplr(image).copy())]


def test_shard_reports_progress_and_writes_a_report(tmp_path, monkeypatch):
  monkeypatch.setattr(shard_worker, "EVERY", 0.0)
  data = folders.choice(folders.folder(tmp_path / "photos", 4))
  at = shard_worker.Folders.locate(tmp_path, "corpus")
  at.work.mkdir(parents=True)
  at.corpus.mkdir()
  split = plan.CorpusSplit("train", 0, 8, 2)
  source = plan.open_input(data)
  classes = sources.digest(source.classes)
  made = plan.CorpusPlan("corpus", data, source.fingerprint(), classes, 1, (split,), plan.CorpusOptions())
  output = []
  report = shard_worker.Worker(made, at)(shard_worker.ShardTask(0, 1), output.append)
  assert [sum(each) for each in zip(*output, strict=True)] == [4, 0, 0]
  assert at.shard("corpus", split, 1) == pathlib.Path(tmp_path, "corpus/1.0.0/corpus-train.array_record-00001-of-00002")
  assert at.shard("corpus", split, 1).exists() and report.records == 4
  assert at.read_report(split, 1) == report and at.read_report(split, 0) is None
