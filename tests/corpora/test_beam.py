"""Tests of corpora that Apache Beam writes."""

import json
import os
import signal
import sys

import pytest

from tests.corpora import folders
from vit_jax import runtime
from vit_jax.corpora import beam, plan, record_maker, shard_worker, writer
from vit_jax.data import local_files
from vit_jax.schema import ConfigError


def write_with_beam(photos, root, max_rejected=0.5, **options):
  return beam.write("corpus", folders.choice(photos), plan.CorpusOptions(**options), root, [], max_rejected)


@pytest.mark.long
def test_beam_writes_the_same_files_as_one_machine(tmp_path, monkeypatch):
  pytest.importorskip("apache_beam")
  photos = folders.folder(folders.folder(tmp_path / "photos", 15), 12, split="test")
  for i in range(3):
    (photos / f"train/cat/bad{i}.jpg").write_bytes(b"garbage")
  other = folders.folder(tmp_path / "other", 2, split="test")  # has 4 images of the first folder
  options = {"shards": 3, "size": 30, "against": (str(other),), "distance": 0}
  folders.made(photos, tmp_path / "one", max_rejected=0.5, **options)
  output = write_with_beam(photos, tmp_path / "many", **options)
  assert output[0].startswith("corpus is prepared at")
  metadata = lambda root: {f.name: f.read_bytes() for f in (root / "corpus/1.0.0").iterdir()}  # noqa: E731
  assert metadata(tmp_path / "many") == metadata(tmp_path / "one")
  about = json.loads((tmp_path / "many/corpus/1.0.0/prepare.json").read_text())
  assert about["rejected"] == 3 and about["duplicates"] >= 3
  assert write_with_beam(photos, tmp_path / "many", **options) == [
    f"corpus is already prepared at {tmp_path}/many/corpus/1.0.0"
  ]
  monkeypatch.setattr(writer, "FEW", 0)
  with pytest.raises(ConfigError, match=r"rejected: 3 of 57 images. Allowed: 0"):
    write_with_beam(photos, tmp_path / "third", max_rejected=0.0)
  assert not (tmp_path / "third/corpus/1.0.0/dataset_info.json").exists()


@pytest.mark.long
def test_changed_input_is_an_error_and_the_work_can_be_repeated(tmp_path, monkeypatch):
  pytest.importorskip("apache_beam")
  photos = folders.folder(tmp_path / "photos", 6)
  real, metadata = plan.CorpusPlan.to_json, shard_worker.Folders.locate(tmp_path / "data", "corpus")

  def plain(made):  # called for the plan, and then for the pipeline
    if (metadata.work / "plan.json").exists():
      (photos / "train/cat").rename(photos / "train/zebra")
    return real(made)

  with monkeypatch.context() as patch:
    patch.setattr(plan.CorpusPlan, "to_json", plain)
    with pytest.raises(ConfigError, match=r"has changed since .*remove .*\.work, and run the same command again$"):
      write_with_beam(photos, tmp_path / "data")
  assert not (metadata.corpus / "dataset_info.json").exists()
  (photos / "train/zebra").rename(photos / "train/cat")
  assert write_with_beam(photos, tmp_path / "data")[0].startswith("corpus is prepared")


@pytest.mark.long
@pytest.mark.parametrize(
  ("error", "output"),
  [
    (OSError(5, "Input/output error"), r"Input/output error. Check that its disk or bucket is reachable$"),
    (runtime.Stop(42, "stopped on request"), "^stopped on request$"),
  ],
  ids=("disk", "stop"),
)
def test_input_error_and_stop_request_keep_their_message(tmp_path, monkeypatch, error, output):
  pytest.importorskip("apache_beam")

  def contents(file):
    raise error

  photos = folders.folder(tmp_path / "photos", 4)
  monkeypatch.setattr(local_files, "read_file", contents)
  with pytest.raises((ConfigError, runtime.Stop), match=output):
    beam.write("corpus", folders.choice(photos), plan.CorpusOptions(shards=1), tmp_path / "data", [])


@pytest.mark.heavy
def test_reports_without_their_files_are_ignored_without_beam(tmp_path, monkeypatch):
  pytest.importorskip("apache_beam")
  photos = folders.folder(tmp_path / "photos", 6)
  with monkeypatch.context() as patch:  # killed after the reports and before the files
    patch.setattr(record_maker, "write_records", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
      write_with_beam(photos, tmp_path / "data", shards=2)
  assert len(list((tmp_path / "data/corpus/.1.0.0.work").glob("train-*.json"))) == 2
  folders.made(photos, tmp_path / "data", shards=2)
  folders.made(photos, tmp_path / "one", shards=2)
  assert folders.shards(tmp_path / "data") == folders.shards(tmp_path / "one")


def test_missing_beam_names_the_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  with pytest.raises(ConfigError, match=r"needs the extra beam: pip install -e '.\[beam\]'"):
    write_with_beam(folders.folder(tmp_path / "photos"), tmp_path / "data")
