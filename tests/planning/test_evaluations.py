"""Tests of the cost of evaluations: their number, their images, and forward passes counted separately."""

import dataclasses

import jax
import pytest

from tests import runs
from vit_jax import models, schema
from vit_jax.data import catalog
from vit_jax.models import flops
from vit_jax.planning import evaluations
from vit_jax.training import build

VALIDATION = 50_000


def parts(run):
  return build.build(run, jax.devices(), catalog.open_known_split)


def test_validation_is_counted_as_often_as_the_loop_evaluates():
  evals = {
    "validation": schema.Choice("accuracy", {"split": "validation", "every": "7"}),
    "probes": schema.Choice("fewshot", {"every": "20"}),
  }
  run = parts(build.complete(runs.changed(runs.imagenet(total=50, optim__warmup=0), evals=evals)))
  batch = run.run.batch
  due = [step for step in range(1, 51) if step % 7 == 0 or step == 50]
  expected = {"validation": (len(due), -(-VALIDATION // batch) * batch), "probes": None}
  assert evaluations.list_evaluations(run) == expected
  averaged = dataclasses.replace(run.run.optim, args=run.run.optim.args | {"ema": 0.9})
  both = dataclasses.replace(run, run=dataclasses.replace(run.run, optim=averaged))
  assert evaluations.list_evaluations(both)["validation"].times == 2 * len(due)
  assert evaluations.sum_hours(evaluations.list_evaluations(run), 1000.0) == pytest.approx(
    8 * expected["validation"][1] / 3.6e6
  )


def test_share_of_a_forward_pass_matches_its_flops():
  run = parts(runs.imagenet())
  model = models.make_functional(run.model.description)
  images = jax.ShapeDtypeStruct((run.run.batch, 32, 32, 3), "float32")
  forward = flops.count_flops(lambda params, x: model.outputs(params, x)[0].logits, model.shapes(), images)
  step = flops.count_flops(run.step, run.state_shapes, run.batch_shapes, {})
  assert evaluations.compute_step_share(run, step) == pytest.approx(forward / step, rel=0.02)
  assert evaluations.compute_step_share(run, step) == pytest.approx(1 / 3, rel=0.1)
