"""vit_jax/loop.py: what ends a loop early, and what it leaves; whole restarts are in test_train."""

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import checkpoints, config, loop, mesh
from vit_jax.evals import Outcome
from vit_jax.prepare import prepare


@pytest.fixture(scope="module", autouse=True)
def prepared():
  prepare("digits")


def test_a_loss_that_is_not_finite_ends_with_44_and_keeps_the_last_good_checkpoint(tmp_path):
  changes = {"optim.lr": "1e30", "optim.clip": "none", "optim.warmup": "6", "checkpoint__every": 1}
  message = runs.finish(runs.command("train", *runs.words(tmp_path, **changes)), 44)
  assert "not finite" in message
  kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
  assert kept
  parts = runs.parts(1, **changes)
  state, _ = checkpoints.Checkpoints(tmp_path, mesh.replicated(parts.mesh)).restore(parts.state_shapes)
  assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state))


def test_a_trace_is_written_that_tensorboard_finds(tmp_path):
  runs.finish(runs.command("train", *runs.words(tmp_path), "--profile=2"))
  assert list((tmp_path / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))


def test_figures_of_the_evaluation_called_test_have_plain_names_and_averages_a_prefix():
  class Evaluation:
    def __init__(self, figure):
      self.figure = figure

    def measure(self, weights, poll):
      # The average is spread over devices in the state, and whole where it is measured.
      assert weights["x"].sharding.shard_shape((8,)) == (8,)
      return Outcome({"top1": self.figure + float(weights["x"][0])}, None)

  grid = mesh.make(config.Mesh(), jax.devices())
  whole, split = mesh.replicated(grid), mesh.batch(grid)

  class State:
    params, ema = {"x": jax.device_put(np.full(8, 1.0), whole)}, {"x": jax.device_put(np.full(8, 2.0), split)}

  figures = loop.figures_of(loop.measured({"test": Evaluation(10), "other": Evaluation(20)}, State, None))
  assert figures == {"top1": 11.0, "ema_top1": 12.0, "other/top1": 21.0, "other/ema_top1": 22.0}
