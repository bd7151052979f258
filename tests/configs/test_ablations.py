"""The papers' ablations: what is compared is comparable, and every setting has three seeds or more."""

import collections
import contextlib
import dataclasses
import itertools

import jax
import numpy as np
import pytest

from tests import recipes, runs
from vit_jax import checkpoints, config
from vit_jax.config import flags
from vit_jax.parallel import sharding
from vit_jax.sweeps import study
from vit_jax.tasks import cost
from vit_jax.training import build, experiment, loop

FIVE = ("ablations/block", "ablations/optimizer")  # with so many seeds
NAMES = [name for name in recipes.NAMES if name.startswith("ablations/")]


@pytest.mark.parametrize("name", NAMES)
def test_an_ablation_chooses_nothing_and_has_equally_many_seeds_of_every_setting(name):
  assert study.load_sweep(recipes.path(name)).decide is None
  settings = collections.Counter()
  for trial in recipes.trials(name):
    settings[tuple(sorted((key, str(value)) for key, value in trial.changes.items() if key != "seed"))] += 1
  assert len(settings) >= 4 and set(settings.values()) == {5 if name in FIVE else 3}


def test_shapes_cost_the_same_within_five_per_cent():
  costs = {}
  for trial in recipes.trials("ablations/shape"):
    run = build.complete(config.resolve(flags.load_config(recipes.path("ablations/shape"), trial.flags)))
    costs[run.model.args["depth"]] = cost.count_model_flops(build.describe_model(run, range(10)))
  assert sorted(costs) == [1, 2, 4, 8, 16]
  middle = costs[4]
  assert all(abs(cost / middle - 1) < 0.05 for cost in costs.values()), costs


def test_all_sizes_of_data_take_equally_many_steps():
  assert recipes.load("ablations/data_size").total == "450"


POSITIONS = {  # the smallest run with tables in front of every layer, whose steps a checkpoint parts
  "model.width": "16",
  "model.depth": "2",
  "model.hidden": "16",
  "model.position.at": "each",
  "model.scan": "true",
  "batch": "16",
  "total": "4",
  "checkpoint.every": "2",
  "evals.test.every": "3",
  "log.images": "false",
  "optim.clip": "none",
}


def narrow(devices, **changes):
  run = runs.run("configs/ablations/positions.py", POSITIONS, **changes)
  return build.build(run, jax.devices()[:devices])


def stepped(parts):
  """Parameters after all steps."""
  step, state = parts.compile(), parts.create_initial_state()
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, parts.total):
      state, _ = step(state, batch, {})
  return jax.device_get(state.params)


@pytest.mark.long
def test_tables_of_every_layer_train_the_same_on_a_mesh_and_after_a_death(tmp_path):
  expected = stepped(narrow(1))
  meshed = stepped(narrow(8, mesh__data=2, mesh__fsdp=2, mesh__tensor=2))
  assert any("position/table" in path for path in expected)
  for path, value in expected.items():
    np.testing.assert_allclose(meshed[path], value, atol=1e-5, err_msg=path)

  def dies(params, poll):
    raise InterruptedError

  parts = narrow(1)
  with pytest.raises(InterruptedError):
    loop.train(dataclasses.replace(parts, evals={"test": experiment.Eval(3, dies)}), tmp_path)
  loop.train(parts, tmp_path)
  with contextlib.closing(
    checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(parts.mesh), read_only=True)
  ) as store:
    restored = jax.device_get(store.restore(parts.state_shapes)[0].params)
  for path, value in expected.items():
    np.testing.assert_array_equal(restored[path], value, err_msg=path)
