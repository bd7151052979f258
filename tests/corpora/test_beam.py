"""Corpora by Apache Beam."""

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


def by_beam(photos, root, max_rejected=0.5, **options):
  return beam.write("corpus", folders.choice(photos), plan.CorpusOptions(**options), root, [], max_rejected)


@pytest.mark.long
def test_the_files_are_those_of_one_machine(tmp_path, monkeypatch):
  pytest.importorskip("apache_beam")
  photos = folders.folder(folders.folder(tmp_path / "photos", 15), 12, split="test")
  for i in range(3):
    (photos / f"train/cat/bad{i}.jpg").write_bytes(b"garbage")
  other = folders.folder(tmp_path / "other", 2, split="test")  # which has 4 images of the other one
  options = {"shards": 3, "size": 30, "against": (str(other),), "distance": 0}
  folders.made(photos, tmp_path / "one", max_rejected=0.5, **options)
  said = by_beam(photos, tmp_path / "many", **options)
  assert said[0].startswith("corpus is prepared at")
  beside = lambda root: {f.name: f.read_bytes() for f in (root / "corpus/1.0.0").iterdir()}  # noqa: E731
  assert beside(tmp_path / "many") == beside(tmp_path / "one")
  about = json.loads((tmp_path / "many/corpus/1.0.0/prepare.json").read_text())
  assert about["rejected"] == 3 and about["duplicates"] >= 3
  assert by_beam(photos, tmp_path / "many", **options) == [
    f"corpus is already prepared at {tmp_path}/many/corpus/1.0.0"
  ]
  monkeypatch.setattr(writer, "FEW", 0)
  with pytest.raises(ConfigError, match=r"rejected: 3 of 57 images. Allowed: 0"):
    by_beam(photos, tmp_path / "third", max_rejected=0.0)
  assert not (tmp_path / "third/corpus/1.0.0/dataset_info.json").exists()


@pytest.mark.long
def test_input_that_changes_is_one_line_and_what_was_done_is_done_again(tmp_path, monkeypatch):
  pytest.importorskip("apache_beam")
  photos = folders.folder(tmp_path / "photos", 6)
  real, beside = plan.CorpusPlan.plain, shard_worker.Folders.of(tmp_path / "data", "corpus")

  def plain(made):  # of the plan, and then for the pipeline
    if (beside.work / "plan.json").exists():
      (photos / "train/cat").rename(photos / "train/zebra")
    return real(made)

  with monkeypatch.context() as patch:
    patch.setattr(plan.CorpusPlan, "plain", plain)
    with pytest.raises(ConfigError, match=r"has changed since .*remove .*\.work, and run the same command again$"):
      by_beam(photos, tmp_path / "data")
  assert not (beside.corpus / "dataset_info.json").exists()
  (photos / "train/zebra").rename(photos / "train/cat")
  assert by_beam(photos, tmp_path / "data")[0].startswith("corpus is prepared")


@pytest.mark.long
@pytest.mark.parametrize(
  ("error", "said"),
  [
    (OSError(5, "Input/output error"), r"Input/output error. Check that its disk or bucket is reachable$"),
    (runtime.Stop(42, "stopped on request"), "^stopped on request$"),
  ],
  ids=("disk", "stop"),
)
def test_an_error_of_the_input_or_a_request_to_stop_comes_as_it_is(tmp_path, monkeypatch, error, said):
  pytest.importorskip("apache_beam")

  def contents(file):
    raise error

  photos = folders.folder(tmp_path / "photos", 4)
  monkeypatch.setattr(local_files, "read_file", contents)
  with pytest.raises((ConfigError, runtime.Stop), match=said):
    beam.write("corpus", folders.choice(photos), plan.CorpusOptions(shards=1), tmp_path / "data", [])


@pytest.mark.heavy
def test_reports_without_their_files_are_not_believed_without_beam(tmp_path, monkeypatch):
  pytest.importorskip("apache_beam")
  photos = folders.folder(tmp_path / "photos", 6)
  with monkeypatch.context() as patch:  # killed between its reports and its files
    patch.setattr(record_maker, "write_records", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
      by_beam(photos, tmp_path / "data", shards=2)
  assert len(list((tmp_path / "data/corpus/.1.0.0.work").glob("train-*.json"))) == 2
  folders.made(photos, tmp_path / "data", shards=2)
  folders.made(photos, tmp_path / "one", shards=2)
  assert folders.shards(tmp_path / "data") == folders.shards(tmp_path / "one")


def test_without_beam_it_says_which_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  with pytest.raises(ConfigError, match=r"needs the extra beam: pip install -e '.\[beam\]'"):
    by_beam(folders.folder(tmp_path / "photos"), tmp_path / "data")
