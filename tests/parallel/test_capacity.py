"""Limits of the devices: errors name the nearest batch and the missing memory; test_build has those of real runs."""

import types

import jax
import pytest

from tests import runs
from vit_jax.parallel import capacity, sharding
from vit_jax.schema import ConfigError


def test_a_batch_divides_over_the_devices_or_the_nearest_that_do_are_named():
  run = runs.run(batch=16)
  grid = sharding.make_mesh(run.mesh, jax.devices()[:8])
  capacity.check_batch(run, grid, 16)
  with pytest.raises(ConfigError, match="16 is larger than the 15 images"):
    capacity.check_batch(run, grid, 15)
  with pytest.raises(ConfigError, match=r"12 cannot be divided over 8 devices .*: \[8, 16\]"):
    capacity.check_batch(runs.run(batch=12), grid, 1000)


def test_a_state_that_does_not_fit_is_refused(monkeypatch):
  run = runs.run()
  grid = sharding.make_mesh(run.mesh, jax.devices()[:1])
  params = {"w": jax.ShapeDtypeStruct((2**28,), "float32")}
  shapes, shardings = (
    types.SimpleNamespace(params=each) for each in (params, {"w": sharding.make_replicated_sharding(grid)})
  )
  monkeypatch.setattr(capacity.sharding, "count_bytes_per_device", lambda *_: 2**30)
  monkeypatch.setattr(capacity.hardware, "get_memory", lambda device: 2**31)
  capacity.check_memory(run, grid, shapes, shardings)  # 2 GiB of 2
  monkeypatch.setattr(capacity.hardware, "get_memory", lambda device: 2**30)
  with pytest.raises(ConfigError, match=r"needs 2\.0 GiB on each of 1 device .* has 1\.0 GiB"):
    capacity.check_memory(run, grid, shapes, shardings)
