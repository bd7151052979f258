"""Notes on images of a folder that are both trained on and measured."""

import os

import pytest

from tests.image_files import image
from vit_jax import schema
from vit_jax.data import catalog
from vit_jax.data.readers import folder as reader


def write(root, files):
  """Writes {name: content}."""
  for name, content in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
  return root


def note(path, split="train", **args):
  """The notes on overlaps."""
  source = catalog.open_split(schema.Choice("folder", {"path": str(path)} | args), split)
  return [line for line in source.note.split("\n") if line.startswith("data overlap")]


@pytest.fixture
def photos(tmp_path):
  """Numbered files in two splits; 3.png of the class b is the same in both, and 4.png of two classes."""
  files = {f"{split}/{name}/{i}.png": bytes([i, len(split), ord(name)]) * 9
           for split in ("train", "test") for name in "ab" for i in range(6)}  # fmt: skip
  return write(tmp_path, files | {"test/b/3.png": files["train/b/3.png"], "test/b/4.png": files["train/a/4.png"]})


def test_g_images_of_equal_name_and_size_are_read_and_counted(photos):
  assert note(photos) == [
    f"data overlap: 1 of 12 compared images of test is also in the training data, such as '{photos}/train/b/3.png' and "
    f"'{photos}/test/b/3.png'. 12 images of test have name and size of a training image. Figures on such images do not "
    "show how well a model generalises"
  ]
  assert note(photos, "test") == []  # a run prints the notes of its training data
  (photos / "train/b/3.png").write_bytes(b"another size")
  assert note(photos) == []


def test_g_an_image_of_another_class_is_compared_if_no_other_has_its_name(photos):
  (photos / "train/b/4.png").unlink()
  assert note(photos)[0].startswith("data overlap: 2 of 12 compared images of test are also in the training data")


def test_g_at_most_32_pairs_are_read_and_nothing_without_a_common_name(tmp_path, monkeypatch):
  same = {f"{split}/a/{i}.png": image(i % 7) for split in ("train", "val", "test") for i in range(50)}
  own = {f"{split}/a/{split}{i}.png": image(0) for split in ("train", "val", "test") for i in range(50)}
  read, stamped, real = [], [], reader.places.Disk.read
  monkeypatch.setattr(reader.places.Disk, "read", lambda self, file: read.append(file) or real(self, file))
  stamps = reader.places.Disk.stamps
  monkeypatch.setattr(reader.places.Disk, "stamps", lambda self, some: stamped.extend(some) or stamps(self, some))
  lines = note(write(tmp_path / "same", same), val="val")
  assert [line.removeprefix("data overlap: ").partition(" also")[0] for line in lines] == [
    "32 of 32 compared images of val are",
    "32 of 32 compared images of test are",
  ]
  assert "50 images of test have" in lines[1] and len(read) == 128
  read.clear()
  stamped.clear()
  assert note(write(tmp_path / "own", own), val="val") == [] and read == stamped == []


def test_g_held_out_images_are_compared_too(tmp_path):
  files = {f"{name}/{i}.png": image(i) for name in "ab" for i in range(20)}  # each image in both classes
  assert "compared images of test are also" in note(write(tmp_path, files), holdout=0.5)[0]


def test_g_files_that_cannot_be_read_are_no_overlap(photos):
  for split in ("train", "test"):
    (photos / split / "b/3.png").unlink()
    (photos / split / "b/3.png").symlink_to("nowhere")
    os.mkfifo(photos / split / "a/9.png")
  assert note(photos) == []
