"""Tests of runs with `model.matmul=int8`: devices, shardings, restarts, evaluations and refusals."""

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import config
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.parallel import hardware
from vit_jax.planning import estimate
from vit_jax.schema import ConfigError
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy


def train_steps(devices, **changes):
  """Returns the parameters and the losses of two steps."""
  parts = runs.parts(devices, model__matmul="int8", **changes)
  batches, state, losses = parts.open_batches(0), parts.create_initial_state(), []
  for _ in range(2):
    state, metrics = parts.step(state, next(batches), {})
    losses.append(float(metrics["loss"]))
  batches.close()
  return jax.device_get(state.params), losses


@pytest.fixture(scope="module")
def single():
  return train_steps(1)


@pytest.mark.parametrize(
  "mesh", [{}, {"mesh__data": 2, "mesh__fsdp": 4}, {"mesh__data": 4, "mesh__tensor": 2}], ids=str
)
def test_eight_devices_compute_like_one(single, mesh):
  params, losses = train_steps(8, **mesh)
  # The products are exact, and their noise does not depend on the devices. Other sums are rounded differently. This
  # may move a value over the border between two integers.
  np.testing.assert_allclose(losses, single[1], rtol=2e-4)
  for path, value in single[0].items():
    np.testing.assert_allclose(params[path], value, atol=2e-4, err_msg=path)


def test_micro_batches_have_noise_of_their_own():
  _, losses = train_steps(1, optim__accumulate=2)
  assert np.isfinite(losses).all()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """An uninterrupted run: its parts, its workdir and its result."""
  parts, workdir = runs.parts(2, model__matmul="int8"), tmp_path_factory.mktemp("int8")
  return parts, workdir, loop.train(parts, workdir)


@pytest.mark.long
def test_a_restart_has_the_same_bits(trained, tmp_path):
  parts, _, result = trained
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 7), tmp_path)
  assert loop.train(parts, tmp_path)["weights_sha256"] == result["weights_sha256"]


def test_the_seed_changes_the_rounding(single):
  params, _ = train_steps(1, seed=1)
  assert any(np.any(params[path] != value) for path, value in single[0].items())


@pytest.mark.long
def test_evaluations_compute_like_those_of_other_models(trained):
  parts, workdir, _ = trained
  plain = runs.parts(2, init__from=workdir, model__matmul="default")
  params = plain.create_initial_state(plain.read_initial_weights()[0]).params
  outcomes = [each.evals["test"].measure(params, lambda: None) for each in (plain, parts)]
  assert outcomes[0].figures == outcomes[1].figures


def plan_devices(name):
  return estimate.make_topology_devices(hardware.parse_slice(name))


@pytest.mark.parametrize(("name", "kind"), [("v3-8", "TPU v3"), ("v4-8", "TPU v4"), ("tpu7x-8", "TPU7x")])
def test_chips_without_fast_int8_are_refused(name, kind):
  message = (
    rf"^config\.model\.matmul: 'int8' is not supported on {kind}, which has no fast units for int8\. Use 'default', or "
    "a TPU v5e, v5p or v6e$"
  )
  with estimate.use_tpu_compiler(kernels=True):
    devices = plan_devices(name)
  run = runs.imagenet(model__matmul="int8")
  with pytest.raises(ConfigError, match=message):
    build.build(run, devices, catalog.open_known_split)
  build.build(run, devices, catalog.open_known_split, training=False)  # evaluations do not use int8


def test_chips_with_fast_int8_are_allowed():
  with estimate.use_tpu_compiler(kernels=True):
    devices = plan_devices("v5e-1")
  build.build(runs.imagenet(model__matmul="int8"), devices, catalog.open_known_split)


def test_config_keeps_the_choice():
  run = runs.run(model__matmul="int8")
  text = config.dumps(config.resolve(flags.load_config(str(runs.ROOT / "configs/digits.py"), {"model.matmul": "int8"})))
  assert '"matmul": "int8"' in text and run.model.args["matmul"] == "int8"
  assert runs.run().model.args["matmul"] == "default"
  with pytest.raises(ConfigError, match=r"config\.model\.matmul: 'int4' is not a choice"):
    runs.run(model__matmul="int4")
