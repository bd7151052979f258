"""A stage with parameters of its own: they are trained, averaged and saved beside the model's, and no other part of the
trainer knows of them."""

import contextlib
import dataclasses
import io
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from vit_jax import checkpoints, importers, tasks
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data.views import Fields
from vit_jax.schema import Fraction
from vit_jax.tasks.task import TaskContext
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy


@dataclasses.dataclass(frozen=True)
class Colours(tasks.Task):
  """Predicts the mean colour of an image [B, 3] from its tokens, with a decoder of its own."""

  supplied: TaskContext
  _: dataclasses.KW_ONLY
  noise: Fraction = 0.0

  headline: ClassVar[str] = "error"
  classes: ClassVar[bool] = True
  sharding: ClassVar[tuple] = ((r"task/decoder/kernel", ("fsdp", None)),)

  @property
  def fields(self):
    return Fields(self.supplied.patch)

  def init(self, key):
    return {"task/decoder/kernel": 0.02 * jax.random.normal(key, (16, 3))}

  def examples(self, batch, context, key):
    targets = jnp.zeros((len(batch["image"]), 10))
    images, _ = self.supplied.augment(self.fields.patch)(key, batch["image"], targets, batch["draw"], context.step)
    colour = images.reshape(len(images), -1, 3).mean(1) + self.noise * jax.random.normal(key, (len(images), 3))
    return {"image": images, "colour": colour}

  def objective(self, params, context, examples, key):
    outputs, statistics = self.supplied.model.outputs(params, examples["image"], key)
    decoded = outputs.tokens.mean(1) @ params["task/decoder/kernel"]
    error = jnp.mean((decoded - examples["colour"]) ** 2)
    return error, ({"error": jnp.sqrt(error)}, statistics)

  def predict(self, params, images, labels, classes=None):
    raise NotImplementedError


@pytest.fixture(scope="module", autouse=True)
def known():
  """The stage is one of the table, for this file."""
  prepare_dataset("digits")
  tasks.TASKS["colours"] = Colours
  yield
  del tasks.TASKS["colours"]


def colours():
  """A run that saves every third step; evaluations of classes make no sense here."""
  run = runs.run(task__name="colours", task__label_smoothing="default", task__noise=0.1, optim__ema=0.5,
                 optim__weight_decay=0.1, mesh__data=2, mesh__fsdp=4)  # fmt: skip
  return build.build(dataclasses.replace(run, evals={}), jax.devices())


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
  """(workdir, result, what was printed) of an uninterrupted run."""
  workdir = tmp_path_factory.mktemp("whole")
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    result = loop.train(colours(), workdir)
  return workdir, result, printed.getvalue()


@pytest.mark.long
def test_parameters_of_the_task_are_trained_averaged_sharded_and_saved(complete_run):
  parts, path = colours(), "task/decoder/kernel"
  before = np.asarray(parts.create_initial_state().params[path])
  assert "fsdp" in str(parts.state_shapes.params[path].sharding.spec)
  saved, _ = checkpoints.read_weights(complete_run[0])
  average, _ = checkpoints.read_weights(complete_run[0], averaged=True)
  assert not np.allclose(saved[path], before)
  assert not np.allclose(average[path], saved[path])


@pytest.mark.long
def test_weights_for_others_are_the_models_alone(complete_run):
  _, arrays = importers.load(complete_run[0])
  assert not [path for path in arrays if path.startswith("task/")]


@pytest.mark.long
def test_the_headline_is_the_tasks(complete_run):
  assert "error" in complete_run[2]
  assert "top" not in complete_run[2]
  assert "top1" not in complete_run[1]


@pytest.mark.long
def test_a_restart_has_the_same_bits(complete_run, tmp_path):
  parts = colours()
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 7), tmp_path)
  assert loop.train(parts, tmp_path)["weights_sha256"] == complete_run[1]["weights_sha256"]
