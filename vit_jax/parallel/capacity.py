"""Checks of device limits: divisibility of the batch over the devices, and memory for the training state."""

from typing import Any

import jax

from vit_jax.config import Run
from vit_jax.parallel import hardware, sharding
from vit_jax.schema import ConfigError, format_amount


def check_batch(run: Run, grid: jax.sharding.Mesh, examples: int) -> None:
  """Raises an error if a batch is larger than the training set or cannot be divided over the devices.

  Args:
    run: a completed run.
    grid: device mesh of the run.
    examples: number of training images.

  Raises:
    ConfigError: the batch is too large, or not divisible by the number of shards times micro-batches.
  """
  shards, micro = sharding.count_batch_shards(grid), run.optim.args["accumulate"]
  if run.batch > examples:
    raise ConfigError(
      f"config.batch: {run.batch} is larger than the {format_amount(examples, 'image')} of {run.data.args['train']!r}. "
      "Set a smaller one"
    )
  if run.batch % (shards * micro):
    unit = shards * micro
    near = sorted({max(unit, run.batch // unit * unit), -(-run.batch // unit) * unit})
    parts = f"{format_amount(shards, 'device')} (mesh axes data and fsdp)" + (
      f" and {micro} micro-batches (config.optim.accumulate)" if micro > 1 else ""
    )
    raise ConfigError(f"config.batch: {run.batch} cannot be divided over {parts}. Nearest values: {near}")


def check_memory(run: Run, grid: jax.sharding.Mesh, shapes: Any, shardings: Any) -> None:
  """Raises an error if the training state cannot fit, before memory is allocated.

  The estimate contains parameters, gradients and optimizer state. Activations need additional memory.

  Args:
    run: a completed run.
    grid: device mesh of the run.
    shapes: a `steps.State` with the shapes of its arrays.
    shardings: a `steps.State` with the shardings of its arrays.

  Raises:
    ConfigError: the state needs more memory per device than the device has.
  """
  device = grid.devices.flat[0]
  limit = hardware.get_memory(device)
  gradients = sharding.count_bytes_per_device(shapes.params, shardings.params)
  needed = sharding.count_bytes_per_device(shapes, shardings) + gradients
  if limit and needed > limit:
    devices = format_amount(grid.devices.size, "device")
    raise ConfigError(
      f"config.model: {run.model.name} needs {needed / 2**30:.1f} GiB on each of {devices} for parameters, "
      f"gradients and optimizer alone, but a {device.device_kind} has {limit / 2**30:.1f} GiB. Split the parameters "
      "with "
      "config.mesh.fsdp, or use a smaller model"
    )
