"""Learning rate by step: warm-up, decay and cool-down, by name.

A schedule takes the peak rate, the steps of the run and of its warm-up, and a function that turns durations into
steps. What it returns maps a step (an int, or a traced scalar) to a float32 rate. `end` and `start` are rates like the
peak, not shares of it.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from vit_jax.schema import Choice, ConfigError, Duration, Fraction, NonNegative, Positive, amount, at, make

Schedule = Callable


def create(choice: Choice, peak: float, total: int, warmup: int, steps: Callable[[Duration], int]) -> Schedule:
  """The schedule that a choice names; errors are at the key `schedule` of the place around."""
  if warmup > total:
    raise ConfigError(
      f"{amount(warmup, 'step')}, but the run has {total:,}; shorten the warm-up or lengthen the run", "warmup"
    )
  with at("schedule"):
    return make(choice, SCHEDULES, peak, total, warmup, steps)


def cosine(peak, total, warmup, steps, *, end: NonNegative = 0.0) -> Schedule:
  """Linear from 0, then half a cosine down to `end` at the last step."""
  _check_end(end, peak)
  return lambda step: (
    _warm(step, warmup) * (end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * _progress(step, total, warmup))))
  )


def linear(peak, total, warmup, steps, *, end: NonNegative = 0.0) -> Schedule:
  """Linear from 0, then linear down to `end` at the last step."""
  return polynomial(peak, total, warmup, steps, power=1.0, end=end)


def polynomial(peak, total, warmup, steps, *, power: Positive = 2.0, end: NonNegative = 0.0) -> Schedule:
  """Linear from 0, then end + (peak - end) (share of steps that remain) ** power."""
  _check_end(end, peak)
  return lambda step: _warm(step, warmup) * (end + (peak - end) * (1 - _progress(step, total, warmup)) ** power)


def constant(peak, total, warmup, steps, *, cooldown: Duration = Duration("0")) -> Schedule:
  """Linear from 0, then flat, then linear to 0 over the last steps."""
  cooldown = _cooldown_steps(cooldown, total, warmup, steps)
  return lambda step: peak * _warm(step, warmup) * _cool(step, total, cooldown)


def rsqrt(
  peak,
  total,
  warmup,
  steps,
  *,
  timescale: Duration = Duration("10k"),
  shift: Duration = Duration("0"),
  cooldown: Duration = Duration("0"),
) -> Schedule:
  """Linear from 0, then peak / sqrt(1 + (t + shift) / timescale), t steps after the warm-up; linear to 0 at the end.

  The curve is continuous: with a shift, the warm-up ends below the peak (Zhai et al. 2022, section 3.5).
  """
  cooldown = _cooldown_steps(cooldown, total, warmup, steps)
  timescale, shift = float(steps(timescale)), float(steps(shift))
  if not timescale:
    raise ConfigError("0 steps; give a length over which the rate falls by sqrt(2)", "timescale")

  def rate(step):
    after = jnp.maximum(jnp.asarray(step, jnp.float32) - warmup, 0)
    return peak * _warm(step, warmup) * _cool(step, total, cooldown) / jnp.sqrt(1 + (after + shift) / timescale)

  return rate


def stair(peak, total, warmup, steps, *, at: tuple[Duration, ...], factors: tuple[NonNegative, ...]) -> Schedule:
  """Linear from 0, then flat; from each point of `at` on, the peak times the factor that belongs to it."""
  points = [min(steps(point), 2**31 - 1) for point in at]
  if len(points) != len(factors) or points != sorted(points):
    raise ConfigError(
      f"at={tuple(map(str, at))} and factors={factors}: give as many factors as points, and the points in ascending "
      "order"
    )
  rate = _table([0, *points], [peak, *(peak * factor for factor in factors)])
  return lambda step: _warm(step, warmup) * rate(step)


def epoch_cosine(
  peak,
  total,
  warmup,
  steps,
  *,
  end: NonNegative = 0.0,
  start: NonNegative = 0.0,
  cooldown: Duration = Duration("0"),
  after_warmup: bool = False,
) -> Schedule:
  """timm's: flat within an epoch; linear from `start`, then a cosine, then `end` for the length of the cool-down.

  The cosine is drawn from epoch 0 and the warm-up covers its beginning, so the peak is not quite reached; with
  `after_warmup` it is drawn from the end of the warm-up.
  """
  _check_end(end, peak)
  cooldown = _cooldown_steps(cooldown, total, warmup, steps)
  epoch = _epoch(steps)
  first = round(warmup / epoch) if after_warmup else 0
  length = max(round((total - cooldown) / epoch) - first, 1)

  def rate(t):
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * min((t - first) / length, 1)))

  return _by_epoch(rate, peak, total, warmup, epoch, start)


def epoch_step(
  peak, total, warmup, steps, *, every: Duration = Duration("30ep"), factor: Fraction = 0.1, start: NonNegative = 0.0
) -> Schedule:
  """timm's: flat within an epoch; linear from `start`, then the peak times factor ** (epoch // every)."""
  epoch = _epoch(steps)
  every = max(round(steps(every) / epoch), 1)
  return _by_epoch(lambda t: peak * factor ** (t // every), peak, total, warmup, epoch, start)


SCHEDULES = {
  "cosine": cosine,
  "linear": linear,
  "polynomial": polynomial,
  "constant": constant,
  "rsqrt": rsqrt,
  "stair": stair,
  "epoch_cosine": epoch_cosine,
  "epoch_step": epoch_step,
}


def _warm(step, warmup):
  return jnp.minimum(jnp.asarray(step, jnp.float32) / warmup, 1) if warmup else jnp.float32(1)


def _cool(step, total, cooldown):
  return jnp.clip((total - jnp.asarray(step, jnp.float32)) / cooldown, 0, 1) if cooldown else jnp.float32(1)


def _progress(step, total, warmup):
  return jnp.clip((jnp.asarray(step, jnp.float32) - warmup) / max(total - warmup, 1), 0, 1)


def _table(starts, rates):
  """rates[i] from step starts[i] on."""
  starts, rates = np.asarray(starts, np.int32), np.asarray(rates, np.float32)
  return lambda step: jnp.asarray(rates)[jnp.searchsorted(starts, jnp.asarray(step, jnp.int32), side="right") - 1]


def _epoch(steps):
  # In whole steps an epoch of few steps would be far off; a million of them are not.
  return steps(Duration("1Mep")) / 1e6


def _by_epoch(rate, peak, total, warmup, epoch, start):
  if total > 1e6 * epoch:
    raise ConfigError(f"{total:,} steps are {total / epoch:,.0f} epochs; allowed: a million", "name")
  warm = round(warmup / epoch)
  epochs = range(math.ceil(total / epoch) + 1)
  rates = [start + t * (peak - start) / warm if t < warm else rate(t) for t in epochs]
  # The last step of an epoch often reaches into the next; the step belongs to where it begins.
  return _table([math.ceil(t * epoch - 1e-6) for t in epochs], rates)


def _cooldown_steps(cooldown, total, warmup, steps):
  count = steps(cooldown)
  if warmup + count > total:
    raise ConfigError(
      f"warm-up of {amount(warmup, 'step')} and cool-down of {count:,} do not fit a run of "
      f"{total:,}; shorten warmup or schedule.cooldown, or lengthen the run",
      "cooldown",
    )
  return count


def _check_end(end, peak):
  if end > peak:
    raise ConfigError(f"{end} is above the peak, lr {peak}; end is a learning rate, not a share of lr", "end")
