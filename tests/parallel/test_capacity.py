"""Tests of errors for batches and states that do not fit the devices. Errors of real runs are in test_build."""

import types

import jax
import numpy as np
import pytest

from vit_jax.config import Mesh
from vit_jax.parallel import capacity, sharding
from vit_jax.schema import ConfigError
from vit_jax.training.steps import State


def test_batch_that_does_not_divide_is_an_error_with_the_nearest_sizes():
  grid = sharding.make_mesh(Mesh(), jax.devices()[:8])
  capacity.check_batch(16, 1, grid, 16, "train")
  with pytest.raises(ConfigError, match=r"16 is larger than the 15 images of 'train'\. Set --config\.batch=8 or less$"):
    capacity.check_batch(16, 1, grid, 15, "train")
  with pytest.raises(ConfigError, match=r"16 is larger than the 7 images of 'train'\. Add images$"):
    capacity.check_batch(16, 1, grid, 7, "train")
  with pytest.raises(ConfigError, match=r"12 cannot be divided over 8 devices .*: 8, 16$"):
    capacity.check_batch(12, 1, grid, 1000, "train")
  with pytest.raises(ConfigError, match=r"24 cannot be divided .* and 2 micro-batches .*: 16, 32$"):
    capacity.check_batch(24, 2, grid, 1000, "train")


def test_state_larger_than_the_memory_is_an_error(monkeypatch):
  grid = sharding.make_mesh(Mesh(), jax.devices()[:1])
  placement = sharding.make_replicated_sharding(grid)
  params = {"w": jax.ShapeDtypeStruct((2**28,), "float32", sharding=placement)}
  state = State(jax.ShapeDtypeStruct((), "int32", sharding=placement), params, {}, ())
  monkeypatch.setattr(capacity.hardware, "get_memory", lambda device: 2**31 + 4)
  capacity.check_memory("a", grid, state)  # parameters and gradients need 2 GiB
  monkeypatch.setattr(capacity.hardware, "get_memory", lambda device: 2**30)
  with pytest.raises(ConfigError, match=r"a needs 2\.0 GiB on each of 1 device .* has 1\.0 GiB"):
    capacity.check_memory("a", grid, state)


@pytest.mark.parametrize(
  ("kind", "platform", "supported"),
  [
    ("TPU v5 lite", "tpu", True), ("TPU v5", "tpu", True), ("TPU v6 lite", "tpu", True), ("cpu", "cpu", True),
    ("TPU v2", "tpu", False), ("NVIDIA H200", "gpu", False),
  ],
)  # fmt: skip
def test_int8_needs_a_chip_with_its_units(kind, platform, supported):
  device = types.SimpleNamespace(device_kind=kind, platform=platform)
  grid = types.SimpleNamespace(devices=np.array([device], object))
  if supported:
    return capacity.check_int8(grid)
  with pytest.raises(ConfigError) as error:
    capacity.check_int8(grid)
  assert str(error.value) == (
    f"config.model.matmul: 'int8' is not supported on {kind}, which has no fast units for int8. Use 'default', or a "
    "TPU v5e, v5p or v6e"
  )
