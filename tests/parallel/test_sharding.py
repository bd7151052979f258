"""Tests of mesh sizes, shardings by table, and the rows of a batch in each process."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax import config, schema
from vit_jax.parallel import hardware, sharding
from vit_jax.planning import estimate

TABLE = (("(a|b)/kernel", ("fsdp", "tensor")), (".*bias", (None,)))


def grid(**sizes):
  return sharding.make_mesh(config.Mesh(**sizes), jax.devices())


@pytest.mark.parametrize(
  ("wanted", "shape"),
  [
    ({}, (1, 8, 1, 1)),
    ({"data": 2, "fsdp": 2, "tensor": 2}, (1, 2, 2, 2)),
    ({"data": 1, "fsdp": -1}, (1, 1, 8, 1)),
    ({"replica": 2}, (2, 4, 1, 1)),
  ],
)
def test_mesh_sizes_multiply_to_the_number_of_devices(wanted, shape):
  assert tuple(grid(**wanted).shape.values()) == shape


@pytest.mark.parametrize("wanted", [{"data": 3}, {"data": 0}, {"data": -1, "fsdp": -1}, {"tensor": 16}, {"fsdp": 3}])
def test_mesh_sizes_that_do_not_fit_are_an_error(wanted):
  with pytest.raises(schema.ConfigError, match=r"config.mesh: replica=1, data="):
    grid(**wanted)


@pytest.mark.parametrize("name", ["v3-32", "v3-128", "v4-64", "v5e-16", "v5e-64", "v5p-32", "v6e-16", "2xv5e-16"])
def test_mesh_sizes_of_powers_of_two_fit_every_slice(name):
  """Meshes must combine rows of chips: a grid of 4 x 4 chips does not have a row of 8."""
  slice_ = hardware.parse_slice(name)
  with estimate.use_tpu_compiler(kernels=True):
    devices = estimate.make_topology_devices(slice_)
  for fsdp in (2, 8, len(devices) // slice_.slices // 2):
    made = sharding.make_mesh(config.Mesh(replica=slice_.slices, fsdp=fsdp, tensor=2), devices)
    assert {device.id for device in made.devices.flat} == {device.id for device in devices}
    assert made.shape["fsdp"] == fsdp
    for part in made.devices:
      assert len({getattr(device, "slice_index", 0) for device in part.flat}) == 1


def test_parameters_are_sharded_by_the_table_row_of_their_path():
  shapes = {
    "a/kernel": jax.ShapeDtypeStruct((4, 6), np.float32),
    "b/kernel": jax.ShapeDtypeStruct((12, 5, 6), np.float32),  # scanned; 5 is odd
    "bias": jax.ShapeDtypeStruct((4,), np.float32),
  }
  shardings = sharding.find_parameter_shardings(TABLE, shapes, grid(data=2, fsdp=2, tensor=2))
  specs = {path: sharding.spec for path, sharding in shardings.items()}
  assert specs == {"a/kernel": P("fsdp", "tensor"), "b/kernel": P(None, None, "tensor"), "bias": P(None)}
  kernel = sharding.add_shardings(shapes, shardings)["a/kernel"]
  assert sharding.count_bytes_per_device({"a/kernel": kernel}) == 4 * 6 * 4 // 4


@pytest.mark.parametrize("path", ["c/kernel", "a/bias/bias"])
def test_parameter_without_exactly_one_row_is_an_error(path):
  table = (*TABLE, (".*/bias", (None,)))
  with pytest.raises(ValueError, match="sharding table"):
    sharding.find_parameter_shardings(table, {path: jax.ShapeDtypeStruct((4,), np.float32)}, grid())


def test_optimizer_state_is_sharded_like_its_parameter():
  g = grid(data=1, fsdp=4, tensor=2)
  shapes = {"a/kernel": jax.ShapeDtypeStruct((4, 6), np.float32), "bias": jax.ShapeDtypeStruct((4,), np.float32)}
  params = sharding.find_parameter_shardings(TABLE, shapes, g)
  adam = sharding.find_optimizer_shardings(optax.adam(1e-3), shapes, params, g)[0]
  assert adam.mu == params
  assert adam.nu == params
  assert adam.count == sharding.make_replicated_sharding(g)


@pytest.mark.parametrize("sizes", [{}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 1, "tensor": 8}])
def test_global_arrays_contain_the_rows_of_the_batch(sizes):
  split = sharding.make_batch_sharding(grid(**sizes))
  rows = sharding.find_local_rows(split, 16)
  assert rows.tolist() == list(range(16))  # one process has all rows
  values = np.arange(16 * 3).reshape(16, 3)
  made = sharding.make_global_array(values, rows, 16, split)
  np.testing.assert_array_equal(made, values)
  assert made.sharding == split


def test_host_array_is_placed_by_its_sharding():
  g = grid(data=2, fsdp=4)
  array = np.arange(32, dtype=np.float32).reshape(8, 4)
  placed = sharding.place_array(array, jax.sharding.NamedSharding(g, P("fsdp")))
  np.testing.assert_array_equal(placed, array)
  assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 4)}


def test_averages_are_sharded_on_axes_that_are_free():
  shapes = {
    "mlp/kernel": (256, 512),
    "query/kernel": (256, 3, 16),
    "out/kernel": (3, 16, 256),
    "stack/mlp/kernel": (5, 256, 512),
    "odd/kernel": (9, 256),
    "bias": (256,),
    "scalar": (),
  }
  shapes = {path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()}
  whole = dict.fromkeys(shapes, sharding.make_replicated_sharding(grid()))
  shardings = {
    path: place.shard_shape(shapes[path].shape)
    for path, place in sharding.find_average_shardings(shapes, whole, grid()).items()
  }
  assert shardings == {
    "mlp/kernel": (32, 512),
    "query/kernel": (256, 3, 2),
    "out/kernel": (3, 2, 256),
    "stack/mlp/kernel": (5, 32, 512),
    "odd/kernel": (9, 256),
    "bias": (256,),
    "scalar": (),
  }
  # An array that is sharded over fsdp may also be sharded over data, but never on the same axis.
  both = grid(data=2, fsdp=4)
  table = ((".*kernel", ("fsdp", "tensor")),)
  split = sharding.find_parameter_shardings(table, {"a/kernel": shapes["mlp/kernel"]}, both)
  assert sharding.find_average_shardings({"a/kernel": shapes["mlp/kernel"]}, split, both) == split


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("path", "shape", "sizes"),
  [
    ("query/kernel", (16, 4, 6), {"data": 2, "fsdp": 2, "tensor": 2}),
    ("out/kernel", (4, 6, 16), {"data": 1, "fsdp": 8}),
    ("up/kernel", (8, 24), {"fsdp": 4}),
  ],
)
def test_gathering_keeps_values_and_tensor_sharding(path, shape, sizes):
  table = (
    ("query/kernel", ("fsdp", "tensor", None)),
    ("out/kernel", ("tensor", None, "fsdp")),
    ("up/kernel", ("fsdp", "tensor")),
  )
  devices = grid(**sizes)
  value = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
  place = sharding.find_parameter_shardings(table, {path: value}, devices)[path]
  gather = sharding.make_gather(table, devices, np.dtype("float32"))
  result = jax.jit(lambda x: gather(path, x), in_shardings=place)(value)
  np.testing.assert_array_equal(result, value)
  pieces = sizes.get("tensor", 1)
  assert value.size // result.sharding.shard_shape(shape)[0] >= 1
  assert np.prod(result.sharding.shard_shape(shape)) == value.size // pieces


def test_gathering_returns_unsharded_arrays_unchanged():
  table = ((".*", (None,)),)
  value = np.ones(8, np.float32)
  assert sharding.make_gather(table, grid(data=1, fsdp=8), np.dtype("bfloat16"))("norm/scale", value) is value
  table = ((".*", ("fsdp", None)),)
  assert sharding.make_gather(table, grid(), np.dtype("bfloat16"))("a/kernel", np.ones((8, 8))).dtype == np.float64


class Slice:
  """A device of a multislice run with the attributes that a mesh needs."""

  platform, device_kind = "tpu", "TPU v5 lite"

  def __init__(self, number, slice_index):
    self.id, self.slice_index, self.process_index = number, slice_index, slice_index
    self.coords, self.core_on_chip = (number % 4 % 2, number % 4 // 2, 0), 0

  def __repr__(self):
    return f"{self.slice_index}/{self.id}"


def test_slices_of_a_multislice_run_are_replicas():
  devices = [Slice(i, i // 4) for i in range(8)]
  made = sharding.make_mesh(config.Mesh(replica=2, fsdp=2), devices)
  assert dict(made.shape) == {"replica": 2, "data": 2, "fsdp": 2, "tensor": 1}
  for slice_, part in enumerate(made.devices):
    assert {device.slice_index for device in part.flat} == {slice_}
  with pytest.raises(schema.ConfigError, match=r"config.mesh.replica: 1 over 2 slices.*set config.mesh.replica=2"):
    sharding.make_mesh(config.Mesh(), devices)


def test_add_shardings_follows_the_tree_of_shapes():
  shapes = {"a": jax.ShapeDtypeStruct((8, 2), np.float16), "b": [jax.ShapeDtypeStruct((3,), np.int32)]}
  whole, split = sharding.make_replicated_sharding(grid()), sharding.make_batch_sharding(grid())
  made = sharding.add_shardings(shapes, {"a": split, "b": [whole]})
  assert (made["a"].shape, made["a"].dtype, made["a"].sharding) == ((8, 2), np.float16, split)
  assert (made["b"][0].shape, made["b"][0].sharding) == ((3,), whole)


@pytest.mark.heavy
@pytest.mark.parametrize("sizes", [(3,), (3, 5), (4, 8, 1)])
def test_sharded_rows_are_returned_in_order_to_all_devices(sizes):
  made, draw = grid(data=2, fsdp=2, tensor=2), np.random.default_rng(0)
  stacks = [draw.standard_normal((rows, 4, 5)).astype(np.float32) for rows in sizes]
  seen = []

  def function(part):
    seen.append(part.shape)
    return part @ part.swapaxes(1, 2)

  result = jax.jit(lambda *x: sharding.shard_rows(made)(function, x))(*stacks)
  assert set(seen) == {(-(-sum(sizes) // 8), 4, 5)}
  whole = np.concatenate(stacks)
  np.testing.assert_allclose(result, whole @ whole.swapaxes(1, 2), rtol=1e-5, atol=1e-5)
  assert result.sharding.is_fully_replicated
