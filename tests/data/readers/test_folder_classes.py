"""Tests of the classes of image folders: their order, and names that are the same class or look alike."""

import pytest

from tests.data.readers.test_folder import folder, write
from tests.image_files import image, names, numbers
from vit_jax import schema


def test_numeric_folder_names_are_sorted_by_value(tmp_path):
  path = write(tmp_path, *(f"{i}/{j}.png" for i in range(12) for j in range(5)))
  source = folder(path)
  assert source.classes == tuple(map(str, range(12)))
  assert all(source.classes[source.label(i)] == name.split("/")[0] for i, name in enumerate(names(source)))
  before = folder(path, class_order="text")
  assert before.classes == tuple(sorted(source.classes))
  assert all(before.classes[before.label(i)] == name.split("/")[0] for i, name in enumerate(names(before)))
  assert sorted(names(before)) == sorted(names(source))  # the same images are held out


def test_splits_may_have_a_class_in_two_unicode_forms(tmp_path):
  nfc, nfd = "caf\u00e9", "cafe\u0301"
  path = write(tmp_path, f"train/{nfc}/1.png", "train/tea/1.png", f"test/{nfd}/1.png", "test/tea/1.png")
  train, test = folder(path), folder(path, "test")
  assert train.classes == test.classes == (nfc, "tea")
  assert dict(zip(names(test), numbers(test), strict=True)) == {
    f"test/{nfd}/1.png": (image(2), 0),
    "test/tea/1.png": (image(3), 1),
  }


@pytest.mark.parametrize("above", ["", "train/"])
def test_two_folders_of_one_class_are_refused(tmp_path, above):
  path = write(tmp_path, f"{above}caf\u00e9/1.png", f"{above}cafe\u0301/1.png", f"{above}tea/1.png")
  with pytest.raises(schema.ConfigError, match="have one name in two Unicode forms") as caught:
    folder(path, test="train" if above else "test")
  assert caught.value.place == "config.data.path"
  assert r"'cafe\u0301' and 'caf\xe9'" in caught.value.message


def test_classes_that_look_alike_are_noted(tmp_path):
  path = write(tmp_path, "cat/1.png", "cat /1.png", "Cat/1.png", "dog/1.png", "c\u200bat/1.png")
  assert (
    "1 group of classes has names that look alike but are different classes: 'Cat' and 'cat' and" in folder(path).note
  )
  assert ".png" in folder(path).note
