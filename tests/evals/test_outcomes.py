"""Tests of all evaluations of a state: names of figures, and averaged weights on the devices.

test_evaluate.py runs real evaluations.
"""

import jax
import numpy as np
import pytest

from vit_jax import config
from vit_jax.evals import Outcome, outcomes
from vit_jax.parallel import sharding

pytestmark = pytest.mark.heavy


def test_figures_of_test_have_plain_names_and_averages_a_prefix():
  grid = sharding.make_mesh(config.Mesh(), jax.devices())
  params = {"x": jax.device_put(np.full(8, 1.0), sharding.make_replicated_sharding(grid))}
  average = {"x": jax.device_put(np.full(8, 2.0), sharding.make_batch_sharding(grid))}  # sharded over the devices

  def first_plus(number):
    def evaluation(weights, poll):
      poll()
      assert weights["x"].sharding.shard_shape((8,)) == (8,)  # replicated on each device
      return Outcome({"top1": number + float(weights["x"][0])}, None)

    return evaluation

  polls = []
  evals = {"test": first_plus(10), "other": first_plus(20)}
  measured = outcomes.run_evaluations(evals, params, average, lambda: polls.append(1))
  assert outcomes.collect_figures(measured) == {
    "top1": 11.0,
    "ema_top1": 12.0,
    "other/top1": 21.0,
    "other/ema_top1": 22.0,
  }
  assert len(polls) == 4
  assert list(outcomes.run_evaluations(evals, params, {}, lambda: None)) == ["", "other/"]


def test_no_evaluations_give_no_outcomes():
  assert outcomes.run_evaluations({}, {"x": np.ones(3)}, {"x": np.ones(3)}, lambda: None) == {}
