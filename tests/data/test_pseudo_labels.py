"""Tests of a teacher's labels, against NumPy loops: selected records, label files, and the student's data."""

import dataclasses
import io
import json
import os
import re
import zipfile

import numpy as np
import pytest

from tests import archive_files, forms
from tests.streams import file
from vit_jax import schema
from vit_jax.data import catalog, pseudo_labels, sources, stream
from vit_jax.data import images as image_files
from vit_jax.data.pseudo_labels import LabelPlan, Selection
from vit_jax.data.sources import Fingerprint
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import AbsentError

NAMES = ("ant", "bee", "cat")


def by_loops(classes, probabilities, minimum, per_class):
  """Selects like `pseudo_labels.select_records`, class by class and image by image."""
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
def test_most_confident_images_are_selected_and_rare_classes_repeated(minimum, per_class):
  draw = np.random.default_rng(0)
  classes = draw.choice(5, 200, p=[0.5, 0.3, 0.15, 0.05, 0.0]).astype(np.int32)
  probabilities = draw.integers(0, 12, 200).astype(np.float16) / np.float16(12)  # many are equal
  records = pseudo_labels.select_records(classes, probabilities, minimum, per_class)
  assert records.tolist() == by_loops(classes, probabilities, minimum, per_class)
  if per_class:
    assert set(np.bincount(classes[records]).tolist()) <= {0, per_class}


@pytest.fixture
def images(tmp_path):
  """Returns ten images of two classes."""
  forms.manifest(tmp_path / "m", [file(i) for i in range(10)], ["cat", "dog"] * 5)
  return forms.opened("manifest", str(tmp_path / "m/all.jsonl"), test="train")


@pytest.fixture
def labels(images, tmp_path):
  """Returns (folder, plan) of labels in shards of four.

  The class of image i is i % 3. Its probability is i / 10.
  """
  about = (10, images.fingerprint(), pseudo_labels.digest_contents(images))
  plan = LabelPlan({"name": "manifest", "class_order": "numeric"}, "train", *about, NAMES, "w", 1, shard=4)
  folder = tmp_path / "labels"
  folder.mkdir()
  (folder / pseudo_labels.PLAN).write_text(plan.to_json())
  for name, records in plan.shards():
    numbers = np.array(records)[:, None]
    pseudo_labels.write_shard(folder / name, plan, numbers % 3, numbers / 10)
  return folder, plan


def two_best(folder, plan):
  """Writes and returns the plan of soft labels in the folder.

  The first class is that of `labels`. The next class has the share i / 10 of the remaining probability.
  """
  plan = dataclasses.replace(plan, kept=2)
  (folder / pseudo_labels.PLAN).write_text(plan.to_json())
  for name, records in plan.shards():
    numbers = np.array(records)[:, None]
    classes, best = np.hstack([numbers % 3, (numbers + 1) % 3]), numbers / 10
    pseudo_labels.write_shard(folder / name, plan, classes, np.hstack([best, (1 - best) * best]))
  return plan


@pytest.mark.parametrize("best", [[(0, 0.5), (0, 0.4)], [(0, 0.4), (1, 0.5)]])
def test_repeated_or_unsorted_classes_in_a_shard_are_refused(labels, best):
  folder, plan = labels
  plan = two_best(folder, plan)
  classes, shares = (np.tile(column, (4, 1)) for column in zip(*best, strict=True))
  pseudo_labels.write_shard(folder / "labels-00000-of-00003.npz", plan, classes, shares)
  assert pseudo_labels.read_shard(folder / "labels-00000-of-00003.npz", plan, 4) is None


def test_written_folder_is_read_back(labels):
  folder, plan = labels
  assert pseudo_labels.read_plan(folder) == plan and pseudo_labels.read_plan(folder.parent) is None
  assert [(name, len(records)) for name, records in plan.shards()] == [
    ("labels-00000-of-00003.npz", 4), ("labels-00001-of-00003.npz", 4), ("labels-00002-of-00003.npz", 2)
  ]  # fmt: skip
  classes, probabilities = (values[:, 0] for values in pseudo_labels.read_labels(folder, plan, None, 1))
  np.testing.assert_array_equal(classes, np.arange(10) % 3)
  np.testing.assert_array_equal(probabilities, (np.arange(10) / 10).astype(np.float16))


def test_older_plan_keeps_the_class_order_of_its_images(labels):
  folder, plan = labels
  older = dataclasses.replace(plan, data={"name": "manifest", "path": "x"})
  (folder / pseudo_labels.PLAN).write_text(older.to_json())
  assert pseudo_labels.read_plan(folder).data == {"name": "manifest", "path": "x", "class_order": "text"}
  assert pseudo_labels.read_plan(folder).digest() == plan.digest()


@pytest.mark.parametrize(("number", "probability"), [(3, 0.5), (-1, 0.5), (0, 1.5), (0, np.nan)])
def test_labels_out_of_range_are_refused(labels, number, probability):
  folder, plan = labels
  file = folder / "labels-00001-of-00003.npz"
  pseudo_labels.write_shard(file, plan, np.full((4, 1), number), np.full((4, 1), probability))
  with pytest.raises(ConfigError, match="damaged"):
    pseudo_labels.read_labels(folder, plan, None, 1)


@pytest.mark.parametrize(
  ("key", "value"),
  [("shard", 0), ("records", "ten"), ("kept", -1), ("kept", 1.5), ("split", None), ("classes", []), ("weights", None)],
)
def test_plan_with_invalid_values_is_refused(labels, key, value):
  folder, plan = labels
  (folder / pseudo_labels.PLAN).write_text(json.dumps(json.loads(plan.to_json()) | {key: value}))
  with pytest.raises(ConfigError, match=f"does not describe labels.*{key}"):
    pseudo_labels.read_plan(folder)


@pytest.mark.parametrize(
  "harm", ["missing", "cut", "empty", "longer", "pipe", "boundless", "an array", "of another plan", "a name twice"]
)
def test_damaged_shard_is_named_with_the_fix(labels, harm):
  folder, plan = labels
  shard = folder / "labels-00001-of-00003.npz"
  content = shard.read_bytes()
  shard.unlink()
  if harm == "longer":
    pseudo_labels.write_shard(shard, plan, np.zeros((5, 1)), np.zeros((5, 1)))
  elif harm == "of another plan":
    other = dataclasses.replace(plan, weights="others")
    pseudo_labels.write_shard(shard, other, np.zeros((4, 1)), np.full((4, 1), 0.5))
  elif harm == "an array":
    with shard.open("wb") as opened:
      np.save(opened, np.zeros((4, 1)))
  elif harm == "pipe":
    os.mkfifo(shard)
  elif harm == "boundless":
    claims = io.BytesIO()
    np.lib.format.write_array_header_1_0(claims, {"descr": "<i4", "fortran_order": False, "shape": (10**15, 1)})
    with zipfile.ZipFile(shard, "w") as archive:
      archive.writestr("classes.npy", claims.getvalue())
      archive.writestr("probabilities.npy", claims.getvalue())
  elif harm == "a name twice":
    shard.write_bytes(content)
    assert pseudo_labels.read_shard(shard, plan, 4) is not None
    archive_files.repeat(shard, "classes")
  elif harm != "missing":
    shard.write_bytes(content[: len(content) // 2] if harm == "cut" else b"")
  assert pseudo_labels.read_shard(shard, plan, 4) is None
  with pytest.raises(ConfigError, match=r"labels-00001-of-00003\.npz is missing or damaged. Run evaluate --write"):
    pseudo_labels.read_labels(folder, plan, None, 1)


@pytest.mark.parametrize("text", ['{"records": 3}', '{"fingerprint": {"colour": 1}, "classes": []}'])
def test_invalid_plan_is_refused(tmp_path, text):
  (tmp_path / pseudo_labels.PLAN).write_text(text)
  with pytest.raises(ConfigError, match=r"labels\.json does not describe labels"):
    pseudo_labels.read_plan(tmp_path)


HARD = Selection(minimum=0.3, per_class=2, soft=False)


def test_student_gets_the_images_with_the_labels_of_the_teacher(images, labels):
  folder, plan = labels
  source = pseudo_labels.select_labelled("pseudo", "train", images, folder, plan, HARD)
  records = [4, 5, 6, 7, 8, 9]
  assert source.classes == NAMES and len(source) == 6 and source.shares is None
  assert [source.read(i) for i in range(6)] == [(images.read(i)[0], i % 3) for i in records]
  assert [source.label(i) for i in range(6)] == [i % 3 for i in records]
  assert source.identify(5) == images.identify(9)


def test_soft_labels_have_shares(images, labels):
  folder, plan = labels
  plan = two_best(folder, plan)
  source = pseudo_labels.select_labelled("pseudo", "train", images, folder, plan, Selection(0.75, None, True))
  assert [source.label(i) for i in range(2)] == [(2, 0), (0, 1)] and source.labels == 2
  shares = np.array([source.shares(i) for i in range(2)])
  np.testing.assert_allclose(shares, [[0.8, 0.16], [0.9, 0.09]], atol=1e-3)
  assert shares.dtype == np.float32


@pytest.mark.parametrize(
  ("choice", "message"),
  [
    (HARD._replace(soft=True), "soft: .*contains hard labels.*soft=false"),
    (HARD._replace(per_class=11), "per_class: 11. Allowed: up to 10, all images"),
    (
      HARD._replace(minimum=0.95),
      r"minimum: 0.95: no label of the teacher is that confident. The highest confidence is 0\.9",
    ),
  ],
)
def test_selection_that_labels_cannot_satisfy_is_refused(images, labels, choice, message):
  with pytest.raises(ConfigError, match=message):
    pseudo_labels.select_labelled("pseudo", "train", images, *labels, choice)


def test_fingerprint_changes_with_the_records_and_their_labels(images, labels):
  folder, plan = labels

  def fingerprint(minimum):
    return pseudo_labels.select_labelled(
      "pseudo", "train", images, folder, plan, HARD._replace(minimum=minimum)
    ).fingerprint()

  assert fingerprint(0.3) == fingerprint(0.35)  # the same images are selected
  assert fingerprint(0.3).changes(fingerprint(0.6)) == ["names, labels or order of images"]


def test_images_changed_since_labelling_are_refused(images, labels):
  folder, plan = labels
  now = images.fingerprint()
  copied = dataclasses.replace(images, fingerprint=lambda: now._replace(times="later"))
  assert len(pseudo_labels.select_labelled("pseudo", "train", copied, folder, plan, HARD)) == 6
  for other, message in (
    (dataclasses.replace(images, fingerprint=lambda: Fingerprint("other")), "names, labels or order of images"),
    (dataclasses.replace(images, length=9), "9 images, not 10"),
    (dataclasses.replace(images, read=lambda i: images.read(9 - i)), "contents of some images"),
  ):
    with pytest.raises(ConfigError, match=re.escape(message)):
      pseudo_labels.select_labelled("pseudo", "train", other, folder, plan, HARD)


# Data of a run: labelled images and the images of the teacher.


def opened(folder, path, split="train", **args):
  """Opens ten labelled images at `path` together with the images that the folder has labels for."""
  labelled = {"name": "manifest", "path": str(path), "test": "train[:3]"}
  with schema.enter_key("config.data"):
    return catalog.open_split(
      schema.Choice("pseudo_labelled", {"path": str(folder), "labelled": labelled, "soft": False, **args}), split
    )


@pytest.fixture
def labelled(tmp_path):
  """Returns a manifest of six images of the teacher's three classes."""
  forms.manifest(tmp_path / "l", [file(100 + i) for i in range(6)], list(NAMES) * 2)
  return tmp_path / "l/all.jsonl"


@pytest.fixture
def teacher(labels, images, tmp_path):
  """Returns the folder of labels with a plan that contains the path of the images."""
  folder, plan = labels
  origin = {"name": "manifest", "path": str(tmp_path / "m/all.jsonl")}
  (folder / pseudo_labels.PLAN).write_text(dataclasses.replace(plan, data=origin).to_json())
  return folder


def test_student_trains_on_both_and_is_evaluated_on_labelled_images(teacher, labelled, images):
  source = opened(teacher, labelled, ratio=3.0, per_class=2)
  assert source.classes == NAMES and len(source) == 6 + 6
  assert [(part.name, len(part.records), part.weight) for part in source.corpora] == [
    ("manifest", 6, 1.0), ("pseudo-labels", 6, 3.0)
  ]  # fmt: skip
  assert [source.label(i) for i in range(12)] == [0, 1, 2, 0, 1, 2] + [i % 3 for i in range(4, 10)]
  assert source.read(6)[0] == images.read(4)[0]
  assert len(opened(teacher, labelled, "test")) == 3 and len(opened(teacher, labelled, "train[:2]")) == 2


def test_path_of_moved_images_is_given_by_a_key(teacher, labelled, tmp_path):
  (tmp_path / "m").rename(tmp_path / "moved")
  with pytest.raises(ConfigError, match=r"config\.data\.path"):
    opened(teacher, labelled)
  images = {"name": "manifest", "path": str(tmp_path / "moved/all.jsonl")}
  assert len(opened(teacher, labelled, images=images)) == 6 + 7


def test_labels_of_other_classes_and_empty_folders_are_refused(teacher, labelled, tmp_path):
  with pytest.raises(AbsentError, match=r"config\.data\.path: .*contains no labels. Write them: .*--write-labels"):
    opened(tmp_path, labelled)
  forms.manifest(tmp_path / "o", [file(i) for i in range(4)], ["dog", "eel"] * 2)
  with pytest.raises(ConfigError, match=r"labels of 3 classes, 'ant' first, but the labelled data have 2, 'dog' first"):
    opened(teacher, tmp_path / "o/all.jsonl")


def test_planning_without_labels_uses_the_labelled_images(labelled, tmp_path):
  labelled = {"name": "manifest", "path": str(labelled)}
  choice = schema.Choice("pseudo_labelled", {"path": str(tmp_path), "labelled": labelled})
  assert len(catalog.open_known_split(choice, "train")) == 6


def test_soft_labels_have_partial_shares_and_hard_labels_whole_ones(teacher, labelled, tmp_path):
  two_best(teacher, pseudo_labels.read_plan(teacher))
  source = opened(teacher, labelled, soft=True, minimum=0.75)
  assert source.labels == 2
  assert [source.label(i) for i in (0, 6, 7)] == [(0,), (2, 0), (0, 1)]
  np.testing.assert_allclose([source.shares(i) for i in (0, 6, 7)], [[1, 0], [0.8, 0.16], [0.9, 0.09]], atol=1e-3)
  examples = stream.train_examples(source, 0, image_size=8, crop=schema.Choice("resize"))
  assert examples.shapes["share"] == ((2,), np.float32)
  reader = image_files.Images(source, "raise", 10**6, 100.0)
  for position in range(20):
    record = examples.record(position)
    _, label, _, share = examples.example(reader.read_prepared, position)
    expected = source.label(record)
    assert label.tolist() == [*expected, -1][:2] and share.tolist() == source.shares(record).tolist()
  part = sources.select_subset(source, [7, 0])
  np.testing.assert_array_equal(part.shares(0), source.shares(7))
