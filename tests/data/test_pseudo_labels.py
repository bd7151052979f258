"""Labels of a teacher: what is kept of them, in which files, and what a student sees, beside NumPy's loops."""

import dataclasses
import re

import numpy as np
import pytest

from tests import forms
from tests.streams import file
from vit_jax.data import pseudo_labels
from vit_jax.data.pseudo_labels import Plan
from vit_jax.data.sources import Fingerprint
from vit_jax.schema import ConfigError

NAMES = ("ant", "bee", "cat")


def by_loops(classes, probabilities, minimum, per_class):
  """As `pseudo_labels.chosen`, class by class and image by image."""
  records = []
  for number in sorted(set(classes.tolist())):
    sure = [i for i in range(len(classes)) if classes[i] == number and probabilities[i] >= max(minimum, 1e-7)]
    sure.sort(key=lambda i: (-float(probabilities[i]), i))
    if sure and per_class:
      sure = [sure[i % min(len(sure), per_class)] for i in range(per_class)]
    records += sure
  return sorted(records)


@pytest.mark.parametrize("minimum", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("per_class", [None, 1, 7, 60])
def test_the_surest_of_each_class_are_chosen_and_those_of_a_rare_class_come_again(minimum, per_class):
  draw = np.random.default_rng(0)
  classes = draw.choice(5, 200, p=[0.5, 0.3, 0.15, 0.05, 0.0]).astype(np.int32)
  probabilities = draw.integers(0, 12, 200).astype(np.float16) / np.float16(12)  # many are equal
  records = pseudo_labels.chosen(classes, probabilities, minimum, per_class)
  assert records.tolist() == by_loops(classes, probabilities, minimum, per_class)
  if per_class:
    assert set(np.bincount(classes[records]).tolist()) <= {0, per_class}


@pytest.fixture
def images(tmp_path):
  """Ten images of two classes."""
  forms.manifest(tmp_path / "m", [file(i) for i in range(10)], ["cat", "dog"] * 5)
  return forms.opened("manifest", str(tmp_path / "m/all.jsonl"), test="train")


@pytest.fixture
def labels(images, tmp_path):
  """(folder, plan) of labels in shards of four: the class of image i is i % 3, its probability i / 10."""
  plan = Plan({"name": "manifest"}, "train", 10, images.fingerprint(), NAMES, "w", 1, shard=4)
  folder = tmp_path / "labels"
  folder.mkdir()
  (folder / pseudo_labels.PLAN).write_text(plan.to_json())
  for name, records in plan.shards():
    numbers = np.array(records)[:, None]
    pseudo_labels.write_shard(folder / name, numbers % 3, numbers / 10)
  return folder, plan


def test_a_folder_is_read_as_it_was_written(labels):
  folder, plan = labels
  assert pseudo_labels.read_plan(folder) == plan and pseudo_labels.read_plan(folder.parent) is None
  assert [(name, len(records)) for name, records in plan.shards()] == [
    ("labels-00000-of-00003.npz", 4), ("labels-00001-of-00003.npz", 4), ("labels-00002-of-00003.npz", 2)
  ]  # fmt: skip
  classes, probabilities = pseudo_labels.best(folder, plan)
  np.testing.assert_array_equal(classes, np.arange(10) % 3)
  np.testing.assert_array_equal(probabilities, (np.arange(10) / 10).astype(np.float16))


@pytest.mark.parametrize("harm", ["missing", "cut", "empty", "longer"])
def test_a_file_that_is_not_whole_is_named_with_what_to_do(labels, harm):
  folder, plan = labels
  shard = folder / "labels-00001-of-00003.npz"
  content = shard.read_bytes()
  shard.unlink()
  if harm == "longer":
    pseudo_labels.write_shard(shard, np.zeros((5, 1)), np.zeros((5, 1)))
  elif harm != "missing":
    shard.write_bytes(content[: len(content) // 2] if harm == "cut" else b"")
  assert pseudo_labels.read_shard(shard, 4) is None
  with pytest.raises(ConfigError, match=r"labels-00001-of-00003\.npz is missing or damaged; run evaluate --write"):
    pseudo_labels.best(folder, plan)


@pytest.mark.parametrize("text", ['{"records": 3}', '{"fingerprint": {"colour": 1}, "classes": []}'])
def test_a_plan_that_is_none_is_refused(tmp_path, text):
  (tmp_path / pseudo_labels.PLAN).write_text(text)
  with pytest.raises(ConfigError, match=r"labels\.json is no plan of labels"):
    pseudo_labels.read_plan(tmp_path)


def test_a_student_sees_the_images_with_the_labels_of_the_teacher(images, labels):
  folder, plan = labels
  records = np.array([2, 5, 5, 9])
  source = pseudo_labels.labelled("pseudo", "train", images, folder, plan, records)
  assert source.classes == NAMES and len(source) == 4
  assert [source.read(i) for i in range(4)] == [(images.read(int(i))[0], int(i) % 3) for i in records]
  assert [source.label(i) for i in range(4)] == [2, 2, 2, 0]
  assert source.identify(3) == images.identify(9)


def test_a_fingerprint_changes_with_the_records_and_their_labels(images, labels):
  folder, plan = labels

  def fingerprint(records):
    return pseudo_labels.labelled("pseudo", "train", images, folder, plan, np.array(records)).fingerprint()

  assert fingerprint([1, 2]) == fingerprint([1, 2])
  assert fingerprint([1, 2]).changes(fingerprint([1, 3])) == ["names, labels or order of images"]


def test_images_that_changed_since_they_were_labelled_are_refused_and_copied_ones_are_not(images, labels):
  folder, plan = labels
  records, now = np.array([1]), images.fingerprint()
  copied = dataclasses.replace(images, fingerprint=lambda: now._replace(times="later"))
  assert len(pseudo_labels.labelled("pseudo", "train", copied, folder, plan, records)) == 1
  for other, says in (
    (dataclasses.replace(images, fingerprint=lambda: Fingerprint("other")), "names, labels or order of images"),
    (dataclasses.replace(images, length=9), "9 images, not 10"),
  ):
    with pytest.raises(ConfigError, match=re.escape(says)):
      pseudo_labels.labelled("pseudo", "train", other, folder, plan, records)
