"""Tests of value schedules against float64 lists that NumPy computes like DINO and DINOv2."""

import jax
import numpy as np
import pytest

from vit_jax.optim import value_schedules
from vit_jax.schema import Choice, ConfigError, Duration

pytestmark = pytest.mark.heavy


def at(name, steps, total=100, batch=1, examples=1, **args):
  schedule = value_schedules.create_value_schedule(
    Choice(name, args), total, lambda duration: Duration(duration).count_steps(batch, examples, total)
  )
  values = np.asarray(jax.jit(jax.vmap(schedule))(np.asarray(steps, np.int32)))
  assert float(schedule(int(steps[-1]))) == pytest.approx(float(values[-1]), rel=1e-6)
  return values


def test_constant_has_the_same_value_at_every_step():
  np.testing.assert_array_equal(at("constant", range(5), value=0.9), np.full(5, 0.9, np.float32))


@pytest.mark.parametrize(("start", "end"), [(0.996, 1.0), (0.4, 0.04)])
def test_cosine_reaches_its_end_after_the_last_step(start, end):
  expected = end + 0.5 * (start - end) * (1 + np.cos(np.pi * np.arange(100) / 100))
  values = at("cosine", range(110), start=start, end=end)
  assert values.dtype == np.float32
  np.testing.assert_allclose(values, [*expected, *[end] * 10], rtol=1e-6)
  assert values[99] != np.float32(end)


@pytest.mark.parametrize("length", [0, 1, 2, 30])
def test_ramp_contains_both_of_its_ends(length):
  values = at("ramp", range(60), start=0.04, end=0.07, length=str(length))
  expected = np.concatenate([np.linspace(0.04, 0.07, length), np.full(60 - length, 0.07)])
  np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_delayed_ramp_keeps_its_first_value_until_the_delay_ends():
  values = at("ramp", range(40), start=1.0, end=0.5, length="11", delay="20")
  np.testing.assert_allclose(values, [*[1.0] * 20, *np.linspace(1, 0.5, 11), *[0.5] * 9], rtol=1e-6)
  late = at("ramp", [16_777_217, 16_777_219], total=2**25, start=0.0, end=2.0, length="5", delay="16777216")
  np.testing.assert_allclose(late, [0.5, 1.5], rtol=1e-6)


def test_ramp_by_epochs_is_constant_within_an_epoch():
  # An epoch has 2.5 steps. A step belongs to the epoch in which it starts.
  values = at("ramp", range(20), batch=4, examples=10, start=0.04, end=0.07, length="4ep", per_epoch=True)
  epochs = np.floor(np.arange(20) / 2.5).astype(int)
  np.testing.assert_allclose(values, np.take([*np.linspace(0.04, 0.07, 4), *[0.07] * 9], epochs), rtol=1e-6)
  late = at("ramp", range(20), batch=4, examples=10, start=0.0, end=1.0, length="2ep", delay="2ep", per_epoch=True)
  np.testing.assert_allclose(late, np.take([0, 0, 0, 1, *[1] * 9], epochs))


def test_missing_or_invalid_arguments_are_errors():
  with pytest.raises(ConfigError, match="length"):
    at("ramp", [0], start=0.0, end=1.0)
  with pytest.raises(ConfigError, match="start"):
    at("cosine", [0], start=-1.0, end=1.0)


def test_weight_decay_schedule_starts_at_the_weight_decay():
  def schedule(name, **args):
    return value_schedules.create_weight_decay_schedule(Choice(name, args), 0.04, 50, int)

  values = [schedule("cosine", end=0.4)(step) for step in (0, 25, 50, 60)]
  np.testing.assert_allclose(values, [0.04, 0.22, 0.4, 0.4], rtol=1e-6)
  assert schedule("constant")(7) == np.float32(0.04)
  with pytest.raises(ConfigError, match="weight_decay_schedule"):
    schedule("cosine")
