"""Tests of folders of images with masks: pairs, splits and class numbers."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from tests.image_files import image
from vit_jax import schema
from vit_jax.data import catalog, masks
from vit_jax.data.images import Images


def mask(number, size=(4, 6)):
  file = io.BytesIO()
  Image.fromarray(np.full(size, number, np.uint8)).save(file, "PNG")
  return file.getvalue()


def write(root, *names, images="images", labels="masks"):
  for i, name in enumerate(names):
    for folder, suffix, content in ((images, ".png", image(i)), (labels, ".png", mask(i))):
      path = root / folder / f"{name}{suffix}"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)
  return str(root)


def opened(path, split="train", **args):
  with schema.enter_key("config.data"):
    return catalog.open_split(schema.Choice("segmentation", {"path": str(path), "classes": 8} | args), split)


def read(source, i, size=6):
  return masks.read_mask(Images(source, "raise", 10_000, 100.0), i, size)


def test_split_folders_have_their_own_pairs(tmp_path):
  path = write(tmp_path, "train/b", "train/a", "test/c")
  train, test = opened(path), opened(path, "test")
  assert [train.identify(i) for i in range(len(train))] == ["images/train/a.png", "images/train/b.png"]
  assert [read(train, i)[0, 0] for i in range(2)] == [1, 0] and read(test, 0)[0, 0] == 2
  assert train.read(1) == (image(0), 0) and train.label(1) == 0 and train.classes == ("image",)
  assert train.masks.classes == tuple(map(str, range(8)))
  assert "images/train/a.png" in train.place(0) and "masks/train/a.png" in train.place(0)


def test_held_out_share_does_not_depend_on_the_order_of_files(tmp_path):
  path = write(tmp_path, *(f"{i:02}" for i in range(20)))
  train, test = opened(path, holdout=0.25), opened(path, "test", holdout=0.25)
  names = [source.identify(i) for source in (train, test) for i in range(len(source))]
  assert (len(train), len(test), len(set(names))) == (15, 5, 20)
  again = opened(path, "test", holdout=0.25, split_seed=1)
  assert {again.identify(i) for i in range(5)} != set(names[15:])


def test_two_images_of_one_mask_are_refused(tmp_path):
  path = write(tmp_path, "train/a", "test/c")
  (tmp_path / "images/train/a.jpg").write_bytes(image(1))
  with pytest.raises(schema.ConfigError, match=r"path: 'images/train/a.jpg' and 'a.png' differ only in their suffix"):
    opened(path)


def test_unpaired_images_and_masks_are_skipped_and_counted(tmp_path):
  path = write(tmp_path, "train/a", "train/b", "train/c", "test/d")
  (tmp_path / "masks/train/a.png").unlink()
  (tmp_path / "images/train/b.png").unlink()
  (tmp_path / "images/train/e.jpg").write_bytes(image(5))
  source = opened(path)
  assert [source.identify(i) for i in range(len(source))] == ["images/train/c.png"]
  assert "2 images with masks; left out: 2 images without a mask, 1 mask without an image" in source.note


def test_folders_and_class_numbers_of_voc_and_ade_are_supported(tmp_path):
  path = write(tmp_path, "train/a", "train/b", "train/c", "test/d", images="JPEGImages", labels="Segmentation/Class")
  (tmp_path / "names.txt").write_text("sky\nsea\n")
  args = {"images": "JPEGImages", "masks": "Segmentation/Class", "first": 1, "ignored": (0,)}
  source = opened(path, **args, classes=str(tmp_path / "names.txt"))
  assert source.masks.classes == ("sky", "sea")
  assert [read(source, i)[0, 0] for i in range(3)] == [masks.NONE, 0, 1]


def test_fingerprint_includes_masks(tmp_path):
  path = write(tmp_path, "train/a", "train/b", "test/c")
  before = opened(path).fingerprint()
  (tmp_path / "masks/train/b.png").write_bytes(mask(1, (40, 60)))
  os.utime(tmp_path / "masks/train/b.png", ns=(1, 1))
  after = opened(path).fingerprint()
  assert before.changes(after) == ["sizes of files", "modification times of files"]


@pytest.mark.parametrize(
  ("args", "message"),
  [
    ({"path": "/nowhere"}, r"config.data.path: no folder '/nowhere'"),
    ({"masks": "mask"}, r"config.data.masks: no folder 'mask' in .*'images', 'masks'"),
    ({"masks": "images/test"}, r"config.data.path: no mask in 'images/test' has the name of an image"),
    ({"classes": 200, "first": 60}, r"config.data.classes: 200 classes from 60 on, but the last number is 254"),
    ({"classes": 1, "first": 255}, r"config.data.classes: 1 class from 255 on, but the last number is 254"),
    ({"classes": "/nowhere.txt"}, r"config.data.classes: class names cannot be read"),
    ({"train": "trian"}, r"config.data.train: no split 'trian'.*'train'"),
    ({"ignored": (256,)}, r"config.data.ignored\[0\]: 256 is out of range"),
    (
      {"ignored": (9, 8), "first": 3},
      r"config.data.ignored: 8 is also class '5'\. A number cannot be both a class and ignored",
    ),
  ],
)
def test_error_names_its_config_key(tmp_path, args, message):
  write(tmp_path, "train/a", "test/c")
  with pytest.raises(schema.ConfigError, match=message):
    opened(**({"path": tmp_path} | args))
