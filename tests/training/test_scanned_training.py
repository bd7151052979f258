"""Tests that training with scanned layers equals training with unrolled layers, with restarts and both checkpoints."""

import re

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import checkpoints
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.importers import surgery
from vit_jax.models import stack
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy

SMALL = {
  "model__name": "ViT-Ti/8", "model__depth": 3, "model__width": 16, "model__heads": 2, "model__hidden": 16,
  "model__dropout": 0.2, "model__stochastic_depth": 0.3, "model__head": "gap", "optim__ema": 0.5,
}  # fmt: skip


def make_parts(**changes):
  prepare_dataset("digits")
  return build.build(runs.run(**(SMALL | changes)), jax.devices())


def train_steps(**changes):
  """Returns the parameters with stacked layers after three steps on 8 devices, and the last metrics."""
  parts = make_parts(**changes)
  batches, state = parts.open_batches(0), parts.create_initial_state()
  for _ in range(3):
    state, metrics = parts.step(state, next(batches), {})
  batches.close()
  params = jax.device_get(state.params)
  paths = dict.fromkeys(re.sub(r"^blocks/\d+/", "blocks/", path) for path in params)
  return surgery.stack(params, tuple(paths)), jax.device_get(metrics)


@pytest.fixture(scope="module")
def unrolled():
  return train_steps()


@pytest.mark.parametrize("mesh", [{}, {"mesh__data": 2, "mesh__fsdp": 4}], ids=str)
def test_three_steps_equal_those_of_unrolled_layers(unrolled, mesh):
  params, metrics = train_steps(model__scan=True, **mesh)
  assert metrics["loss"] == pytest.approx(unrolled[1]["loss"], abs=1e-5)
  assert params.keys() == unrolled[0].keys()
  for path, value in params.items():
    np.testing.assert_allclose(value, unrolled[0][path], atol=2e-5, err_msg=path)


@pytest.mark.long
@pytest.mark.parametrize("remat", [name for name in stack.POLICIES if name != "none"])
def test_three_steps_are_the_same_for_every_policy(unrolled, remat):
  params, metrics = train_steps(model__scan=True, model__remat=remat)
  assert metrics["loss"] == pytest.approx(unrolled[1]["loss"], abs=1e-5)
  for path, value in params.items():
    np.testing.assert_allclose(value, unrolled[0][path], atol=2e-5, err_msg=path)


@pytest.fixture(scope="module", params=[False, True], ids=["unrolled", "scanned"])
def trained(request, tmp_path_factory):
  """Whether the layers are scanned, the workdir of an uninterrupted run, and its result."""
  workdir = tmp_path_factory.mktemp("trained")
  return request.param, workdir, loop.train(make_parts(model__scan=request.param), workdir)


@pytest.mark.long
def test_a_restart_with_scanned_layers_has_the_same_bits(trained, tmp_path):
  scan, _, result = trained
  parts = make_parts(model__scan=scan)
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 7), tmp_path)
  assert loop.train(parts, tmp_path)["weights_sha256"] == result["weights_sha256"]


@pytest.mark.long
@pytest.mark.parametrize("scan", [False, True])
def test_weights_of_both_forms_load_in_both(trained, scan):
  stored, _ = checkpoints.read_weights(trained[1])
  weights, _ = make_parts(model__scan=scan, init__from=trained[1]).read_initial_weights()
  assert any(path.startswith("blocks/0/") for path in weights) != scan
  expected = stored if trained[0] == scan else (surgery.stack if scan else surgery.unstack)(stored, tuple(weights))
  for path, value in weights.items():
    np.testing.assert_array_equal(value, expected[path], err_msg=path)
