"""Mesh sizes, shardings by table, and rows of a batch for a process."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax import config, mesh

TABLE = (("(a|b)/kernel", ("fsdp", "tensor")), (".*bias", (None,)))


def grid(**sizes):
  return mesh.make(config.Mesh(**sizes), jax.devices())


@pytest.mark.parametrize(
  ("wanted", "shape"),
  [({}, (8, 1, 1)), ({"data": 2, "fsdp": 2, "tensor": 2}, (2, 2, 2)), ({"data": 1, "fsdp": -1}, (1, 8, 1))],
)
def test_sizes_multiply_to_the_devices(wanted, shape):
  assert tuple(grid(**wanted).shape.values()) == shape


@pytest.mark.parametrize("wanted", [{"data": 3}, {"data": 0}, {"data": -1, "fsdp": -1}, {"tensor": 16}, {"fsdp": 3}])
def test_sizes_that_do_not_fit_are_refused(wanted):
  with pytest.raises(config.ConfigError, match=r"config.mesh: data="):
    grid(**wanted)


def test_parameters_are_split_by_the_row_of_their_path():
  shapes = {
    "a/kernel": jax.ShapeDtypeStruct((4, 6), np.float32),
    "b/kernel": jax.ShapeDtypeStruct((12, 5, 6), np.float32),  # scanned; 5 is odd
    "bias": jax.ShapeDtypeStruct((4,), np.float32),
  }
  found = mesh.parameters(TABLE, shapes, grid(data=2, fsdp=2, tensor=2))
  specs = {path: sharding.spec for path, sharding in found.items()}
  assert specs == {"a/kernel": P("fsdp", "tensor"), "b/kernel": P(None, None, "tensor"), "bias": P(None)}
  assert mesh.bytes_per_device({"a/kernel": shapes["a/kernel"]}, {"a/kernel": found["a/kernel"]}) == 4 * 6 * 4 // 4


@pytest.mark.parametrize("path", ["c/kernel", "a/bias/bias"])
def test_a_parameter_without_exactly_one_row_is_an_error(path):
  table = (*TABLE, (".*/bias", (None,)))
  with pytest.raises(ValueError, match="sharding table"):
    mesh.parameters(table, {path: jax.ShapeDtypeStruct((4,), np.float32)}, grid())


def test_optimizer_state_lives_where_its_parameter_lives():
  g = grid(data=1, fsdp=4, tensor=2)
  shapes = {"a/kernel": jax.ShapeDtypeStruct((4, 6), np.float32), "bias": jax.ShapeDtypeStruct((4,), np.float32)}
  params = mesh.parameters(TABLE, shapes, g)
  adam = mesh.optimizer(optax.adam(1e-3), shapes, params, g)[0]
  assert adam.mu == params
  assert adam.nu == params
  assert adam.count == mesh.replicated(g)


@pytest.mark.parametrize("sizes", [{}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 1, "tensor": 8}])
def test_global_arrays_hold_the_rows_of_the_batch(sizes):
  sharding = mesh.batch(grid(**sizes))
  rows = mesh.local_rows(sharding, 16)
  assert rows.tolist() == list(range(16))  # one process holds everything
  values = np.arange(16 * 3).reshape(16, 3)
  made = mesh.global_array(values, rows, 16, sharding)
  np.testing.assert_array_equal(made, values)
  assert made.sharding == sharding


def test_a_host_array_is_placed_as_its_sharding_says():
  g = grid(data=2, fsdp=4)
  array = np.arange(32, dtype=np.float32).reshape(8, 4)
  placed = mesh.place(array, jax.sharding.NamedSharding(g, P("fsdp")))
  np.testing.assert_array_equal(placed, array)
  assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 4)}
