"""Tests of labels written by a teacher: they match its predictions, and a restart after a kill gives the same bytes."""

import dataclasses

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import schema
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog, pseudo_labels
from vit_jax.evals import labelling
from vit_jax.evals.subject import EvalContext
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build

pytestmark = pytest.mark.heavy

SPLIT = "train[:70]"


class Killed(Exception):
  """An interruption of a run from outside."""


@pytest.fixture(scope="module")
def teacher():
  """Returns (subject, parameters) of an untrained model."""
  prepare_dataset("digits")
  made = build.build(runs.run(), jax.devices())
  return EvalContext(
    made.model, made.mesh, made.run.data, 16, catalog.open_split, made.task.predict
  ), made.create_initial_state().params


def written(teacher, folder, soft=True, params=None, split=SPLIT, poll=lambda: None):
  """Writes labels in files of 20, and returns (number of labels, plan).

  Files of 20 images do not end with a batch of 16.
  """
  subject, own = teacher
  source = subject.open_images(None, split)
  plan = labelling.create_plan(subject, None, {"name": "digits"}, source, source.classes, params or own, soft)
  plan = dataclasses.replace(plan, shard=20)
  return labelling.label_images(subject, None, source, params or own, plan, folder, poll), plan


@pytest.mark.parametrize("soft", [True, False])
def test_labels_are_the_predictions_of_each_image(teacher, tmp_path, soft):
  made, plan = written(teacher, tmp_path / "l", soft)
  assert made == 70 and plan.kept == (5 if soft else 1)
  subject, params = teacher
  rows = jax.device_get([
    subject.compile_predictions(None, True)(params, batch)
    for batch in subject.open_batches(None, subject.open_images(None, SPLIT), 16)
  ])  # fmt: skip
  logits = np.concatenate([row["logits"] for row in rows])[:70].astype(np.float64)
  probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  classes, shares = pseudo_labels.read_labels(tmp_path / "l", plan, None, plan.kept)
  np.testing.assert_array_equal(classes, np.argsort(-probabilities, kind="stable")[:, : plan.kept])
  np.testing.assert_allclose(shares, -np.sort(-probabilities)[:, : plan.kept], rtol=2e-3)


@pytest.mark.long
def test_restart_after_a_kill_gives_the_same_bytes(teacher, tmp_path):
  whole, _ = written(teacher, tmp_path / "whole")
  calls = []

  def poll():
    calls.append(1)
    if len(calls) == 4:  # 64 images are computed, 60 of them in three files
      raise Killed

  with pytest.raises(Killed):
    written(teacher, tmp_path / "again", poll=poll)
  done = {file.name for file in (tmp_path / "again").glob("*.npz")}
  assert 0 < len(done) < 4
  made, _ = written(teacher, tmp_path / "again")
  assert made == 70 - 20 * len(done) < whole
  names = sorted(file.name for file in (tmp_path / "whole").iterdir())
  assert names == sorted(file.name for file in (tmp_path / "again").iterdir())
  for name in names:
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
  assert written(teacher, tmp_path / "again")[0] == 0


def test_labelling_opens_the_unlabelled_data_of_a_student():
  labelled = catalog.READERS["digits"]
  digits = schema.bind(Choice("digits"), (labelled,))
  student = Choice("pseudo_labelled", {"path": "x", "labelled": digits})
  assert (
    labelling.describe_origin(student)
    == labelling.describe_origin(digits)
    == {"name": "digits", **schema.to_plain(digits.args)}
  )
  with pytest.raises(ConfigError, match=r"--data\.name: missing\. The data of the run are a mixture"):
    labelling.describe_origin(Choice("mixture", {}))


def test_shards_of_another_teacher_are_written_again(teacher, tmp_path):
  _, plan = written(teacher, tmp_path)
  before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  name, records = next(plan.shards())
  other = dataclasses.replace(plan, weights="of another")
  pseudo_labels.write_shard(tmp_path / name, other, *pseudo_labels.read_shard(tmp_path / name, plan, len(records)))
  assert written(teacher, tmp_path)[0] == 70
  assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_labels_of_another_plan_are_not_overwritten(teacher, tmp_path):
  written(teacher, tmp_path)
  before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  other = {path: value + 1 for path, value in teacher[1].items()}
  for changes, message in (
    ({"params": other}, "with other weights"),
    ({"split": "train[70:140]"}, r"of the split 'train\[:70\]'"),
    ({"soft": False}, r"in the other format \(hard or soft\)"),
  ):
    with pytest.raises(ConfigError, match=f"contains labels .*{message}.*Use another folder, or remove this one"):
      written(teacher, tmp_path, **changes)
  assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_teacher_with_logits_that_are_not_finite_writes_no_labels(teacher, tmp_path):
  params = {**teacher[1], "head/bias": teacher[1]["head/bias"].at[2].set(np.inf)}
  with pytest.raises(ConfigError, match=r"image .*: output .logits. is not finite"):
    written(teacher, tmp_path / "l", params=params)
  assert [path.name for path in (tmp_path / "l").iterdir()] == [pseudo_labels.PLAN]
