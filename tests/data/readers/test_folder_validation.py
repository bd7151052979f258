"""Tests of the validation images of a folder.

They are a seeded share of the training images of each class, or a separate folder.
"""

import collections
import hashlib

import pytest

from tests.data.readers.test_folder import folder, write
from tests.image_files import image, names
from vit_jax import schema


def photographs(root, counts, layout="classes"):
  """Writes a folder with `counts` files per class, in class folders or below train and test."""
  top = [""] if layout == "classes" else ["train/", "test/"]
  return write(
    root, *(f"{split}{name}/{i}.png" for split in top for name, count in counts.items() for i in range(count))
  )


@pytest.mark.parametrize("layout", ["classes", "splits"])
def test_share_of_the_training_images_of_each_class_is_held_out(tmp_path, layout):
  path = photographs(tmp_path, {"a": 50, "b": 20, "c": 3, "d": 2}, layout)
  whole, rest = (set(names(folder(path, validation=share))) for share in (0, 0.1))
  val = set(names(folder(path, "val", validation=0.1)))
  assert rest | val == whole and not rest & val
  assert set(names(folder(path, "test", validation=0.1))) == set(names(folder(path, "test")))
  held = collections.Counter(name.split("/")[-2] for name in val)
  before = collections.Counter(name.split("/")[-2] for name in whole)
  for label, count in before.items():
    assert held[label] == (max(1, round(count / 10)) if count >= 3 else 0)
  tested = f"; held out for testing as 'test': {75 - len(whole)} of the 75 images (holdout=0.2)"
  assert (tested in folder(path).note) == (layout == "classes")
  assert (
    f"; held out for validation as 'val': {len(val)} of the train images (validation=0.1)"
    in folder(path, validation=0.1).note
  )


def test_validation_images_depend_only_on_the_seed_and_their_names(tmp_path):
  path = photographs(tmp_path, {"a": 60, "b": 60}, "splits")
  val = sorted(names(folder(path, "val", validation=0.2)))
  assert val == sorted(names(folder(path, "val", validation=0.2)))
  assert val != sorted(names(folder(path, "val", validation=0.2, split_seed=1)))
  hashes = {
    f"train/{label}/{i}.png": hashlib.blake2b(f"0/{label}/{i}.png".encode()).digest()
    for label in "ab"
    for i in range(60)
  }
  smallest = [sorted((name for name in hashes if f"/{label}/" in name), key=hashes.get)[:12] for label in "ab"]
  assert val == sorted(smallest[0] + smallest[1])
  (tmp_path / "train/a/new.png").write_bytes(image(3))  # one more image moves at most two other images
  assert len(set(val) ^ set(names(folder(path, "val", validation=0.2)))) <= 2


@pytest.mark.parametrize("called", ["val", "valid", "validation", "dev"])
def test_folder_of_validation_images_is_used_unchanged(tmp_path, called):
  path = write(
    tmp_path, *(f"{split}/{label}/{i}.png" for split in ("train", "test", called) for label in "ab" for i in range(9))
  )
  assert len(folder(path, validation=0.3)) == 18
  assert {name.split("/")[0] for name in names(folder(path, "val", validation=0.3))} == {called}
  assert "held out" not in folder(path, validation=0.3).note


@pytest.mark.parametrize("layout", ["classes", "splits"])
def test_error_of_a_missing_validation_split_names_the_default(tmp_path, layout):
  path = photographs(tmp_path, {"a": 20, "b": 20}, layout)
  remove = "By default, a run holds out 'val' from 'train': remove config.data.val, or set the share with"
  for val in ("val", "val[:50%]", "vall"):
    with pytest.raises(schema.ConfigError) as error:
      folder(path, "val", val=val)
    assert str(error.value).startswith(f"config.data.val: no split {val.partition('[')[0]!r}. Allowed: ")
    assert str(error.value).endswith(f" {remove} config.data.validation=0.1")
  with pytest.raises(schema.ConfigError, match=r"hold out 'val' from 'train', set config\.data\.validation=0\.1"):
    folder(path, "val")
  with pytest.raises(schema.ConfigError) as error:  # no images are held out of a slice
    folder(path, "val", val="val", train="train[:50%]")
  assert "validation" not in str(error.value)


def test_impossible_holdout_is_an_error(tmp_path):
  path = photographs(tmp_path, {"a": 2, "b": 1}, "splits")
  with pytest.raises(schema.ConfigError, match=r"config\.data\.validation: no class of 'train' has 3 images"):
    folder(path, validation=0.1)
  with pytest.raises(schema.ConfigError, match="held out only from a whole split"):
    folder(path, validation=0.1, train="train[:2]")
  assert len(folder(path, validation=0.1, val="train[2:]", train="train[:2]")) == 2  # `val` takes precedence
