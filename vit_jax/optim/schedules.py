"""Learning rate schedules: warm-up, decay and cool-down as functions of the step.

The functions in `SCHEDULES` share four positional arguments:

- peak: the peak learning rate.
- total: the number of steps of the run.
- warmup: the number of steps of the warm-up.
- steps: a function that converts a duration to a number of steps.

Each returns a function that maps a step (an int or a traced scalar) to a float32 learning rate. The arguments `end` and
`start` are absolute learning rates, like the peak. They are not fractions of the peak. All schedules begin with a
linear warm-up from 0, or from `start`.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.schema import (
  Choice,
  ConfigError,
  Duration,
  Fraction,
  NonNegative,
  Positive,
  enter_key,
  format_amount,
  make,
)
from vit_jax.shapes import Count

Schedule = Callable[[Count], float | np.floating | jax.Array]  # step -> learning rate
Steps = Callable[[Duration], int]  # converts a duration to a number of steps


def create_schedule(choice: Choice, peak: float, total: int, warmup: int, steps: Callable[[Duration], int]) -> Schedule:
  """Returns the schedule of a choice.

  Args:
    choice: name and arguments. The name is a key of `SCHEDULES`.
    peak: learning rate at the end of the warm-up.
    total: number of steps of the run.
    warmup: number of steps of the warm-up.
    steps: function that converts a duration to a number of steps.

  Raises:
    ConfigError: if the warm-up is longer than the run, or if an argument of the choice is invalid.

  Example:
    from vit_jax import schema
    from vit_jax.optim import schedules

    rate = schedules.create_schedule(schema.Choice("cosine"), peak=1e-3, total=100, warmup=10, steps=int)
    float(rate(5))  # 0.0005, half of the warm-up
    float(rate(100))  # 0.0
  """
  if warmup > total:
    raise ConfigError(
      f"{format_amount(warmup, 'step')}, but the run has {total:,}. Shorten the warm-up or lengthen the run", "warmup"
    )
  with enter_key("schedule"):
    return make(choice, SCHEDULES, peak, total, warmup, steps)


def cosine(
  peak: float,
  total: int,
  warmup: int,
  steps: Steps,
  *,
  end: NonNegative = 0.0,
  cooldown: Duration = Duration("0"),
) -> Schedule:
  """Returns half a cosine from the peak down to `end` at the last step.

  During the cool-down, the cosine is multiplied by a factor that falls linearly from 1 to 0, as in big_vision. The rate
  at step `total` is then 0 instead of `end`.

  Args:
    peak, total, warmup, steps: see the module docstring.
    end: learning rate at the last step, without a cool-down.
    cooldown: length of the cool-down at the end of the run.

  Raises:
    ConfigError: if `end` exceeds the peak, or if warm-up and cool-down are longer than the run.
  """
  _check_end(end, peak)
  cooling = _cooldown_steps(cooldown, total, warmup, steps)

  def rate(step: Count) -> jax.Array:
    value = _warm_up(step, warmup) * (
      end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * _compute_progress(step, total, warmup)))
    )
    # Without a cool-down, the program of a step must not change.
    return value * _cool_down(step, total, cooling) if cooling else value

  return rate


def linspace_cosine(
  peak: float, total: int, warmup: int, steps: Steps, *, end: NonNegative = 0.0, start: NonNegative = 0.0
) -> Schedule:
  """Returns the schedule of DINO, iBOT and DINOv2: `cosine` with a warm-up that includes both of its ends.

  The warm-up is `numpy.linspace(start, peak, warmup)`, so the last step of the warm-up has the peak rate. The first
  step of the cosine has it too.

  Args:
    peak, total, warmup, steps: see the module docstring.
    end: learning rate after the last step.
    start: learning rate at step 0, if there is a warm-up.
  """
  _check_end(end, peak)
  return lambda step: jnp.where(
    jnp.asarray(step) < warmup,
    start + (peak - start) * rise(step, 0, warmup),
    end + (peak - end) * fall_as_cosine(step, warmup, total),
  )


def linear(peak: float, total: int, warmup: int, steps: Steps, *, end: NonNegative = 0.0) -> Schedule:
  """Returns a linear decay from the peak down to `end` at the last step.

  Args:
    peak, total, warmup, steps: see the module docstring.
    end: learning rate at the last step.
  """
  return polynomial(peak, total, warmup, steps, power=1.0, end=end)


def polynomial(
  peak: float, total: int, warmup: int, steps: Steps, *, power: Positive = 2.0, end: NonNegative = 0.0
) -> Schedule:
  """Returns the decay end + (peak - end) (fraction of remaining steps) ** power.

  Args:
    peak, total, warmup, steps: see the module docstring.
    power: exponent of the fraction of remaining steps.
    end: learning rate at the last step.
  """
  _check_end(end, peak)
  return lambda step: (
    _warm_up(step, warmup) * (end + (peak - end) * (1 - _compute_progress(step, total, warmup)) ** power)
  )


def constant(peak: float, total: int, warmup: int, steps: Steps, *, cooldown: Duration = Duration("0")) -> Schedule:
  """Returns a constant learning rate with a linear decay to 0 during the cool-down.

  Args:
    peak, total, warmup, steps: see the module docstring.
    cooldown: length of the decay at the end of the run.
  """
  cooling = _cooldown_steps(cooldown, total, warmup, steps)
  return lambda step: peak * _warm_up(step, warmup) * _cool_down(step, total, cooling)


def rsqrt(
  peak: float,
  total: int,
  warmup: int,
  steps: Steps,
  *,
  timescale: Duration = Duration("10k"),
  shift: Duration = Duration("0"),
  cooldown: Duration = Duration("0"),
) -> Schedule:
  """Returns the inverse square root decay peak / sqrt(1 + (t + shift) / timescale), t steps after the warm-up.

  The schedule is continuous. With a shift, the warm-up therefore ends below the peak (Zhai et al. 2022, section 3.5).

  Args:
    peak, total, warmup, steps: see the module docstring.
    timescale: number of steps over which the learning rate falls by sqrt(2), without a shift.
    shift: number of steps added to t.
    cooldown: length of the linear decay to 0 at the end of the run.
  """
  cooling = _cooldown_steps(cooldown, total, warmup, steps)
  scale, shifted = float(steps(timescale)), float(steps(shift))
  if not scale:
    raise ConfigError("0 steps. Give a length over which the rate falls by sqrt(2)", "timescale")

  def rate(step: Count) -> jax.Array:
    after = jnp.maximum(jnp.asarray(step, jnp.float32) - warmup, 0)
    return peak * _warm_up(step, warmup) * _cool_down(step, total, cooling) / jnp.sqrt(1 + (after + shifted) / scale)

  return rate


def stair(
  peak: float, total: int, warmup: int, steps: Steps, *, at: tuple[Duration, ...], factors: tuple[NonNegative, ...]
) -> Schedule:
  """Returns a piecewise constant learning rate.

  Args:
    peak, total, warmup, steps: see the module docstring.
    at: points at which the learning rate changes, in ascending order.
    factors: the learning rate from each point on, as a factor of the peak.
  """
  points = [min(steps(point), 2**31 - 1) for point in at]
  if len(points) != len(factors) or points != sorted(points):
    raise ConfigError(
      f"at={tuple(map(str, at))} and factors={factors}: expected as many factors as points. List the points in "
      "ascending order"
    )
  rate = create_table([0, *points], [peak, *(peak * factor for factor in factors)])
  return lambda step: _warm_up(step, warmup) * rate(step)


def epoch_cosine(
  peak: float,
  total: int,
  warmup: int,
  steps: Steps,
  *,
  end: NonNegative = 0.0,
  start: NonNegative = 0.0,
  cooldown: Duration = Duration("0"),
  after_warmup: bool = False,
) -> Schedule:
  """Returns timm's cosine schedule, which is constant within an epoch.

  timm's cosine starts at epoch 0, and the warm-up replaces its first epochs. Therefore the learning rate does not quite
  reach the peak. With `after_warmup` the cosine starts at the end of the warm-up.

  Args:
    peak, total, warmup, steps: see the module docstring.
    end: learning rate at the end of the cosine and during the cool-down.
    start: learning rate at the first step of the warm-up.
    cooldown: length of the constant phase at the end of the run.
    after_warmup: whether the cosine starts at the end of the warm-up instead of epoch 0.
  """
  _check_end(end, peak)
  cooling = _cooldown_steps(cooldown, total, warmup, steps)
  epoch = count_steps_per_epoch(steps)
  first = round(warmup / epoch) if after_warmup else 0
  length = max(round((total - cooling) / epoch) - first, 1)

  def rate(t: float) -> float:
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * min((t - first) / length, 1)))

  return _create_epoch_schedule(rate, peak, total, warmup, epoch, start)


def epoch_step(
  peak: float,
  total: int,
  warmup: int,
  steps: Steps,
  *,
  every: Duration = Duration("30ep"),
  factor: Fraction = 0.1,
  start: NonNegative = 0.0,
) -> Schedule:
  """Returns timm's step schedule: peak * factor ** (epoch // every), constant within an epoch.

  Args:
    peak, total, warmup, steps: see the module docstring.
    every: number of epochs between two changes.
    factor: factor of each change.
    start: learning rate at the first step of the warm-up.
  """
  epoch = count_steps_per_epoch(steps)
  epochs = max(round(steps(every) / epoch), 1)
  return _create_epoch_schedule(lambda t: peak * factor ** (t // epochs), peak, total, warmup, epoch, start)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
  "cosine": cosine,
  "linspace_cosine": linspace_cosine,
  "linear": linear,
  "polynomial": polynomial,
  "constant": constant,
  "rsqrt": rsqrt,
  "stair": stair,
  "epoch_cosine": epoch_cosine,
  "epoch_step": epoch_step,
}


def _warm_up(step: Count, warmup: int) -> jax.Array:
  return jnp.minimum(jnp.asarray(step, jnp.float32) / warmup, 1) if warmup else jnp.float32(1)


def _cool_down(step: Count, total: int, cooldown: int) -> jax.Array:
  return jnp.clip((total - jnp.asarray(step, jnp.float32)) / cooldown, 0, 1) if cooldown else jnp.float32(1)


def _compute_progress(step: Count, total: int, warmup: int) -> jax.Array:
  return jnp.clip((jnp.asarray(step, jnp.float32) - warmup) / max(total - warmup, 1), 0, 1)


# Functions that schedules consist of. `value_schedules` uses them too.


def rise(step: Count, first: int, count: int) -> jax.Array:
  """Returns a linear rise from 0 at the step `first` to 1 at the step `first` + `count` - 1, as `numpy.linspace`.

  Args:
    step: number of the step, which may be traced.
    first: first step of the rise. Earlier steps have 0.
    count: number of steps of the rise, both ends included. Later steps have 1.
  """
  # Integers are subtracted, because float32 cannot represent every step of a long run.
  after = jnp.asarray(step, jnp.int32) - min(first, 2**31 - 1)
  return jnp.clip((after + (count == 0)).astype(jnp.float32) / max(count - 1, 1), 0, 1)


def fall_as_cosine(step: Count, first: int, last: int) -> jax.Array:
  """Returns half a cosine from 1 at the step `first` to 0 at the step `last`.

  Args:
    step: number of the step, which may be traced.
    first: first step of the fall. Earlier steps have 1.
    last: last step of the fall. Later steps have 0.
  """
  rest = jnp.clip((last - jnp.asarray(step, jnp.float32)) / max(last - first, 1), 0, 1)
  return jnp.square(jnp.sin(jnp.pi / 2 * rest))  # (1 + cos(pi (1 - rest))) / 2, without cancellation near the end


def create_table(starts: Sequence[int], rates: Sequence[float]) -> Schedule:
  """Returns the function that gives rates[i] from step starts[i] on.

  Args:
    starts: first step of each rate in ascending order, starting with 0.
    rates: the rates.
  """
  first, values = np.asarray(starts, np.int32), np.asarray(rates, np.float32)
  return lambda step: jnp.asarray(values)[jnp.searchsorted(first, jnp.asarray(step, jnp.int32), side="right") - 1]


def count_steps_per_epoch(steps: Steps) -> float:
  """Returns the number of steps of an epoch, which may be a fraction.

  Args:
    steps: function that converts a duration to a number of steps.
  """
  # Rounding one short epoch to whole steps would be inaccurate. Rounding a million epochs is not.
  return steps(Duration("1Mep")) / 1e6


def find_epoch_start(number: float, epoch: float) -> int:
  """Returns the first step of an epoch. A step belongs to the epoch in which it starts.

  Args:
    number: number of the epoch.
    epoch: number of steps of an epoch.
  """
  return math.ceil(number * epoch - 1e-6)  # the last step of an epoch often extends into the next epoch


def _create_epoch_schedule(
  rate: Callable[[int], float], peak: float, total: int, warmup: int, epoch: float, start: float
) -> Schedule:
  if total > 1e6 * epoch:
    raise ConfigError(f"{total:,} steps are {total / epoch:,.0f} epochs. Allowed: at most a million", "name")
  warm = round(warmup / epoch)
  epochs = range(math.ceil(total / epoch) + 1)
  rates = [start + t * (peak - start) / warm if t < warm else rate(t) for t in epochs]
  return create_table([find_epoch_start(t, epoch) for t in epochs], rates)


def _cooldown_steps(cooldown: Duration, total: int, warmup: int, steps: Steps) -> int:
  count = steps(cooldown)
  if warmup + count > total:
    raise ConfigError(
      f"warm-up of {format_amount(warmup, 'step')} and cool-down of {count:,} do not fit a run of "
      f"{total:,}. Shorten warmup or schedule.cooldown, or lengthen the run",
      "cooldown",
    )
  return count


def _check_end(end: float, peak: float) -> None:
  if end > peak:
    raise ConfigError(f"{end} is above the peak, lr {peak}. The end is a learning rate, not a fraction of lr", "end")
