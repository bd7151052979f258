"""Tests of the comparison of images between processes: splits, messages, and differences that are allowed."""

import json
import os
import shutil

import pytest

from tests.image_files import image
from vit_jax import schema
from vit_jax.data import catalog, shared_data


@pytest.fixture
def copies(tmp_path):
  """Returns two folders with equal images: two classes of 40 images for testing, and of 2 for training."""
  for number, name in enumerate(f"{split}/{label}/{i}.png" for split in ("train", "test") for label in "ab"
                                for i in range({"train": 2, "test": 40}[split])):  # fmt: skip
    file = tmp_path / "0" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image(number))
  shutil.copytree(tmp_path / "0", tmp_path / "1")
  return tmp_path / "0", tmp_path / "1"


def describe(folder, key="config.data"):
  """Returns the description that a process sends to the others."""
  recorder = shared_data.SplitRecorder(catalog.open_split)
  with schema.enter_key(key):
    choice = schema.bind(schema.Choice("folder", {"path": str(folder)}), catalog.DATA["folder"], catalog.DATA)
    for split in ("train", "test"):
      recorder(choice, split)
  return json.loads(json.dumps([shared_data.describe_split(each) for each in recorder.opened]))


def swap_classes(folder):
  for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
    (folder / "test" / old).rename(folder / "test" / new)


def swap_sizes(folder):
  """Changes a file so that its size differs, and keeps the contents of the compared images."""
  compared = {each["name"] for each in describe(folder)[1]["samples"]}
  name = next(name for i in range(40) if (name := f"test/a/{i}.png") not in compared)
  with open(folder / name, "ab") as file:
    file.write(b"\0")


CHANGES = {
  swap_classes: "Different: contents of 32 of 32 compared images, such as 'test/",
  swap_sizes: "Different: sizes of files",
  lambda folder: (folder / "test/b/7.png").rename(folder / "test/b/x.png"):
    "Different: names, labels or order of images",
  lambda folder: (folder / "test/a/3.png").unlink(): "process 1 reads 79 from '",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_difference_names_the_split_the_processes_and_the_folders(copies, change):
  change(copies[1])
  (line,) = shared_data.compare_splits([describe(copies[0], "config.evals.x.data"), describe(copies[1])])
  assert line.startswith("split 'test' of config.evals.x.data: process ")
  assert CHANGES[change] in line
  assert all(repr(str(folder)) in line for folder in copies)


def test_image_that_one_process_cannot_read_is_a_difference_of_its_own(copies):
  first, other = describe(copies[0]), describe(copies[1])
  other[0]["samples"][3].update(sha256=None, label=None)  # as `describe_samples` reports a failed read
  (line,) = shared_data.compare_splits([first, other])
  assert (
    line.split("Different: ")[1] == f"images that only one of them can read, such as {other[0]['samples'][3]['name']!r}"
  )


def test_each_process_is_compared_with_the_first(copies):
  swap_classes(copies[1])
  lines = shared_data.compare_splits([describe(copies[i]) for i in (0, 1, 0, 1)])
  assert [line.partition(" reads")[0].rpartition(": ")[2] for line in lines] == ["process 1", "process 3"]


def test_copies_with_other_times_are_equal(copies):
  for file in copies[1].rglob("*.png"):
    os.utime(file, (1000, 1000))
  assert shared_data.compare_splits([describe(folder) for folder in copies]) == []


def test_labels_without_names_are_compared(copies):
  first, other = (describe(copies[0]) for _ in range(2))
  other[1]["samples"][0]["label"] = 1 - other[1]["samples"][0]["label"]
  (line,) = shared_data.compare_splits([first, other])
  assert line.endswith("Different: labels")


def test_single_process_reads_no_images_for_the_comparison():
  shared_data.check_same_images([shared_data.OpenedSplit("config.data", "", "test", None)])
