"""Devices to a mesh, parameter paths to shardings, host rows to global arrays.

The batch is split over the axes `replica`, `data` and `fsdp`, parameters over `fsdp` and `tensor`, by the table that
stands beside each model. `replica` counts the slices of a multislice run, between which the data-center network is the
only link: nothing but gradients crosses it. No other file names a PartitionSpec.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax import config, schema

AXES = ("replica", "data", "fsdp", "tensor")
BATCH = ("replica", "data", "fsdp")
LANES = 128  # of a TPU: the last axis of a matrix is stored in such groups
Table = Sequence[tuple[str, tuple[str | None, ...]]]


def sizes(wanted: config.Mesh, devices: int) -> tuple[int, ...]:
  """Sizes of `AXES` over a number of devices, -1 resolved; ConfigError unless they multiply to it."""
  shape = [getattr(wanted, axis) for axis in AXES]
  text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True))
  if 0 in shape or min(shape) < -1 or shape.count(-1) > 1:
    raise schema.ConfigError(f"config.mesh: {text}; sizes are positive, and one of them may be -1 to take the rest")
  known = math.prod(size for size in shape if size != -1)
  shape = [devices // known if size == -1 else size for size in shape]
  if math.prod(shape) != devices:
    raise schema.ConfigError(
      f"config.mesh: {text} does not fit {schema.amount(devices, 'device')}; the sizes must multiply to {devices} "
      "(data=-1 takes what the others leave)"
    )
  return tuple(shape)


def make(wanted: config.Mesh, devices: Sequence[jax.Device]) -> Mesh:
  """Mesh over the devices; ConfigError for sizes that do not fit them or that cross slices.

  Axes are Auto: XLA places the collectives, we place the arrays.
  """
  shape = sizes(wanted, len(devices))
  types = (AxisType.Auto,) * len(AXES)
  slices = len({getattr(device, "slice_index", 0) for device in devices})
  if shape[0] % slices:
    raise schema.ConfigError(
      f"config.mesh.replica: {shape[0]} over {slices} slices; the other axes must stay inside a slice, so it is a "
      f"multiple of {slices}: set config.mesh.replica={slices}"
    )
  within = (shape[0] // slices, *shape[1:])
  # A row of chips may serve two axes: else a mesh of 2 x 8 does not fit 4 x 4 chips.
  options = {"devices": devices, "allow_split_physical_axes": True}
  if slices == 1:
    return Mesh(mesh_utils.create_device_mesh(within, **options), AXES, axis_types=types)
  return Mesh(mesh_utils.create_hybrid_device_mesh(within, (slices, 1, 1, 1), **options), AXES, axis_types=types)


def replicated(mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def batch(mesh) -> NamedSharding:
  """The leading axis over the axes of the batch."""
  return NamedSharding(mesh, PartitionSpec(BATCH))


def micro_batches(mesh) -> NamedSharding:
  """[micro-batch, row, ...]: rows over the axes of the batch."""
  return NamedSharding(mesh, PartitionSpec(None, BATCH))


def batch_shards(mesh) -> int:
  """Number of pieces that the batch is split into."""
  return math.prod(mesh.shape[axis] for axis in BATCH)


def per_device(mesh, function: Callable) -> Callable:
  """The function of global arrays that runs `function` on each device's part: for kernels that XLA cannot split.

  Args:
    mesh: of the devices.
    function: of arrays [B, N, F], split by rows and, over `tensor`, by features, and [F], split by features; it
      returns one [B, N, F]. Arrays of other ranks are a KeyError.
  """
  parts = {3: PartitionSpec(BATCH, None, "tensor"), 1: PartitionSpec("tensor")}

  def split(*arrays):
    specs = tuple(parts[array.ndim] for array in arrays)
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=parts[3], check_vma=False)(*arrays)

  return split


def spread(mesh) -> Callable:
  """The function (function, stacks [N_i, ...]) -> function of all rows [N, ...], of which each device computes some.

  `function` takes any number of rows, each by itself, and is run on rows of zeros too. What is sent are rows of which
  no device has all, before, and the results, after.
  """

  def run(function, stacks):
    count = sum(map(len, stacks))
    each = -(-count // mesh.size)

    def on_device(*stacks):
      first = each * jax.lax.axis_index(mesh.axis_names)
      return function(jnp.stack([_row(stacks, first + i) for i in range(each)]))

    parts = PartitionSpec(mesh.axis_names)
    made = jax.shard_map(on_device, mesh=mesh, in_specs=PartitionSpec(), out_specs=parts, check_vma=False)(*stacks)
    return jax.lax.with_sharding_constraint(made, replicated(mesh))[:count]

  return run


def _row(stacks, number):
  """One of the rows of all stacks, or zeros past the last: the others need not even be computed."""
  row, first = jnp.zeros_like(stacks[0][0]), 0
  for stack in stacks:
    inside = (number >= first) & (number < first + len(stack))
    own = jax.lax.dynamic_index_in_dim(stack, jnp.clip(number - first, 0, len(stack) - 1), keepdims=False)
    row, first = jnp.where(inside, own, row), first + len(stack)
  return row


def parameters(table: Table, shapes: Mapping[str, jax.ShapeDtypeStruct], mesh) -> dict[str, NamedSharding]:
  """Sharding of every parameter, by the one row of `table` whose pattern matches its whole path.

  A row gives an axis per dimension of one layer; a stack of scanned layers has one dimension more, in front, that is
  never split. A dimension that its axis does not divide stays whole. ValueError for a path that no row or several
  match, or whose row has another rank.
  """
  return {path: NamedSharding(mesh, _spec(table, path, leaf.shape, mesh)) for path, leaf in shapes.items()}


def _spec(table, path, shape, mesh):
  rows = [axes for pattern, axes in table if re.fullmatch(pattern, path)]
  if len(rows) != 1:
    raise schema.ConfigError(
      f"parameter {path!r} matches {len(rows)} rows of the sharding table of its model or task; it needs exactly one. "
      "Change the pattern of a row"
    )
  axes = (None,) * (len(shape) - len(rows[0])) + tuple(rows[0])
  if len(axes) != len(shape):
    raise schema.ConfigError(
      f"parameter {path!r} has the shape {shape}, and its row of the sharding table {rows[0]}. Give it an axis or None "
      "for each dimension"
    )
  return PartitionSpec(
    *(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, shape, strict=True))
  )


def sharded(shapes, shardings):
  """The shapes of a pytree, with the shardings of one like it."""
  return jax.tree.map(
    lambda shape, where: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where), shapes, shardings
  )


def gather(table: Table, mesh, dtype) -> Callable:
  """The function (path, parameter of one layer) -> the parameter in `dtype`, gathered over `fsdp`.

  A parameter that `fsdp` does not split is returned as it is. Others are gathered as a matrix of the split dimension
  and all others: so [D, H, K], whose layout on a TPU depends on its last sizes, gets that of the whole array. In that
  of a share every product with it takes up to twice as long.
  """

  def whole(path, array):
    axes = _spec(table, path, array.shape, mesh)
    if mesh.shape["fsdp"] == 1 or "fsdp" not in axes:
      return array
    row = axes.index("fsdp")
    others = [axis for axis in axes if axis != "fsdp"]
    assert row in (0, len(axes) - 1)
    # The merged dimensions are split as their first one is.
    rest = others[0] if others else None
    matrix = (array.shape[0], -1) if row == 0 else (-1, array.shape[-1])
    split, gathered = (("fsdp", rest), (None, rest)) if row == 0 else ((rest, "fsdp"), (rest, None))
    x = array.astype(dtype).reshape(matrix)
    for spec in (split, gathered):
      x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))
    return x.reshape(array.shape)

  return whole


def averages(shapes: Mapping[str, jax.ShapeDtypeStruct], shardings: Mapping[str, NamedSharding], mesh):
  """Shardings of a moving average of the parameters: one axis is split over `data` too, where that divides it.

  No step reads the average, so nothing is ever gathered, and each device moves its share only: a replicated average
  would cost 1.6 % of a ViT-B/16's step. It is the axis that stands second to last in a TPU's memory, where the last one
  has the 128 lanes (of [D, H, K], D has): then the layout of the share is that of the whole, and nothing is copied.
  """

  def split(shape, sharding):
    axes = [axis if axis and mesh.shape[axis] > 1 else None for axis in sharding.spec]
    axes += [None] * (len(shape) - len(axes))
    row = len(shape) - (2 if shape and shape[-1] >= LANES else 1)
    if len(shape) < 2 or axes[row] or shape[row] % mesh.shape["data"]:
      return sharding
    axes[row] = "data"
    return NamedSharding(mesh, PartitionSpec(*axes))

  return {path: split(leaf.shape, shardings[path]) for path, leaf in shapes.items()}


def optimizer(transformation: optax.GradientTransformation, params, shardings, mesh):
  """Shardings of the optimizer state: like the parameter where the shape is the same, else whole on every device."""

  def sharding_of(leaf, param, sharding):
    if isinstance(leaf, optax.MaskedNode):  # a frozen parameter, which has no state
      return leaf
    return sharding if leaf.shape == param.shape else replicated(mesh)

  return optax.tree_utils.tree_map_params(
    lambda params: jax.eval_shape(transformation.init, params),
    sharding_of,
    jax.eval_shape(transformation.init, params),
    params,
    shardings,
    transform_non_params=lambda _: replicated(mesh),
    is_leaf=lambda x: isinstance(x, optax.MaskedNode),
  )


def local_rows(sharding: NamedSharding, rows: int) -> np.ndarray:
  """The rows of a global batch that this process's devices hold, sorted, each once."""
  pieces = sharding.addressable_devices_indices_map((rows,)).values()
  return np.unique(np.concatenate([np.arange(rows)[index] for index in pieces]))


def global_array(local: np.ndarray, rows: np.ndarray, total: int, sharding: NamedSharding) -> jax.Array:
  """The global array [total, ...] of which each process has the rows of its devices.

  Args:
    local: this process's rows, [len(rows), ...].
    rows: their sorted numbers, those of `local_rows`.
    total: rows of the global array.
    sharding: by rows.
  """

  def piece(index):
    wanted = np.arange(total)[index[0]]
    first = np.searchsorted(rows, wanted[0])
    return local[first : first + len(wanted)]

  return jax.make_array_from_callback((total, *local.shape[1:]), sharding, piece)


def place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """The global array of a host array that every process holds whole; each device takes its part."""
  return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def bytes_per_device(shapes, shardings) -> int:
  """Bytes that a pytree of shapes takes on one device under its shardings."""

  def size(leaf, sharding):
    return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

  return sum(jax.tree.leaves(jax.tree.map(size, shapes, shardings)))


def in_words(grid: jax.sharding.Mesh) -> str:
  """Returns the devices of a mesh and how they are split: "8 x TPU v3 (data=8)"."""
  axes = ", ".join(f"{axis}={size}" for axis, size in grid.shape.items() if size > 1) or "no axis split"
  return f"{grid.devices.size} x {grid.devices.flat[0].device_kind} ({axes})"
