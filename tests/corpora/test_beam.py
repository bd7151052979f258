"""Corpora by Apache Beam."""

import json
import sys

import pytest

from tests.corpora import folders
from vit_jax.corpora import beam, plan, write
from vit_jax.schema import ConfigError


def by_beam(photos, root, max_rejected=0.5, **options):
  return beam.write("corpus", folders.choice(photos), plan.Options(**options), root, [], max_rejected)


@pytest.mark.heavy
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
  monkeypatch.setattr(write, "FEW", 0)
  with pytest.raises(ConfigError, match="3 of 57 images are rejected; allowed: 0"):
    by_beam(photos, tmp_path / "third", max_rejected=0.0)
  assert not (tmp_path / "third/corpus/1.0.0/dataset_info.json").exists()


def test_without_beam_it_says_which_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  with pytest.raises(ConfigError, match=r"needs the extra beam: pip install -e '.\[beam\]'"):
    by_beam(folders.folder(tmp_path / "photos"), tmp_path / "data")
