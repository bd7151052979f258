"""Tests of learning rate schedules against their definitions, and against DINO's schedule."""

import jax
import numpy as np
import pytest

from vit_jax.optim import schedules
from vit_jax.schema import Choice, ConfigError, Duration

pytestmark = pytest.mark.filterwarnings("error")


def make(name, peak, total, warmup="0", batch=1, examples=1, **args):
  def steps(duration):
    return Duration(duration).count_steps(batch, examples, total)

  return schedules.create_schedule(Choice(name, args), peak, total, steps(warmup), steps)


def at(schedule, steps):
  return np.asarray(jax.jit(jax.vmap(schedule))(np.asarray(steps, np.int32)))


@pytest.mark.heavy
@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_every_schedule_is_finite_positive_and_below_its_peak(name):
  args = {"at": ("75%",), "factors": (0.1,)} if name == "stair" else {}
  for warmup in "0", "1", "10%", "100%":
    rates = at(make(name, 0.3, 200, warmup, 10, 100, **args), range(250))
    assert rates.dtype == np.float32
    assert np.isfinite(rates).all() and (rates >= 0).all() and (rates <= 0.3 * (1 + 1e-6)).all()
    assert rates.max() > 0.2
    if warmup == "10%" and not name.startswith("epoch"):
      assert rates[0] == 0
      np.testing.assert_allclose(np.diff(rates[:20]), 0.3 / (19 if name == "linspace_cosine" else 20), rtol=1e-4)


@pytest.mark.heavy
def test_cosine_has_its_mean_in_the_middle_and_keeps_its_end():
  rates = at(make("cosine", 1.0, 120, "20", end=0.2), [20, 70, 120, 500])
  np.testing.assert_allclose(rates, [1, 0.6, 0.2, 0.2], atol=1e-6)


@pytest.mark.heavy
def test_cosine_cools_down_by_a_linear_factor():
  rates = at(make("cosine", 1.0, 100, "10", end=0.2, cooldown="20"), range(101))
  steps = np.arange(101)
  cosine = 0.2 + 0.8 * np.cos(np.pi / 2 * np.clip((steps - 10) / 90, 0, 1)) ** 2
  np.testing.assert_allclose(rates, np.minimum(steps / 10, 1) * cosine * np.minimum((100 - steps) / 20, 1), atol=1e-6)


@pytest.mark.heavy
def test_constant_rate_cools_down_to_zero():
  rates = at(make("constant", 2.0, 100, "10", cooldown="20%"), [5, 10, 80, 90, 99, 100])
  np.testing.assert_allclose(rates, [1, 2, 2, 1, 0.1, 0], atol=1e-6)


@pytest.mark.heavy
def test_schedule_accepts_a_python_int_and_a_traced_step():
  for name in "cosine", "epoch_cosine":
    schedule = make(name, 1.0, 100, "10")
    assert float(schedule(37)) == pytest.approx(float(jax.jit(schedule)(37)))


@pytest.mark.parametrize(
  ("name", "warmup", "args", "message"),
  [
    ("cosine", "101", {}, "warmup: 101 steps, but the run has 100"),
    ("rsqrt", "60", {"cooldown": "41"}, "warm-up of 60 steps and cool-down of 41 do not fit a run of 100"),
    ("constant", "60%", {"cooldown": "50%"}, "cool-down of 50"),
    ("cosine", "60%", {"cooldown": "50%"}, "cool-down of 50"),
    ("epoch_cosine", "60", {"cooldown": "60"}, "cool-down of 60"),
    ("cosine", "0", {"end": 2.0}, "not a fraction"),
    ("linear", "0", {"end": 2.0}, "schedule.end: 2.0 is above the peak, lr 1.0"),
    ("rsqrt", "0", {"timescale": "0"}, "schedule.timescale: 0 steps"),
    ("stair", "0", {"at": ("10", "20"), "factors": (0.1,)}, "as many factors as points"),
    ("stair", "0", {"at": ("20", "10"), "factors": (0.1, 0.01)}, "ascending"),
    ("stair", "0", {"at": ("10",)}, "schedule.factors: missing"),
    ("cosine", "0", {"ends": 0.1}, "Did you mean 'end'"),
    ("cosin", "0", {}, "Did you mean 'cosine'"),
  ],
)
def test_invalid_schedules_are_errors_with_a_fix(name, warmup, args, message):
  with pytest.raises(ConfigError, match=message):
    make(name, 1.0, 100, warmup, **args)


def test_more_than_a_million_epochs_are_an_error():
  with pytest.raises(
    ConfigError, match=r"schedule.name: 100,000,000 steps are 100,000,000 epochs. Allowed: at most a million"
  ):
    make("epoch_step", 1.0, 10**8)


@pytest.mark.heavy
def test_point_beyond_the_run_is_never_reached():
  assert at(make("stair", 1.0, 100, at=("99999M",), factors=(0.0,)), [99]) == 1


def compute_dino_schedule(peak, end, start, warmup, total):
  """Returns all rates of DINO's schedule in float64."""
  iterations = np.arange(total - warmup)
  cosine = end + 0.5 * (peak - end) * (1 + np.cos(np.pi * iterations / len(iterations)))
  return np.concatenate([np.linspace(start, peak, warmup), cosine])


@pytest.mark.heavy
@pytest.mark.parametrize(("warmup", "start"), [(21, 0.0), (21, 1e-5), (1, 0.0), (0, 0.0), (84, 0.0)])
def test_linspace_cosine_matches_dino(warmup, start):
  rates = at(make("linspace_cosine", 2e-3, 84, str(warmup), end=1e-6, start=start), range(90))
  np.testing.assert_allclose(rates[:84], compute_dino_schedule(2e-3, 1e-6, start, warmup, 84), rtol=2e-6)
  np.testing.assert_allclose(rates[84:], 1e-6, rtol=1e-6)
