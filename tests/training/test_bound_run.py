"""The bound form of a run: typed values, and the same JSON as the plain run."""

import json

import numpy as np
import pytest

from tests import runs
from vit_jax import config, schema
from vit_jax.config import flags
from vit_jax.data.bound_data import EvalData, TrainData
from vit_jax.evals import BoundEval
from vit_jax.training import build
from vit_jax.training.bound_run import BoundOptim, BoundRun


def test_every_choice_of_a_completed_run_has_its_type():
  run = runs.run(optim__ema=0.5, optim__accumulate=2)
  assert (type(run), type(run.data), type(run.optim)) == (BoundRun, TrainData, BoundOptim)
  assert {type(choice) for choice in run.evals.values()} == {BoundEval}
  assert (run.optim.ema, run.optim.accumulate, run.optim.lr) == (0.5, 2, run.optim.args["lr"])
  assert run.dtype == np.float32 and run.learns_classes


def test_a_task_without_classes_learns_none():
  assert not runs.run("configs/mae.py", {}).learns_classes


def test_other_data_of_an_evaluation_have_their_type():
  other = {"evals.other.name": "accuracy", "evals.other.data.name": "cifar10"}
  run = runs.run(**{key.replace(".", "__"): value for key, value in other.items()})
  assert type(run.evals["other"].data) is EvalData
  assert run.evals["other"].data.image_size == run.data.image_size
  assert run.evals["test"].data is None and run.evals["test"].split == "test"


@pytest.mark.parametrize("file", ["configs/digits.py", "configs/vit_s16_i1k.py"])
def test_the_json_of_a_completed_run_completes_to_itself(file):
  resolved = config.resolve(flags.load_config(str(runs.ROOT / file)))
  run = build.complete(resolved)
  stored = json.loads(config.dumps(run))
  assert schema.to_plain(run) == stored and set(stored) == set(schema.to_plain(resolved))
  again = build.complete(config.resolve(stored))
  assert again == run == build.complete(run) and config.dumps(again) == config.dumps(run)
