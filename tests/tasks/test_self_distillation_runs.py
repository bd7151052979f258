"""Runs of `dino` and `dinov2`: worker processes, scanned and rematerialised layers, and models that collapse."""

import contextlib
import io
import json
import math

import jax
import numpy as np
import pytest

from tests import self_distillation, stages
from vit_jax import models
from vit_jax.importers import surgery
from vit_jax.schema import Choice
from vit_jax.tasks.dino import Dino
from vit_jax.tasks.dinov2 import Dinov2
from vit_jax.training import loop

pytestmark = pytest.mark.heavy

EACH = pytest.mark.parametrize("task", ["dino", "dinov2"])
SIZE = {"depth": 2, "width": 16, "heads": 2, "hidden": 16, "layer_scale": 0.5, "stochastic_depth": 0.5}
HEADS = {
  "prototypes": 24, "bottleneck": 8, "hidden": 12, "local_size": 16, "local_crops": 2,
  "temperature": Choice("constant", {"value": 0.06}),
}  # fmt: skip
PATCH_HEADS = {"patch_prototypes": 20, "patch_bottleneck": 6, "patch_hidden": 10, "group": 2}


def train(made, workdir):
  """Trains, and returns the result and what was printed."""
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    result = loop.train(made, workdir)
  return result, printed.getvalue()


@pytest.mark.long
@EACH
def test_worker_processes_and_threads_train_the_same_bits(task, tmp_path):
  results = [
    train(self_distillation.parts(task, 1, total=3, data__workers=workers), tmp_path / str(workers))[0]
    for workers in (0, 1)
  ]
  assert results[0]["weights_sha256"] == results[1]["weights_sha256"]


def differentiate(task, arguments):
  """Returns the loss, the metrics and the gradients of layer after layer, for random weights and crops."""
  plain = models.make_functional(models.Description(Choice("ViT-Ti/8", SIZE), 32, 0))
  model = models.make_functional(models.Description(Choice("ViT-Ti/8", SIZE | arguments), 32, 0))
  stage = {"dino": Dino, "dinov2": Dinov2}[task](
    stages.supplied(model), **HEADS | (PATCH_HEADS if task == "dinov2" else {})
  )
  own = jax.eval_shape(stage.init, jax.random.key(0))
  params, teacher = (
    {
      path: 0.5 * jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), leaf.shape)
      for i, (path, leaf) in enumerate(sorted((plain.shapes() | own).items()))
    }
    for seed in (0, 1)
  )
  paths = (*model.shapes(), *own)
  draw = np.random.default_rng(0)
  batch = {
    "global": draw.integers(0, 256, (4, 2, 32, 32, 3), np.uint8),
    "local": draw.integers(0, 256, (4, 2, 16, 16, 3), np.uint8),
  }
  context = stages.CONTEXT._replace(average=surgery.stack(teacher, paths))
  examples = stage.examples(batch, context, jax.random.key(0))

  def loss(params):
    return stage.objective(params, context, examples, jax.random.key(3))

  (value, (metrics, _)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(surgery.stack(params, paths))
  return value, metrics, surgery.unstack(jax.device_get(gradients), (*plain.shapes(), *own))


@pytest.fixture(scope="module", params=["dinov2", "dino"])
def unrolled(request):
  """A task, and its loss, metrics and gradients without `scan` and `remat`."""
  return request.param, differentiate(request.param, {})


@pytest.mark.long
@pytest.mark.parametrize("arguments", [{"scan": True, "remat": "full"}, {"remat": "full"}, {"scan": True}], ids=str)
def test_scan_and_remat_change_no_loss_and_no_gradient(unrolled, arguments):
  task, (expected, metrics, gradients) = unrolled
  value, others, found = differentiate(task, arguments)
  assert float(value) == pytest.approx(float(expected), rel=1e-5)
  for name, metric in metrics.items():
    assert float(others[name]) == pytest.approx(float(metric), rel=1e-4), name
  assert found.keys() == gradients.keys()
  # Relative to the largest gradient of all: that of a key's bias is zero but for rounding.
  largest = max(np.abs(gradient).max() for gradient in gradients.values())
  for path, gradient in gradients.items():
    np.testing.assert_allclose(found[path], gradient, rtol=0, atol=1e-5 * largest, err_msg=path)


UNIFORM = {"task__temperature__value": 0.2, "optim__lr": 0.01}  # the teacher's temperature is above the student's
SHARP = {"task__temperature__value": 0.01, "task__center_momentum": 0.9999, "optim__lr": 0.1}  # the centre stays zero


@pytest.mark.long
@pytest.mark.parametrize(("task", "changes", "printed", "entropy", "prototypes"), [
  ("dino", UNIFORM, "the features have collapsed: their effective rank is 1.", math.log(24), 24),
  ("dinov2", UNIFORM, "the teacher's output has collapsed: its entropy 3.178 is close to that", math.log(24), 24),
  ("dino", SHARP, "the teacher's output has collapsed: all images of a batch use 1.0", 0, 1),
], ids=["dino uniform", "dinov2 uniform", "dino one prototype"])  # fmt: skip
def test_collapsed_run_logs_its_metrics_and_warns(task, changes, printed, entropy, prototypes, tmp_path):
  made = self_distillation.parts(task, 1, total=80, log__every=5, checkpoint__every="100%", **changes)
  text = train(made, tmp_path)[1]
  assert f"warning: {printed}" in text and text.count("collapsed") == 1
  *_, last = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  means = {name.removeprefix("train/"): value for name, value in last.items()}
  assert means["teacher_entropy"] == pytest.approx(entropy, abs=5e-3)
  assert means["used_prototypes"] == pytest.approx(prototypes, rel=5e-3)
  assert ("uniform output" if prototypes > 1 else "use 1.00 prototypes") in made.task.check_metrics(means)
