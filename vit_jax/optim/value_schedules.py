"""Schedules of values other than learning rates: a teacher's momentum and temperature, loss weights, weight decay.

The functions in `VALUE_SCHEDULES` share two positional arguments:

- total: the number of steps of the run.
- steps: a function that converts a duration to a number of steps.

Each returns a function that maps a step (an int or a traced scalar) to a float32 value. After the last step of the
run, the value is constant. `SCHEDULES_FROM_START` contains the schedules of `weight_decay` and of `ema`. Their first
argument is the value at step 0.
"""

import numpy as np

from vit_jax.optim import schedules
from vit_jax.optim.schedules import Schedule, Steps
from vit_jax.schema import Choice, Duration, NonNegative, Table, enter_key, make


def create_value_schedule(choice: Choice, total: int, steps: Steps) -> Schedule:
  """Returns the schedule of a choice.

  Args:
    choice: name and arguments. The name is a key of `VALUE_SCHEDULES`.
    total: number of steps of the run.
    steps: function that converts a duration to a number of steps.

  Raises:
    ConfigError: if an argument of the choice is invalid.

  Example:
    from vit_jax import schema
    from vit_jax.optim import value_schedules

    choice = schema.Choice("cosine", {"start": 0.996, "end": 1.0})
    momentum = value_schedules.create_value_schedule(choice, total=100, steps=int)
    float(momentum(50))  # 0.998
  """
  return make(choice, VALUE_SCHEDULES, total, steps)


def constant_value(total: int, steps: Steps, *, value: NonNegative) -> Schedule:
  """Returns the same value at every step.

  Args:
    total, steps: see the module docstring.
    value: the value.
  """
  return lambda step: np.float32(value)


def cosine_value(total: int, steps: Steps, *, start: NonNegative, end: NonNegative) -> Schedule:
  """Returns half a cosine from `start` at step 0 to `end`, which is reached after the last step.

  Args:
    total, steps: see the module docstring.
    start: first value.
    end: value after the last step. It may be larger than `start`.
  """
  return lambda step: end + (start - end) * schedules.fall_as_cosine(step, 0, total)


def ramp(
  total: int,
  steps: Steps,
  *,
  start: NonNegative,
  end: NonNegative,
  length: Duration,
  delay: Duration = Duration("0"),
  per_epoch: bool = False,
) -> Schedule:
  """Returns a linear change from `start` to `end`, and then a constant.

  Both ends belong to the change, as in `numpy.linspace(start, end, length)`: the value is `start` at the first of the
  `length` steps and `end` at the last one.

  Args:
    total, steps: see the module docstring.
    start: value until the change.
    end: value after the change.
    length: length of the change.
    delay: number of steps before the change.
    per_epoch: whether the value is constant within an epoch, and `length` and `delay` are rounded to epochs (DINO).
  """
  first, count = steps(delay), steps(length)
  if not per_epoch:
    return lambda step: start + (end - start) * schedules.rise(step, first, count)
  epoch = schedules.count_steps_per_epoch(steps)
  first, count = round(first / epoch), round(count / epoch)
  values = [*[start] * first, *np.linspace(start, end, count), end]
  return schedules.create_table([schedules.find_epoch_start(i, epoch) for i in range(len(values))], values)


VALUE_SCHEDULES: Table = {"constant": constant_value, "cosine": cosine_value, "ramp": ramp}


def create_weight_decay_schedule(choice: Choice, start: float, total: int, steps: Steps) -> Schedule:
  """Returns the schedule of the weight decay.

  Args:
    choice: name and arguments. The name is a key of `SCHEDULES_FROM_START`.
    start: weight decay at step 0.
    total: number of steps of the run.
    steps: function that converts a duration to a number of steps.

  Raises:
    ConfigError: if an argument of the choice is invalid.
  """
  with enter_key("weight_decay_schedule"):
    return make(choice, SCHEDULES_FROM_START, start, total, steps)


def constant_decay(start: float, total: int, steps: Steps) -> Schedule:
  """Returns the same decay at every step.

  Args:
    start, total, steps: see the module docstring.
  """
  return constant_value(total, steps, value=start)


def cosine_decay(start: float, total: int, steps: Steps, *, end: NonNegative) -> Schedule:
  """Returns half a cosine from the value at step 0 to `end`, without warm-up (DINO).

  Args:
    start, total, steps: see the module docstring.
    end: decay after the last step.
  """
  return cosine_value(total, steps, start=start, end=end)


SCHEDULES_FROM_START: Table = {"constant": constant_decay, "cosine": cosine_decay}
