"""Checks of device limits: divisibility of the batch, memory for the training state, and units for int8 products."""

import math
from typing import Any

import jax

from vit_jax.parallel import hardware, sharding
from vit_jax.schema import ConfigError, format_amount, texts


def check_batch(batch: int, accumulate: int, grid: jax.sharding.Mesh, examples: int, split: str) -> None:
  """Raises an error if a batch is larger than the training set or cannot be divided over the devices.

  Args:
    batch: images per step, over all devices.
    accumulate: number of micro-batches of a step.
    grid: device mesh of the run.
    examples: number of training images.
    split: name of their split, for the message.

  Raises:
    ConfigError: the batch is too large, or not divisible by the number of shards times micro-batches.
  """
  shards = sharding.count_batch_shards(grid)
  unit = shards * accumulate
  if batch > examples:
    fitting = examples // unit * unit
    remedy = f"Set {texts.format_flag('config.batch', fitting)} or less" if fitting else "Add images"
    raise ConfigError(
      f"config.batch: {batch} is larger than the {format_amount(examples, 'image')} of {split!r}. {remedy}"
    )
  if batch % unit:
    near = sorted({max(unit, batch // unit * unit), -(-batch // unit) * unit})
    parts = f"{format_amount(shards, 'device')} (mesh axes data and fsdp)" + (
      f" and {accumulate} micro-batches (config.optim.accumulate)" if accumulate > 1 else ""
    )
    raise ConfigError(
      f"config.batch: {batch} cannot be divided over {parts}. Nearest batch sizes: {', '.join(map(str, near))}"
    )


def check_memory(model: str, grid: jax.sharding.Mesh, shapes: Any) -> None:
  """Raises an error if the training state cannot fit, before memory is allocated.

  The estimate contains parameters, gradients and optimizer state. Activations need additional memory.

  Args:
    model: name of the model, for the message.
    grid: device mesh of the run.
    shapes: a `steps.State` with the shapes of its arrays and their shardings.

  Raises:
    ConfigError: the state needs more memory per device than the device has.
  """
  device = grid.devices.flat[0]
  limit = hardware.get_memory(device)
  needed = sharding.count_bytes_per_device(shapes) + sharding.count_bytes_per_device(shapes.params)  # the gradients
  if limit and needed > limit:
    devices = format_amount(grid.devices.size, "device")
    raise ConfigError(
      f"config.model: {model} needs {needed / 2**30:.1f} GiB on each of {devices} for parameters, "
      f"gradients and optimizer alone, but a {device.device_kind} has {limit / 2**30:.1f} GiB. Split the parameters "
      "with config.mesh.fsdp, or use a smaller model"
    )


def check_int8(grid: jax.sharding.Mesh) -> None:
  """Raises an error if the devices have no units for int8 products, or are GPUs. CPUs are allowed for tests.

  Args:
    grid: device mesh of the run.

  Raises:
    ConfigError: int8 products are not faster on these devices, or were never measured on them.
  """
  device = grid.devices.flat[0]
  chip = hardware.CHIPS.get(device.device_kind)
  if device.platform == "cpu" or (chip and not math.isnan(chip.int8)):
    return
  fast = [name for name, kind in hardware.GENERATIONS.items() if not math.isnan(hardware.CHIPS[kind.kind].int8)]
  raise ConfigError(
    f"config.model.matmul: 'int8' is not supported on {device.device_kind}, which has no fast units for int8. Use "
    f"'default', or a TPU {', '.join(fast[:-1])} or {fast[-1]}"
  )
