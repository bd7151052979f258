"""Tests of heads with classes in another order than the classes of the data."""

import re

import numpy as np
import pytest

from tests import small_weights
from vit_jax import checkpoints, importers
from vit_jax.importers import class_order
from vit_jax.schema import ConfigError

NAMES = small_weights.CLASSES
CLASSES = tuple(sorted(NAMES))
HEADS = ("head/kernel", "head/bias")


def map_by_class(arrays, names):
  """Returns the head's parameters of each class by class name."""
  return {name: [arrays[path][..., i].tolist() for path in HEADS] for i, name in enumerate(names)}


def write_labelled(folder, names=NAMES):
  """Writes a file in timm's layout with class names."""
  folder.mkdir(exist_ok=True)
  return str(small_weights.file(folder, label_names=list(names)))


def test_head_outputs_follow_the_class_order_of_the_data(tmp_path):
  want, original = small_weights.described(), small_weights.arrays(small_weights.described())
  path = write_labelled(tmp_path)
  for head in ("keep", "auto"):
    arrays, notes = importers.load_fitted(path, want, head, classes=CLASSES)
    assert map_by_class(arrays, CLASSES) == map_by_class(original, NAMES)
    assert all((arrays[key] == original[key]).all() for key in original if key not in HEADS)
    (note,) = (note for note in notes if note.startswith("head: outputs moved"))
    assert "'=cat' is number 0 and 0" not in note and "is number" in note
  for classes in (NAMES, (), ("some", "other", "names", "of", "seven", "classes", "x")):
    arrays, notes = importers.load_fitted(path, want, "keep", classes=classes)
    assert map_by_class(arrays, NAMES) == map_by_class(original, NAMES) and not any("moved" in note for note in notes)
  arrays, notes = importers.load_fitted(path, want, "new", classes=CLASSES)
  assert not arrays["head/kernel"].any() and not any("moved" in note for note in notes)


def test_teacher_outputs_follow_the_class_order_of_the_student(tmp_path):
  weights = importers.open_weights(write_labelled(tmp_path), 32, "float32", classes=CLASSES)
  original = small_weights.arrays(small_weights.described())
  assert map_by_class(weights.load(), CLASSES) == map_by_class(original, NAMES)
  assert any(note.startswith("head: outputs moved") for note in weights.notes)
  odd = (*NAMES[1:], "new")
  with pytest.raises(ConfigError, match=re.escape(str(tmp_path)) + r".*'dog' is number 1 and 0.*; other names differ"):
    importers.open_weights(write_labelled(tmp_path), 32, "float32", classes=odd)


def test_partly_equal_classes_are_an_error_or_a_note(tmp_path):
  want, path, odd = small_weights.described(), write_labelled(tmp_path), (*NAMES[1:], "new")
  with pytest.raises(ConfigError, match=r"'dog' is number 1 and 0.*; other names differ\. .*init\.head=new"):
    importers.load_fitted(path, want, "keep", classes=odd)
  arrays, notes = importers.load_fitted(path, want, "auto", classes=odd)
  assert map_by_class(arrays, NAMES) == map_by_class(small_weights.arrays(want), NAMES)
  assert any(note.startswith("head: classes of the weights are at other positions") for note in notes)


@pytest.mark.parametrize(
  ("names", "classes", "order"),
  [
    (["b", "a"], ["a", "b"], [1, 0]),
    (["caf\u00e9", "a"], ["a", "cafe\u0301"], [1, 0]),  # NFC and NFD
    (["0", "1", "10", "2"], ["0", "1", "2", "10"], [0, 1, 3, 2]),
    (["0", "1", "2"], ["1", "2", "3"], None),  # class numbers, for weights without class names
    (["a", "b"], ["c", "d"], None),
    (["a", "b"], ["a", "b", "c"], None),
    (["a", "a", "b"], ["a", "a", "c"], None),
    (["a", "x"], ["a", "y"], None),
  ],
)
def test_class_order_depends_only_on_the_names(names, classes, order):
  described = small_weights.described(len(names))
  arrays = {"head/bias": np.arange(len(names)), "norm/bias": np.arange(len(names))}
  moved, notes = class_order.arrange_outputs(arrays, described, names, classes)
  assert moved["head/bias"].tolist() == (order or list(range(len(names)))) and bool(notes) == bool(order)
  assert moved["norm/bias"].tolist() == list(range(len(names)))


def test_class_names_that_occur_twice_are_an_error():
  with pytest.raises(ConfigError, match="'b' is number 2 and 1"):
    class_order.arrange_outputs({}, small_weights.described(3), ["a", "a", "b"], ["a", "b", "a"])


@pytest.mark.parametrize(
  ("about", "names"),
  [
    ({}, ()),
    ({"identity": {"data": {"classes": ["a", "b"]}}, "use": {"classes": ["c"]}}, ("a", "b")),
    ({"use": {"classes": ["a"]}}, ("a",)),
    ({"identity": 3}, ()),
    ({"identity": {"data": {"classes": "ab"}}}, ()),
    ({"identity": {"data": {"classes": [1]}}}, ()),
  ],
)
def test_class_names_of_a_checkpoint_come_from_its_data(about, names):
  assert class_order.read_class_names(about) == names


@pytest.mark.heavy
def test_head_of_a_workdir_is_reordered_like_that_of_a_file(tmp_path):
  want = small_weights.described()
  about = {"model": want.to_json(), "use": {"classes": list(NAMES)}}
  checkpoints.write_weights(tmp_path / "w", small_weights.arrays(want), about)
  arrays, notes = importers.load_fitted(str(tmp_path / "w"), want, "keep", classes=CLASSES)
  assert map_by_class(arrays, CLASSES) == map_by_class(small_weights.arrays(want), NAMES)
  assert any("outputs moved" in note for note in notes)
