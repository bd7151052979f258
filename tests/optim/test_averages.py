"""Tests of the decay of the moving average of weights."""

import pytest

from vit_jax.optim import create_average_decay
from vit_jax.schema import Choice, ConfigError


def test_default_has_no_average():
  assert create_average_decay(10, int) is None


def test_decay_without_a_schedule_is_a_constant():
  assert create_average_decay(10, int, ema=0.9)(3) == 0.9


@pytest.mark.heavy
def test_ema_schedule_starts_at_the_decay():
  decay = create_average_decay(10, int, ema=0.5, ema_schedule=Choice("cosine", {"end": 1.0}))
  assert [float(decay(step)) for step in (0, 5, 10)] == pytest.approx([0.5, 0.75, 1.0])


@pytest.mark.parametrize(("ema", "end", "expected"), [
  (None, 1.0, "^ema_schedule: the run has no moving average"),
  (0.5, 1.5, r"^ema_schedule\.end: 1.5. Allowed"),
])  # fmt: skip
def test_invalid_ema_schedule_is_an_error(ema, end, expected):
  with pytest.raises(ConfigError, match=expected):
    create_average_decay(10, int, ema=ema, ema_schedule=Choice("cosine", {"end": end}))
