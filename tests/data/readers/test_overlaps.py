"""Tests of the notes on images of folders and tar shards that are in both training and evaluation data."""

import os

import pytest

from tests import forms
from tests.image_files import image
from vit_jax import schema
from vit_jax.data import catalog
from vit_jax.data.readers import overlaps as reader


def write(root, files):
  """Writes {name: content}."""
  for name, content in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
  return root


def note(path, split="train", form="folder", **args):
  """Returns the notes on overlaps."""
  source = catalog.open_split(schema.Choice(form, {"path": str(path)} | args), split)
  return [line for line in source.note.split("\n") if line.startswith("data overlap")]


@pytest.fixture
def photos(tmp_path):
  """Returns numbered files in two splits.

  3.png of class b is the same in both splits. test/b/4.png equals train/a/4.png.
  """
  files = {f"{split}/{name}/{i}.png": bytes([i, len(split), ord(name)]) * 9
           for split in ("train", "test") for name in "ab" for i in range(6)}  # fmt: skip
  return write(tmp_path, files | {"test/b/3.png": files["train/b/3.png"], "test/b/4.png": files["train/a/4.png"]})


def test_images_of_equal_name_and_size_are_read_and_counted(photos):
  assert note(photos) == [
    f"data overlap: 1 of 12 compared images of test is also in the training data, for example "
    f"'{photos}/train/b/3.png' and "
    f"'{photos}/test/b/3.png'. 12 images of test have the name and the size of a training image. Results on these "
    "images do not "
    "show how well a model generalises"
  ]
  assert note(photos, "test") == []  # a run prints the notes of its training data
  (photos / "train/b/3.png").write_bytes(b"another size")
  assert note(photos) == []


def test_image_of_another_class_is_compared_if_only_it_has_the_name(photos):
  (photos / "train/b/4.png").unlink()
  assert note(photos)[0].startswith("data overlap: 2 of 12 compared images of test are also in the training data")


def test_at_most_32_pairs_are_read_and_none_without_common_names(tmp_path, monkeypatch):
  same = {f"{split}/a/{i}.png": image(i % 7) for split in ("train", "val", "test") for i in range(50)}
  own = {f"{split}/a/{split}{i}.png": image(0) for split in ("train", "val", "test") for i in range(50)}
  read, stamped, real = [], [], reader.locations.DiskFolder.read
  monkeypatch.setattr(reader.locations.DiskFolder, "read", lambda self, file: read.append(file) or real(self, file))
  stamps = reader.locations.DiskFolder.read_stamps
  monkeypatch.setattr(
    reader.locations.DiskFolder, "read_stamps", lambda self, some: stamped.extend(some) or stamps(self, some)
  )
  lines = note(write(tmp_path / "same", same), val="val")
  assert [line.removeprefix("data overlap: ").partition(" also")[0] for line in lines] == [
    "32 of 32 compared images of val are",
    "32 of 32 compared images of test are",
  ]
  assert "50 images of test have" in lines[1] and len(read) == 128
  read.clear()
  stamped.clear()
  assert note(write(tmp_path / "own", own), val="val") == [] and read == stamped == []


def test_held_out_images_are_compared(tmp_path):
  files = {f"{name}/{i}.png": image(i) for name in "ab" for i in range(20)}  # each image is in both classes
  assert "compared images of test are also" in note(write(tmp_path, files), holdout=0.5)[0]


def test_unreadable_files_are_not_an_overlap(photos):
  for split in ("train", "test"):
    (photos / split / "b/3.png").unlink()
    (photos / split / "b/3.png").symlink_to("nowhere")
    os.mkfifo(photos / split / "a/9.png")
  assert note(photos) == []


def stored(root, form, splits):
  """Writes {split: {name: content}} in a storage format, with arbitrary labels or masks."""
  for split, images in splits.items():
    if form == "segmentation":
      write(root, {f"images/{split}/{name}": content for name, content in images.items()})
      write(root, {f"masks/{split}/{name}": b"mask" for name in images})
    else:
      half = len(images) // 2
      for shard, some in enumerate((list(images.items())[:half], list(images.items())[half:])):
        samples = [((name, content), (f"{name.partition('.')[0]}.cls", b"0")) for name, content in some]
        forms.tar(root / f"{split}-{shard}.tar", [member for sample in samples for member in sample])
  return root


def by_loops(splits, role):
  """Returns (number of equal images, number of images of equal name and size) of a role.

  Each image is compared with the first training image of its name and size.
  """
  same = alike = 0
  for name, content in splits[role].items():
    others = [
      x for y, x in splits["train"].items() if (y.split("/")[-1], len(x)) == (name.split("/")[-1], len(content))
    ]
    same, alike = same + (others[:1] == [content]), alike + bool(others)
  return same, alike


@pytest.mark.parametrize("form", ["segmentation", "tars"])
def test_images_of_tars_and_segmentation_are_compared(tmp_path, form):
  splits = {
    "train": {f"{i}.png": image(i) for i in range(8)},
    "val": {f"{i}.png": bytes(len(image(i))) for i in range(8)},
    "test": {f"{i}.png": image(i) for i in range(2, 6)} | {f"{i}.png": image(i) + b"x" for i in (0, 1, 6, 7)},
  }
  given = {"classes": 2, "val": "val"}
  root = stored(tmp_path, form, splits)
  assert by_loops(splits, "val") == (0, 8) and by_loops(splits, "test") == (4, 4)
  (line,) = note(root, form=form, **given)
  assert line.startswith("data overlap: 4 of 4 compared images of test are also in the training data, for example ")
  assert "4 images of test have the name and the size of a training image" in line
  example = (
    f"'{root}/images/train/2.png' and '{root}/images/test/2.png'"
    if form == "segmentation"
    else f"{root}/train-0.tar, member '2.png' and {root}/test-0.tar, member '2.png'"
  )
  assert example in line
  assert note(root, "test", form, **given) == [] and note(root, form=form, classes=2, test="train") == []


def test_damaged_test_shard_is_an_error_only_when_test_is_opened(tmp_path):
  root = stored(tmp_path, "tars", {split: {f"{i}.png": image(i) for i in range(4)} for split in ("train", "test")})
  (root / "test-1.tar").write_bytes(b"no tar")
  assert note(root, form="tars", classes=2) == []
  with pytest.raises(schema.ConfigError, match=r"test-1\.tar"):
    note(root, "test", "tars", classes=2)
