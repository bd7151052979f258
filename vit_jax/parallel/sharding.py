"""Device meshes, shardings of parameters and batches, and transfers from host rows to global arrays.

The batch is split over the axes `replica`, `data` and `fsdp`. Parameters are split over `fsdp` and `tensor`, according
to the sharding table in the file of each model. `replica` counts the slices of a multislice run. Only the data-center
network connects slices, and only gradients cross it. All PartitionSpecs of the package are in this file.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from vit_jax import config, schema

AXES = ("replica", "data", "fsdp", "tensor")
BATCH = ("replica", "data", "fsdp")
LANES = 128  # group size in which a TPU stores the last axis of a matrix
Table = Sequence[tuple[str, tuple[str | None, ...]]]


def resolve_sizes(wanted: config.Mesh, devices: int) -> tuple[int, ...]:
  """Returns the sizes of `AXES` for a number of devices, with -1 resolved.

  Args:
    wanted: sizes from the config. One may be -1.
    devices: number of devices.

  Raises:
    ConfigError: if the product of the sizes is not the number of devices.
  """
  shape = [getattr(wanted, axis) for axis in AXES]
  text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True))
  if 0 in shape or min(shape) < -1 or shape.count(-1) > 1:
    raise schema.ConfigError(
      f"config.mesh: {text}. Use positive sizes, or -1 for one axis to take the remaining devices"
    )
  known = math.prod(size for size in shape if size != -1)
  shape = [devices // known if size == -1 else size for size in shape]
  if math.prod(shape) != devices:
    raise schema.ConfigError(
      f"config.mesh: {text} does not fit {schema.format_amount(devices, 'device')}; the sizes must multiply to "
      f"{devices} (data=-1 takes the remaining devices)"
    )
  return tuple(shape)


def make_mesh(wanted: config.Mesh, devices: Sequence[jax.Device]) -> Mesh:
  """Returns the mesh of the devices.

  Its axes have the type Auto: XLA chooses the collectives, and this package places the arrays.

  Args:
    wanted: sizes from the config.
    devices: devices of all processes.

  Raises:
    ConfigError: if the sizes do not fit the devices, or if an axis other than `replica` crosses slices.

  Example:
    import jax
    from vit_jax import config
    from vit_jax.parallel import sharding

    grid = sharding.make_mesh(config.Mesh(), jax.devices())
    sharding.format_mesh(grid)  # "1 x cpu (no axis split)" on one CPU device
  """
  shape = resolve_sizes(wanted, len(devices))
  types = (AxisType.Auto,) * len(AXES)
  slices = len({getattr(device, "slice_index", 0) for device in devices})
  if shape[0] % slices:
    raise schema.ConfigError(
      f"config.mesh.replica: {shape[0]} over {slices} slices; the other axes must stay inside a slice, so it is a "
      f"multiple of {slices}: set config.mesh.replica={slices}"
    )
  within = (shape[0] // slices, *shape[1:])
  # Two mesh axes may share a row of chips. Otherwise a mesh of 2 x 8 does not fit 4 x 4 chips.
  if slices == 1:
    chips = mesh_utils.create_device_mesh(within, devices=devices, allow_split_physical_axes=True)
  else:
    chips = mesh_utils.create_hybrid_device_mesh(
      within, (slices, 1, 1, 1), devices=devices, allow_split_physical_axes=True
    )
  return Mesh(chips, AXES, axis_types=types)


def make_replicated_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of an array that every device stores completely."""
  return NamedSharding(mesh, PartitionSpec())


def make_batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a batch: the first axis is split over the axes of the batch."""
  return NamedSharding(mesh, PartitionSpec(BATCH))


def make_micro_batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of [micro-batch, row, ...]: rows are split over the axes of the batch."""
  return NamedSharding(mesh, PartitionSpec(None, BATCH))


def count_batch_shards(mesh: Mesh) -> int:
  """Returns the number of parts into which the batch is split."""
  return math.prod(mesh.shape[axis] for axis in BATCH)


def map_per_device(mesh: Mesh, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Returns a function of global arrays that runs `function` on each device's part.

  It is required for kernels that XLA cannot partition.

  Args:
    mesh: mesh of the devices.
    function: function of arrays [B, N, F] and [F] that returns one array [B, N, F]. Arrays [B, N, F] are split by rows,
      and over `tensor` by features. Arrays [F] are split over `tensor`. Arrays of other ranks raise a KeyError.
  """
  parts = {3: PartitionSpec(BATCH, None, "tensor"), 1: PartitionSpec("tensor")}

  def split(*arrays: jax.Array) -> jax.Array:
    specs = tuple(parts[array.ndim] for array in arrays)
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=parts[3], check_vma=False)(*arrays)

  return split


# (function of rows, stacks [N_i, ...]) -> results [N, ...]
ShardRows = Callable[[Callable[..., jax.Array], Sequence[jax.Array]], jax.Array]


def shard_rows(mesh: Mesh) -> ShardRows:
  """Returns a function that distributes a computation on the rows of several stacks over the devices.

  Each device computes some of the rows. Before the computation, devices exchange rows that no device stores completely.
  After the computation, the results are sent to all devices.

  Args:
    mesh: mesh of the devices.

  Returns:
    A function (function, stacks [N_i, ...]) -> results [N, ...] of all rows. Its argument `function` takes any number
    of rows and must treat each row independently. It is also run on rows of zeros.
  """

  def run(function: Callable[..., jax.Array], stacks: Sequence[jax.Array]) -> jax.Array:
    count = sum(map(len, stacks))
    each = -(-count // mesh.size)

    def compute_rows(*stacks: jax.Array) -> jax.Array:
      first = each * jax.lax.axis_index(mesh.axis_names)
      return function(jnp.stack([_select_row(stacks, first + i) for i in range(each)]))

    parts = PartitionSpec(mesh.axis_names)
    made = jax.shard_map(compute_rows, mesh=mesh, in_specs=PartitionSpec(), out_specs=parts, check_vma=False)(*stacks)
    return jax.lax.with_sharding_constraint(made, make_replicated_sharding(mesh))[:count]

  return run


def _select_row(stacks: Sequence[jax.Array], number: jax.Array) -> jax.Array:
  """Returns one row of all stacks, or zeros after the last row. XLA does not have to compute the other rows."""
  row, first = jnp.zeros_like(stacks[0][0]), 0
  for stack in stacks:
    inside = (number >= first) & (number < first + len(stack))
    own = jax.lax.dynamic_index_in_dim(stack, jnp.clip(number - first, 0, len(stack) - 1), keepdims=False)
    row, first = jnp.where(inside, own, row), first + len(stack)
  return row


def find_parameter_shardings(
  table: Table, shapes: Mapping[str, jax.ShapeDtypeStruct], mesh: Mesh
) -> dict[str, NamedSharding]:
  """Returns the sharding of every parameter. Exactly one row of `table` must match the whole path of a parameter.

  A row specifies an axis for each dimension of one layer. A stack of scanned layers has one more dimension in front,
  which is never split. A dimension is not split if its size is not divisible by the size of the axis.

  Args:
    table: rows (pattern, mesh axis or None for each dimension).
    shapes: {path: shape} of all parameters.
    mesh: mesh of the devices.

  Raises:
    ConfigError: if a path matches no row or several rows, or if its row has a different number of dimensions.
  """
  return {path: NamedSharding(mesh, _find_spec(table, path, leaf.shape, mesh)) for path, leaf in shapes.items()}


def _find_spec(table: Table, path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
  rows = [axes for pattern, axes in table if re.fullmatch(pattern, path)]
  if len(rows) != 1:
    raise schema.ConfigError(
      f"parameter {path!r} matches {len(rows)} rows of the sharding table of its model or task; it needs exactly one. "
      "Change the pattern of a row"
    )
  axes = (None,) * (len(shape) - len(rows[0])) + tuple(rows[0])
  if len(axes) != len(shape):
    raise schema.ConfigError(
      f"parameter {path!r} has the shape {shape}, but its row of the sharding table is {rows[0]}. Give it an axis or "
      "None "
      "for each dimension"
    )
  return PartitionSpec(
    *(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, shape, strict=True))
  )


def add_shardings(shapes: object, shardings: object) -> Any:
  """Adds shardings to the shapes of a pytree.

  Args:
    shapes: pytree of shapes.
    shardings: pytree of shardings with the same structure.
  """
  return jax.tree.map(
    lambda shape, where: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where), shapes, shardings
  )


def make_gather(table: Table, mesh: Mesh, dtype: DTypeLike) -> Callable[[str, jax.Array], jax.Array]:
  """Returns a function that gathers the parameters of one layer over `fsdp`.

  A parameter is reshaped to a matrix before it is gathered: the split dimension is one axis, and all other dimensions
  are the other axis. The reason is that the layout of [D, H, K] on a TPU depends on its last sizes. A gathered matrix
  has the layout of an unsplit array. Otherwise the parameter would keep the layout of a part, and every product with it
  would take up to twice as long.

  Args:
    table: sharding table of the model.
    mesh: mesh of the devices.
    dtype: type of the gathered parameters.

  Returns:
    A function (path, parameter of one layer) -> the parameter, gathered in `dtype`. Parameters that `fsdp` does not
    split are returned unchanged.
  """

  def gather(path: str, array: jax.Array) -> jax.Array:
    axes = _find_spec(table, path, array.shape, mesh)
    if mesh.shape["fsdp"] == 1 or "fsdp" not in axes:
      return array
    row = axes.index("fsdp")
    others = [axis for axis in axes if axis != "fsdp"]
    assert row in (0, len(axes) - 1)
    # The merged dimension has the split of its first dimension.
    rest = others[0] if others else None
    matrix = (array.shape[0], -1) if row == 0 else (-1, array.shape[-1])
    split, gathered = (("fsdp", rest), (None, rest)) if row == 0 else ((rest, "fsdp"), (rest, None))
    x = array.astype(dtype).reshape(matrix)
    for spec in (split, gathered):
      x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))
    return x.reshape(array.shape)

  return gather


def find_average_shardings(
  shapes: Mapping[str, jax.ShapeDtypeStruct], shardings: Mapping[str, NamedSharding], mesh: Mesh
) -> dict[str, NamedSharding]:
  """Returns the shardings of a moving average of the parameters, which is also split over `data` if possible.

  Steps do not read the average, so it is never gathered, and each device updates only its own part. A replicated
  average would take 1.6 % of a ViT-B/16's step.

  The split axis is the second to last axis in a TPU's memory. (The last axis has the 128 lanes.) For [D, H, K] the
  split axis is D. A part then has the same layout as the whole array, and XLA inserts no copies.

  Args:
    shapes: {path: shape} of the parameters.
    shardings: {path: sharding} of the parameters.
    mesh: mesh of the devices.
  """

  def split(shape: tuple[int, ...], sharding: NamedSharding) -> NamedSharding:
    axes = [axis if axis and mesh.shape[axis] > 1 else None for axis in sharding.spec]
    axes += [None] * (len(shape) - len(axes))
    row = len(shape) - (2 if shape and shape[-1] >= LANES else 1)
    if len(shape) < 2 or axes[row] or shape[row] % mesh.shape["data"]:
      return sharding
    axes[row] = "data"
    return NamedSharding(mesh, PartitionSpec(*axes))

  return {path: split(leaf.shape, shardings[path]) for path, leaf in shapes.items()}


def find_optimizer_shardings(
  transformation: optax.GradientTransformation,
  params: Mapping[str, jax.ShapeDtypeStruct],
  shardings: Mapping[str, NamedSharding],
  mesh: Mesh,
) -> Any:
  """Returns the shardings of the optimizer state.

  A value with the shape of its parameter has the parameter's sharding. All other values are replicated.

  Args:
    transformation: the optimizer.
    params: shapes of the parameters.
    shardings: shardings of the parameters.
    mesh: mesh of the devices.
  """

  def sharding_of(leaf: Any, param: Any, sharding: NamedSharding) -> NamedSharding:
    if isinstance(leaf, optax.MaskedNode):  # a frozen parameter, which has no state
      return leaf
    return sharding if leaf.shape == param.shape else make_replicated_sharding(mesh)

  return optax.tree_utils.tree_map_params(
    lambda params: jax.eval_shape(transformation.init, params),
    sharding_of,
    jax.eval_shape(transformation.init, params),
    params,
    shardings,
    transform_non_params=lambda _: make_replicated_sharding(mesh),
    is_leaf=lambda x: isinstance(x, optax.MaskedNode),
  )


def find_local_rows(sharding: NamedSharding, rows: int) -> np.ndarray:
  """Returns the sorted row numbers of a global batch that the devices of this process store, without repetitions.

  Args:
    sharding: sharding of the batch.
    rows: number of rows of the global batch.
  """
  pieces = sharding.addressable_devices_indices_map((rows,)).values()
  return np.unique(np.concatenate([np.arange(rows)[index] for index in pieces]))


def make_global_array(local: np.ndarray, rows: np.ndarray, total: int, sharding: NamedSharding) -> jax.Array:
  """Builds a global array from the rows that each process provides for its devices.

  Args:
    local: rows of this process, [len(rows), ...].
    rows: sorted numbers of these rows, from `find_local_rows`.
    total: number of rows of the global array.
    sharding: sharding of the global array by rows.

  Returns:
    The global array, [total, ...].
  """

  def piece(index: tuple[slice, ...] | None) -> np.ndarray:
    assert index is not None
    wanted = np.arange(total)[index[0]]
    first = np.searchsorted(rows, wanted[0])
    return local[first : first + len(wanted)]

  return jax.make_array_from_callback((total, *local.shape[1:]), sharding, piece)


def place_array(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
  """Builds a global array from a host array that every process stores completely.

  Args:
    array: the complete array.
    sharding: sharding of the global array. Each device receives its part.
  """
  return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def count_bytes_per_device(shapes: object) -> int:
  """Returns the memory in bytes that a pytree takes on one device.

  Args:
    shapes: pytree of shapes with shardings.
  """
  leaves = jax.tree.leaves(shapes)
  return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def format_mesh(grid: jax.sharding.Mesh) -> str:
  """Formats the devices of a mesh and its axes: "8 x TPU v3 (data=8)"."""
  axes = ", ".join(f"{axis}={size}" for axis, size in grid.shape.items() if size > 1) or "no axis split"
  return f"{grid.devices.size} x {grid.devices.flat[0].device_kind} ({axes})"
