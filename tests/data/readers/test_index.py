"""Tests of positions of records: the cache of scans, and byte ranges that are read together."""

import base64
import json
import os
import shutil

import numpy as np
import pytest

from tests import forms, streams
from tests.image_files import labels
from vit_jax.data import local_files
from vit_jax.data.readers import index, listing


@pytest.fixture(autouse=True)
def kept_at_once(monkeypatch, tmp_path):
  """Disables the waiting time, so that scans of newly written files are cached too.

  The cache alone must distinguish files.
  """
  monkeypatch.setattr(index, "SETTLED", 0.0)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_file_is_scanned_again_only_after_a_change(tmp_path):
  for name in "ab":
    (tmp_path / f"{name}.tar").write_text(name)
  scanned = []

  def scan(file):
    scanned.append(file)
    return {"starts": np.arange(3) + file}

  def made():
    scanned.clear()
    return [
      each["starts"].tolist()
      for each in index.load_or_scan("x", listing.list_files(str(tmp_path), (".tar",), "x"), scan)
    ]

  assert (made(), sorted(scanned)) == ([[0, 1, 2], [1, 2, 3]], [0, 1])
  assert (made(), scanned) == ([[0, 1, 2], [1, 2, 3]], [])
  (tmp_path / "b.tar").write_text("another")
  assert (made(), scanned) == ([[0, 1, 2], [1, 2, 3]], [1])
  # Damage: a file truncated as by a full disk, another name of the array, an invalid compression.
  for damage in (
    lambda data: data[:50],
    lambda data: data.replace(b"starts", b"stirts"),
    lambda data: data[:-60] + b"x" * 60,
  ):
    for kept in (tmp_path / "cache").rglob("*.index"):
      kept.write_bytes(damage(kept.read_bytes()))
    assert (made(), sorted(scanned)) == ([[0, 1, 2], [1, 2, 3]], [0, 1])
  assert not [*(tmp_path / "cache").rglob("*.partial")]


def test_data_are_readable_without_a_cache(tmp_path, monkeypatch, caplog):
  (tmp_path / "file").write_text("no folder")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  forms.tars(tmp_path / "data", [streams.file(i) for i in range(5)], [0] * 5)
  assert len(forms.opened("tars", tmp_path / "data", test="train")) == 5
  assert "cannot be stored" in caplog.text


def labelled(form, root, values):
  """Writes images with these labels in one storage format, and returns the name of its reader."""
  root.mkdir(parents=True, exist_ok=True)
  images = [streams.file(i) for i in range(len(values))]
  write, reader = forms.FORMS[form]
  (root / "all.jsonl").unlink(missing_ok=True)
  write(root, images, values)
  return reader


def stamps(root):
  """Returns (size, modification time) of each file that is not an image."""
  found = [file for file in sorted(root.rglob("*")) if file.is_file() and file.suffix != ".png"]
  return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in found}


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("how", ["written over", "replaced", "copied over"])
def test_new_labels_with_equal_size_and_time_are_read_again(tmp_path, form, how):
  before, after = [0, 1, 2, 3, 0, 1, 2, 3], [1, 0, 3, 2, 1, 0, 3, 2]
  root, other = tmp_path / "data", tmp_path / "other"
  reader = labelled(form, root, before)
  assert labels(forms.opened(reader, root, test="train")) == before
  old = stamps(root)
  labelled(form, other, after)
  for file, (_, time) in old.items():
    new = other / file.relative_to(root)
    if how == "written over":
      file.write_bytes(new.read_bytes())
    elif how == "copied over":
      shutil.copyfile(new, file)
    else:
      os.replace(new, file)
    os.utime(file, ns=(time, time))
  assert stamps(root) == old
  assert labels(forms.opened(reader, root, test="train")) == after


@pytest.mark.parametrize("form", forms.FORMS)
def test_equal_relative_paths_in_two_folders_are_two_datasets(tmp_path, form, monkeypatch):
  values = {"a": [0, 1, 2, 3, 0, 1, 2, 3], "b": [3, 2, 1, 0, 3, 2, 1, 0]}
  for folder in "ab":
    reader = labelled(form, tmp_path / folder / "data", values[folder])
    for file in stamps(tmp_path / folder):
      os.utime(file, ns=(10**18, 10**18))
  for folder in "aba":
    monkeypatch.chdir(tmp_path / folder)
    assert labels(forms.opened(reader, "data", test="train")) == values[folder]


def test_cached_scan_follows_the_current_target_of_a_link(tmp_path):
  for i, name in enumerate(("one", "two")):
    line = {"bytes": base64.b64encode(b"x").decode(), "label": [0, 1][i]}
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    os.utime(tmp_path / f"{name}.jsonl", ns=(10**18, 10**18))
    link = tmp_path / "now.jsonl"
    link.unlink(missing_ok=True)
    link.symlink_to(f"{name}.jsonl")
    assert labels(forms.opened("manifest", link, test="train")) == [i]


def test_scan_of_a_file_that_changes_meanwhile_is_not_cached(tmp_path):
  (tmp_path / "a.tar").write_text("1")

  def scan(file):
    value = int((tmp_path / "a.tar").read_text())
    (tmp_path / "a.tar").write_text("2")
    return {"starts": np.array([value])}

  def made():
    (arrays,) = index.load_or_scan("x", listing.list_files(str(tmp_path), (".tar",), "x"), scan)
    return arrays["starts"].tolist()

  assert [made(), made()] == [[1], [2]]
  (tmp_path / "a.tar").write_text("1")
  assert made() == [1]


def test_scan_is_cached_only_if_a_later_change_can_be_detected(tmp_path, monkeypatch):
  monkeypatch.setattr(index, "SETTLED", 2.0)
  (tmp_path / "a.tar").write_text("1")
  index.load_or_scan("x", listing.list_files(str(tmp_path), (".tar",), "x"), lambda file: {"starts": np.zeros(1)})
  assert not [*(tmp_path / "cache").rglob("*.index")]


@pytest.mark.heavy
def test_replaced_object_of_a_bucket_is_read_again(bucket, monkeypatch):
  about, listed = {"bytes": base64.b64encode(b"x").decode()}, listing.locations.BucketFolder.read_listing
  for label in (0, 1):
    (bucket / "a.jsonl").write_text(json.dumps(about | {"label": label}) + "\n")
    entries = listed(bucket)
    # Some clients report the time in whole seconds, and a clock may be set back. Then size and time stay equal.
    same = entries._replace(objects={name: (size, "2020") for name, (size, _) in entries.objects.items()})
    monkeypatch.setattr(listing.locations.BucketFolder, "read_listing", lambda root, same=same: same)
    assert labels(forms.opened("manifest", bucket, test="train")) == [label]


def test_adjacent_records_are_one_read_and_distant_records_several(tmp_path, monkeypatch):
  (tmp_path / "a.tar").write_bytes(bytes(range(256)) * 1000)
  files = listing.list_files(str(tmp_path), (".tar",), "x")
  starts, sizes = [0, 100, 100_000, 256, 300], [50, 200, 10, 3, 7]
  extents = index.Extents(files, [{"starts": np.array(starts), "sizes": np.array(sizes)}])
  reads, read = [], listing.Files.read
  monkeypatch.setattr(listing.Files, "read", lambda self, *where: reads.append(where) or read(self, *where))
  whole = (tmp_path / "a.tar").read_bytes()
  assert extents.read(0, 5) == [whole[a : a + n] for a, n in zip(starts, sizes, strict=True)]
  assert reads == [(0, 0, 300), (0, 100_000, 100_010), (0, 256, 307)]
  monkeypatch.setattr(local_files, "LARGEST", 150)
  with pytest.raises(OSError, match=r"200 bytes. Allowed: 150"):
    extents.read(1, 2)
