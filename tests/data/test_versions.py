"""Tests of versions of sources.

A version changes with the content of a file, even if its size and modification time are equal.
"""

import os
import pathlib
import time

import pytest

from tests import forms
from tests.image_files import encode, picture
from vit_jax.data import catalog, local_files, sources, versions
from vit_jax.data.readers import locations
from vit_jax.schema import Choice
from vit_jax.storage import buckets, paths

IMAGES = [encode(picture(8, 8, seed=i), "BMP") for i in range(6)]  # all files have the same size


def folder(root):
  for i, image in enumerate(IMAGES):
    file = root / "train" / "ab"[i % 2] / f"{i}.bmp"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image)
  return {"name": "folder", "path": str(root), "test": "train"}, file


def segmentation(root):
  for kind in ("images/train", "masks/train"):
    (root / kind).mkdir(parents=True)
    for i, image in enumerate(IMAGES):
      (root / kind / f"{i}.bmp").write_bytes(image)
  return {"name": "segmentation", "path": str(root), "classes": "3", "test": "train"}, root / "masks/train/5.bmp"


def stored(form):
  def written(root):
    write, name = forms.FORMS[form]
    write(root, IMAGES, ["a", "b"] * 3)
    files = {"paths": "*.png", "inline": "*.jsonl", "tars": "*.tar", "parquet": "data/*"}
    return {"name": name, "path": str(root), "test": "train"}, sorted(root.glob(files[form]))[0]

  return written


def manifest(root):
  """Returns a choice, and its manifest instead of one of its images."""
  choice, _ = stored("paths")(root)
  return choice, root / "all.jsonl"


def mixture(root):
  (one, file), (other, _) = folder(root / "a"), stored("tars")(root / "b")
  return {"name": "mixture", "parts": [one, other], "test": "train"}, file


SOURCES = {each.__name__: each for each in (folder, segmentation, manifest, mixture)}
SOURCES |= {form: stored(form) for form in forms.FORMS}


def opened(choice):
  return catalog.open_split(Choice(choice["name"], {k: v for k, v in choice.items() if k != "name"}), "train")


def changed(file: pathlib.Path):
  """Flips one bit of a file and restores its modification time."""
  status, data = file.stat(), bytearray(file.read_bytes())
  at = data.find(b'"a"') + 1 if file.suffix == ".jsonl" else len(data) // 2
  data[at] ^= 1
  file.write_bytes(data)
  os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
  assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("kind", SOURCES)
def test_other_content_of_equal_size_and_time_is_another_version(kind, tmp_path):
  choice, file = SOURCES[kind](tmp_path)
  source = opened(choice)
  before, known = versions.digest_versions(source), source.fingerprint()
  assert versions.digest_versions(opened(choice)) == before
  changed(file)
  assert source.fingerprint() == known  # so that a run can continue with copies of its data
  assert (
    versions.digest_versions(source) != before
    and versions.digest_versions(sources.select_subset(source, [0, 1])) != before
  )


def test_renamed_folder_keeps_its_version_and_a_copy_does_not(tmp_path):
  choice, _ = folder(tmp_path / "a")
  before = versions.digest_versions(opened(choice))
  (tmp_path / "a").rename(tmp_path / "b")
  assert versions.digest_versions(opened(choice | {"path": str(tmp_path / "b")})) == before
  (tmp_path / "b/train/a/0.bmp").rename(tmp_path / "0.bmp")
  (tmp_path / "b/train/a/0.bmp").write_bytes((tmp_path / "0.bmp").read_bytes())
  assert versions.digest_versions(opened(choice | {"path": str(tmp_path / "b")})) != before


IN_BUCKETS = {"folder": folder, "segmentation": segmentation} | {
  form: stored(form) for form in ("paths", "inline", "tars", "parquet")
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [*IN_BUCKETS, "a manifest of a disk"])
def test_object_that_is_written_again_is_another_version(kind, tmp_path, bucket):
  """Covers objects of equal names. A manifest is in the bucket with its images, or on the disk."""
  choice, file = IN_BUCKETS["paths" if kind == "a manifest of a disk" else kind](tmp_path / "a")
  for each in sorted((tmp_path / "a").rglob("*")):
    if each.is_file():
      (bucket / str(each.relative_to(tmp_path / "a"))).write_bytes(each.read_bytes())
  choice = choice | {"path": str(bucket)}
  if kind == "a manifest of a disk":
    lines = (tmp_path / "a/all.jsonl").read_text().replace('"train_', f'"{bucket}/train_')
    (tmp_path / "own.jsonl").write_text(lines)
    choice["path"] = str(tmp_path / "own.jsonl")
  before = versions.digest_versions(opened(choice))
  assert versions.digest_versions(opened(choice)) == before
  there = bucket / str(file.relative_to(tmp_path / "a"))
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  there.write_bytes(bytes(content) if file.suffix in (".bmp", ".png") else file.read_bytes())
  source = opened(choice)
  assert (
    versions.digest_versions(source) != before
    and versions.digest_versions(sources.select_subset(source, [0, 1])) != before
  )


@pytest.mark.heavy
def test_versions_of_listed_and_of_single_objects_are_equal(bucket, bucket_server):
  names = [f"{bucket}/{'ab'[i > 40]}/{i}.png" for i in range(45)]  # 41 objects of one folder and 4 of another
  for name in names:
    paths.resolve_path(name).write_bytes(name.encode())
  asked = bucket_server.counts["GET"]
  missing = [f"{bucket}/a/x.png", f"{bucket}/c/x.png"]
  found = locations.read_versions([*names, *missing, names[0]])
  assert bucket_server.counts["GET"] <= asked + 20
  assert found[:-3] == [buckets.get_version(locations.file_system().info(name)) for name in names]
  assert len(set(found[:-3])) == 45 and found[-3:] == [(), (), found[0]] and locations.read_versions([]) == []


@pytest.fixture
def disk(tmp_path):
  """Returns the names of 100 files."""
  names = [str(tmp_path / f"{i:03}") for i in range(100)]
  for name in names:
    pathlib.Path(name).write_text("x")
  time.sleep(0.05)  # the kernel records file times in steps of up to 10 ms
  return names


@pytest.mark.parametrize("numbers", [[0], [1], [99], [50, 1], range(1, 100)], ids=str)
def test_some_changed_files_of_a_disk_are_detected_and_the_last_is_named(disk, numbers):
  before = versions.record_changes(disk)
  assert [(each["files"], len(each["some"])) for each in before] == [(100, versions.SOME)]
  assert versions.find_replaced(before, versions.record_changes(disk)) == []
  for i in numbers:
    pathlib.Path(disk[i]).chmod(0o600)
  last = max(numbers, key=lambda i: (os.stat(disk[i]).st_ctime_ns, i))
  assert versions.find_replaced(before, versions.record_changes(disk)) == [disk[last]]


def test_disk_with_only_changed_files_is_a_copy(disk):
  before = versions.record_changes(disk)
  for name in disk:
    pathlib.Path(name).chmod(0o600)
  assert versions.find_replaced(before, versions.record_changes(disk)) == []


def test_each_disk_is_compared_separately(disk, monkeypatch):
  """Puts half of the files on a second disk, which gets another number and new copies, or one new copy."""
  numbers = {name: 7 + (i % 2) for i, name in enumerate(disk)}
  times = dict.fromkeys(disk, 1)
  monkeypatch.setattr(local_files, "read_change_times", lambda files: [(numbers[name], times[name]) for name in files])
  before = versions.record_changes(disk)
  assert [each["files"] for each in before] == [50, 50]
  numbers |= dict.fromkeys(disk[1::2], 9)
  times |= {name: 2 + i for i, name in enumerate(disk[1::2])}
  assert versions.find_replaced(before, versions.record_changes(disk)) == []
  times |= dict.fromkeys(disk[1::2], 1) | {disk[5]: 2}
  assert versions.find_replaced(before, versions.record_changes(disk)) == [disk[5]]
  numbers |= dict.fromkeys(disk, 7)  # all files are on one disk
  assert versions.find_replaced(before, versions.record_changes(disk)) == []


def test_missing_files_and_no_files_give_no_disk(tmp_path):
  assert versions.record_changes([]) == versions.record_changes([str(tmp_path / "x")]) == []
