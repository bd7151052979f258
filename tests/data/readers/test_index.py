"""Where records lie: what is kept of a scan, and bytes that are read together."""

import numpy as np
import pytest

from tests import forms, streams
from vit_jax.data import local_files
from vit_jax.data.readers import index, listing


def test_a_file_is_looked_through_again_only_when_it_has_changed(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  for name in "ab":
    (tmp_path / f"{name}.tar").write_text(name)
  scanned = []

  def scan(file):
    scanned.append(file)
    return {"starts": np.arange(3) + file}

  def made():
    scanned.clear()
    return [each["starts"].tolist() for each in index.made("x", listing.listed(str(tmp_path), (".tar",), "x"), scan)]

  assert (made(), sorted(scanned)) == ([[0, 1, 2], [1, 2, 3]], [0, 1])
  assert (made(), scanned) == ([[0, 1, 2], [1, 2, 3]], [])
  (tmp_path / "b.tar").write_text("another")
  assert (made(), scanned) == ([[0, 1, 2], [1, 2, 3]], [1])
  # As a full disk leaves it, and with another name of the array, or a way of packing that there is not.
  for damage in (
    lambda data: data[:50],
    lambda data: data.replace(b"starts", b"stirts"),
    lambda data: data[:-60] + b"x" * 60,
  ):
    for kept in (tmp_path / "cache").rglob("*.index"):
      kept.write_bytes(damage(kept.read_bytes()))
    assert (made(), sorted(scanned)) == ([[0, 1, 2], [1, 2, 3]], [0, 1])
  assert not [*(tmp_path / "cache").rglob("*.partial")]


def test_without_a_cache_the_data_are_read_all_the_same(tmp_path, monkeypatch, caplog):
  (tmp_path / "file").write_text("no folder")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  forms.tars(tmp_path / "data", [streams.file(i) for i in range(5)], [0] * 5)
  assert len(forms.opened("tars", tmp_path / "data", test="train")) == 5
  assert "cannot be kept" in caplog.text


def test_neighbours_are_one_read_and_what_lies_apart_is_several(tmp_path, monkeypatch):
  (tmp_path / "a.tar").write_bytes(bytes(range(256)) * 1000)
  files = listing.listed(str(tmp_path), (".tar",), "x")
  starts, sizes = [0, 100, 100_000, 256, 300], [50, 200, 10, 3, 7]
  extents = index.Extents(files, [{"starts": np.array(starts), "sizes": np.array(sizes)}])
  reads, read = [], listing.Files.read
  monkeypatch.setattr(listing.Files, "read", lambda self, *where: reads.append(where) or read(self, *where))
  whole = (tmp_path / "a.tar").read_bytes()
  assert extents.read(0, 5) == [whole[a : a + n] for a, n in zip(starts, sizes, strict=True)]
  assert reads == [(0, 0, 300), (0, 100_000, 100_010), (0, 256, 307)]
  monkeypatch.setattr(local_files, "LARGEST", 150)
  with pytest.raises(OSError, match="200 bytes; allowed: 150"):
    extents.read(1, 2)
