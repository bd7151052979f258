"""Tests of changed sizes, times and contents of data files between a checkpoint and a restart."""

import dataclasses
import json
import os
import shutil

import pytest

from tests import photographs
from tests.photographs import described, source
from vit_jax.checkpoints import provenance
from vit_jax.data import samples


@pytest.fixture
def photos(tmp_path):
  """Writes two classes of 20 images."""
  return photographs.write(tmp_path / "photos")


def copy_photos(path):
  """Copies the photos to another folder and keeps their modification times."""
  return shutil.copytree(path, path.parent / "copy")


def exchange_two_images(path):
  (path / "a/0.png").rename(path / "x")
  (path / "b/0.png").rename(path / "a/0.png")
  (path / "x").rename(path / "b/0.png")


def add_to_a_file(path):
  name = source(path).identify(0)
  stamp = (path / name).stat().st_mtime_ns
  (path / name).write_bytes((path / name).read_bytes() + b"x")
  os.utime(path / name, ns=(stamp, stamp))


def replace_pixels(path):
  """Changes pixels of all images, but keeps their sizes and modification times."""
  for file in path.rglob("*.png"):
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[-20] ^= 0xFF
    file.write_bytes(content)
    os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))


def touch(path):
  os.utime(path / "a/3.png", ns=(0, 0))


def list_unsampled(path):
  """Returns two images that are not in the recorded sample of contents."""
  names = [source(path).identify(i) for i in range(len(source(path)))]
  return [path / name for i, name in enumerate(names) if i not in samples.compute_spaced_numbers(len(names))][:2]


def replace_pixels_of_two(path):
  for file in list_unsampled(path):
    before, content = file.stat(), bytearray(file.read_bytes())
    content[-20] ^= 0xFF
    file.write_bytes(content)
    os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))


def replace_two(path):
  """Replaces two images by other files with equal sizes and modification times, like `rsync -a`."""
  for file in list_unsampled(path):
    other = file.with_suffix(".new")
    other.write_bytes(bytes(file.stat().st_size))
    os.utime(other, ns=(file.stat().st_mtime_ns, file.stat().st_mtime_ns))
    other.rename(file)


def protect_one(path):
  list_unsampled(path)[0].chmod(0o600)


def protect_all(path):
  for file in path.rglob("*.png"):
    file.chmod(0o600)


FILES = {
  add_to_a_file: ["sizes of files differ", "contents of files differ, such as 'a/"],
  replace_pixels: ["contents of files differ, such as '"],
  touch: ["modification times of files differ"],
  replace_pixels_of_two: ["some files were modified or replaced although their sizes and modification times are"],
  replace_two: ["some files were modified or replaced", "The last one is '"],
  protect_one: ["or their permissions, owner or links changed"],
}


@pytest.mark.parametrize("change", FILES)
def test_changed_files_are_reported_and_can_be_accepted(photos, change):
  before = described(source(photos))
  change(photos)
  now = described(source(photos))
  objection = provenance.find_data_conflict(before["data"], now["data"])
  assert all(line in objection for line in FILES[change]), objection
  assert "If the images are the same, accept the changed files with --accept-data" in objection
  assert provenance.find_data_conflict(before["data"], now["data"], accept=True) is None
  assert [note for note in provenance.list_notes(before, now) if note.startswith("changed data accepted")]


def test_file_with_the_last_change_is_named(photos):
  before = described(source(photos))["data"]
  replace_pixels_of_two(photos)
  objection = provenance.find_data_conflict(before, described(source(photos))["data"])
  assert objection.endswith(f"The last one is {str(list_unsampled(photos)[1].relative_to(photos))!r}")


def test_changed_permissions_of_all_files_are_accepted(photos):
  before = described(source(photos))
  protect_all(photos)
  now = described(source(photos))
  assert provenance.find_data_conflict(before["data"], now["data"]) is None and provenance.list_notes(before, now) == []


def test_checkpoint_without_status_change_times_is_accepted(photos):
  older = described(source(photos))["data"]
  del older["disks"]
  replace_pixels_of_two(photos)
  assert provenance.find_data_conflict(older, described(source(photos))["data"]) is None


def test_same_data_in_another_folder_are_accepted(photos):
  before = described(source(photos))
  now = described(source(copy_photos(photos)))
  assert provenance.find_data_conflict(before["data"], now["data"]) is None
  assert provenance.list_notes(before, now) == []


def test_exchanged_images_are_reported_by_sizes_or_contents(photos):
  before = described(source(photos))["data"]
  exchange_two_images(photos)
  assert "differ" in provenance.find_data_conflict(before, described(source(photos))["data"])


def test_emptied_image_is_reported_as_other_contents(photos):
  made = source(photos)
  before = described(made)["data"]
  (photos / made.identify(0)).write_bytes(b"")
  empty = described(source(photos))["data"]
  assert json.loads(json.dumps(empty)) == empty
  assert "contents of files differ" in provenance.find_data_conflict(before, empty)


def test_unreadable_image_is_not_reported_as_a_change(photos):
  before = described(source(photos))["data"]
  made = source(photos)

  def read(i):
    raise OSError("a bad disk")

  assert provenance.find_data_conflict(before, described(dataclasses.replace(made, read=read))["data"]) is None
