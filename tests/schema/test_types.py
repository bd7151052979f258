"""Tests of the types of signatures."""

import pytest

from vit_jax.schema import ConfigError, types


@pytest.mark.parametrize(
  ("text", "steps"), [("500", 500), ("10k", 10_000), ("2ep", 20), ("100ex", 10), ("5%", 50), ("0", 0), ("1ex", 1)]
)
def test_duration_is_a_number_of_steps(text, steps):
  assert types.Duration(text).count_steps(batch=10, examples=100, total=1000) == steps


@pytest.mark.parametrize("text", ["", "ten", "5 epochs", "-1", "1e3"])
def test_invalid_duration_is_refused(text):
  with pytest.raises(ConfigError, match="is not a length of training"):
    types.Duration(text)


def test_range_is_open_only_at_the_specified_end():
  interval = types.Range(0, 1, open_low=True)
  assert [value in interval for value in (0, 0.5, 1, 1.5)] == [False, True, True, False]
  assert str(interval) == "(0, 1]"
