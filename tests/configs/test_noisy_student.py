"""Self-training by its recipe: a teacher's labels, a student that restarts bit by bit, what the paper says."""

import contextlib
import shutil

import jax
import numpy as np
import pytest

from tests import recipes, runs, stages
from vit_jax import train
from vit_jax.data import pseudo_labels
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy

SMALL = {"model__depth": 1, "model__width": 16, "model__heads": 1, "model__hidden": 16, "optim__accumulate": 1}
SMALL |= {"batch": 16, "total": 12, "checkpoint__every": 3, "log__every": 2, "evals__test__every": 6}


def parts(name, **changes):
  return build.build(recipes.run(f"noisy_student:digits,{name}", **SMALL | changes), jax.devices())


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
  """(folder of soft labels, of hard ones) by a teacher of a few steps."""
  root = tmp_path_factory.mktemp("rounds")
  loop.train(parts("teacher"), root / "teacher")
  command = [f"--workdir={root}/teacher", "--split=train[100:400]"]
  both = [["evaluate", *command, f"--write-labels={root}/{kind}", f"--labels={kind}"] for kind in ("soft", "hard")]
  runs.finish(runs.several(*both))
  return root / "soft", root / "hard"


@pytest.mark.full
def test_a_student_goes_on_to_the_same_bits_after_a_death(labels, tmp_path):
  student = parts("student", data__path=labels[0], data__minimum=0.0, data__per_class="none")
  whole = loop.train(student, tmp_path / "whole")
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(student, 7), tmp_path / "again")
  again = loop.train(student, tmp_path / "again")
  assert again["weights_sha256"] == whole["weights_sha256"] and whole["images"] == 360


@pytest.mark.long
@pytest.mark.parametrize("kind", [0, 1], ids=["soft", "hard"])
def test_targets_are_the_labels_of_whom_an_image_has_them_from(labels, kind):
  changes = {} if kind == 0 else {"data__soft": False}
  student = parts("student", data__path=labels[kind], data__minimum=0.0, data__per_class="none", **changes)
  with contextlib.closing(student.open_batches(0)) as batches:
    batch = next(batches)
  targets = jax.device_get(student.task.examples(batch, stages.CONTEXT, jax.random.key(0)))["target"]
  batch = jax.device_get(batch)
  np.testing.assert_allclose(targets.sum(1), 1, atol=1e-5)
  source, records = student.images.source, [student.images.record(row) for row in range(16)]
  pseudo = source.corpora[1].records
  assert {record in pseudo for record in records} == {True, False}
  for record, target in zip(records, targets, strict=True):
    label = source.label(record)
    best = label[0] if isinstance(label, tuple) else label
    assert target.argmax() == best
    assert (target.max() < 0.999) == (kind == 0 and record in pseudo)


@pytest.mark.long
def test_other_labels_in_the_place_of_these_are_refused(labels, tmp_path):
  folder = shutil.copytree(labels[0], tmp_path / "labels")

  def student():
    return parts("student", data__path=folder, data__minimum=0.0, data__per_class="none", data__soft=False)

  with pytest.raises(InterruptedError):
    loop.train(runs.dying(student(), 7), tmp_path / "run")
  assert train.find_workdir_conflict(tmp_path / "run", student()) is None
  plan = pseudo_labels.read_plan(folder)
  for name, records in plan.shards():
    best, probabilities = pseudo_labels.read_shard(folder / name, plan, len(records))
    pseudo_labels.write_shard(folder / name, plan, (best + 1) % 10, probabilities)
  assert "names, labels or the order of images differ" in train.find_workdir_conflict(tmp_path / "run", student())


def test_the_recipe_is_that_of_the_paper():
  data = recipes.run("noisy_student:imagenet,student", data__path="labels").data.args
  assert (data["ratio"], data["minimum"], data["per_class"], data["soft"]) == (14.0, 0.3, 130_000, True)
  assert (data["policy"].args["layers"], data["policy"].args["magnitude"]) == (2, 27)
  assert recipes.run("noisy_student:imagenet,student", data__path="x").model.args["stochastic_depth"] == 0.2


def test_a_student_is_planned_before_there_are_labels(monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  planned = recipes.known("noisy_student:imagenet,student", data__path="/nowhere/labels", model__depth=2)
  assert planned.total == 350_000
