"""The decay of the moving average of the parameters."""

from typing import Annotated

from vit_jax.optim.schedules import Schedule, Steps
from vit_jax.optim.value_schedules import SCHEDULES_FROM_START
from vit_jax.schema import Choice, ConfigError, Momentum, enter_key, make


def create_average_decay(
  total: int,
  steps: Steps,
  *,
  ema: Momentum | None = None,
  ema_schedule: Annotated[Choice, SCHEDULES_FROM_START] = Choice("constant"),
) -> Schedule | None:
  """Returns the decay d of the moving average as a function of the step: average = d average + (1 - d) parameters.

  Args:
    total: number of steps of the run.
    steps: function that converts a duration to a number of steps.
    ema: the decay at the first step. None: the run has no moving average.
    ema_schedule: the decay as a function of the step, see `value_schedules.SCHEDULES_FROM_START`. DINO uses "cosine"
      with end=1.0.

  Raises:
    ConfigError: if there is a schedule without a decay, or if it ends above one.
  """
  if ema is None:
    if ema_schedule.name != "constant":
      raise ConfigError("the run has no moving average. Set ema to the decay at the first step", "ema_schedule")
    return None
  if ema_schedule.name == "constant":
    return lambda step: ema  # a Python number, because the program computes 1 - ema in double precision
  with enter_key("ema_schedule"):
    if ema_schedule.args.get("end", 1.0) > 1:
      raise ConfigError(f"{ema_schedule.args['end']}. Allowed: [0, 1]", "end")
    return make(ema_schedule, SCHEDULES_FROM_START, ema, total, steps)
