"""Limits of the devices: whether a batch divides over them, and whether a state fits into their memory."""

from typing import Any

import jax

from vit_jax import hardware, mesh
from vit_jax.config import Run
from vit_jax.schema import ConfigError, amount


def check_batch(run: Run, grid: jax.sharding.Mesh, examples: int) -> None:
  """Raises ConfigError if a batch has more images than there are, or does not divide over the devices.

  Args:
    run: completed.
    grid: mesh of the run.
    examples: images to train on.
  """
  shards, micro = mesh.batch_shards(grid), run.optim.args["accumulate"]
  if run.batch > examples:
    raise ConfigError(
      f"config.batch: {run.batch} is more than the {amount(examples, 'image')} of {run.data.args['train']!r}; "
      "set a smaller one"
    )
  if run.batch % (shards * micro):
    unit = shards * micro
    near = sorted({max(unit, run.batch // unit * unit), -(-run.batch // unit) * unit})
    parts = f"{amount(shards, 'device')} (mesh axes data and fsdp)" + (
      f" and {micro} micro-batches (config.optim.accumulate)" if micro > 1 else ""
    )
    raise ConfigError(f"config.batch: {run.batch} does not divide over {parts}; nearest that do: {near}")


def check_memory(run: Run, grid: jax.sharding.Mesh, shapes: Any, shardings: Any) -> None:
  """Raises ConfigError if the state cannot fit, before anything is allocated; activations come on top.

  Args:
    run: completed.
    grid: mesh of the run.
    shapes: those of the state, a `steps.State`.
    shardings: likewise.
  """
  device = grid.devices.flat[0]
  limit = hardware.memory(device)
  gradients = mesh.bytes_per_device(shapes.params, shardings.params)
  needed = mesh.bytes_per_device(shapes, shardings) + gradients
  if limit and needed > limit:
    devices = amount(grid.devices.size, "device")
    raise ConfigError(
      f"config.model: {run.model.name} needs {needed / 2**30:.1f} GiB on each of {devices} for parameters, "
      f"gradients and optimizer alone; a {device.device_kind} has {limit / 2**30:.1f} GiB. Spread it with "
      "config.mesh.fsdp, or take a smaller model"
    )
