"""Devices to a mesh, parameter paths to shardings, host rows to global arrays.

The batch is split over the axes `data` and `fsdp`, parameters over `fsdp` and `tensor`, by the table that stands beside
each model. No other file names a PartitionSpec.
"""

import math
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from vit_jax import config

AXES = ("data", "fsdp", "tensor")
Table = Sequence[tuple[str, tuple[str | None, ...]]]


def sizes(wanted: config.Mesh, devices: int) -> tuple[int, ...]:
  """Sizes of the axes `data`, `fsdp`, `tensor` over so many devices, -1 resolved."""
  shape = [wanted.data, wanted.fsdp, wanted.tensor]
  text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True))
  if 0 in shape or min(shape) < -1 or shape.count(-1) > 1:
    raise config.ConfigError(f"config.mesh: {text}; sizes are positive, and one of them may be -1 to take the rest")
  known = math.prod(size for size in shape if size != -1)
  shape = [devices // known if size == -1 else size for size in shape]
  if math.prod(shape) != devices:
    raise config.ConfigError(
      f"config.mesh: {text} does not fit {devices} devices; the sizes must multiply to {devices} "
      "(data=-1 takes what fsdp and tensor leave)"
    )
  return tuple(shape)


def make(wanted: config.Mesh, devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
  """Mesh over the devices. Axes are Auto: XLA places the collectives, we place the arrays."""
  shape = sizes(wanted, len(devices))
  return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def replicated(mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def batch(mesh) -> NamedSharding:
  """The leading axis over `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def micro_batches(mesh) -> NamedSharding:
  """[micro-batch, row, ...]: rows over `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))


def batch_shards(mesh) -> int:
  """Number of pieces that the batch is split into."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def parameters(table: Table, shapes: Mapping[str, jax.ShapeDtypeStruct], mesh) -> dict[str, NamedSharding]:
  """Sharding of every parameter, by the one row of `table` whose pattern matches its whole path.

  A row gives an axis per dimension of one layer; a stack of scanned layers has one dimension more, in front, that is
  never split. A dimension that its axis does not divide stays whole.
  """
  return {path: NamedSharding(mesh, _spec(table, path, leaf.shape, mesh)) for path, leaf in shapes.items()}


def _spec(table, path, shape, mesh):
  rows = [axes for pattern, axes in table if re.fullmatch(pattern, path)]
  if len(rows) != 1:
    raise ValueError(f"parameter {path!r} matches {len(rows)} rows of its model's sharding table; it needs exactly one")
  axes = (None,) * (len(shape) - len(rows[0])) + tuple(rows[0])
  if len(axes) != len(shape):
    raise ValueError(f"parameter {path!r} has shape {shape}, its row of the sharding table {rows[0]}")
  return PartitionSpec(
    *(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, shape, strict=True))
  )


def optimizer(transformation: optax.GradientTransformation, params, shardings, mesh):
  """Shardings of the optimizer state: like the parameter where the shape is the same, else whole on every device."""

  def place(leaf, param, sharding):
    if isinstance(leaf, optax.MaskedNode):  # a frozen parameter, which has no state
      return leaf
    return sharding if leaf.shape == param.shape else replicated(mesh)

  return optax.tree_utils.tree_map_params(
    transformation,
    place,
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
  """The global [total, ...] array whose `rows` are `local`; every process brings the rows of its devices."""

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
  sizes = jax.tree.map(lambda s, where: math.prod(where.shard_shape(s.shape)) * s.dtype.itemsize, shapes, shardings)
  return sum(jax.tree.leaves(sizes))
