"""Types of signatures."""

import pytest

from vit_jax.schema import ConfigError, types


@pytest.mark.parametrize(
  ("text", "steps"), [("500", 500), ("10k", 10_000), ("2ep", 20), ("100ex", 10), ("5%", 50), ("0", 0), ("1ex", 1)]
)
def test_a_duration_is_a_number_of_steps(text, steps):
  assert types.Duration(text).steps(batch=10, examples=100, total=1000) == steps


@pytest.mark.parametrize("text", ["", "ten", "5 epochs", "-1", "1e3"])
def test_another_text_is_no_duration(text):
  with pytest.raises(ConfigError, match="is not a duration"):
    types.Duration(text)


def test_a_range_is_open_where_it_is_said_to_be():
  interval = types.Range(0, 1, open_low=True)
  assert [value in interval for value in (0, 0.5, 1, 1.5)] == [False, True, True, False]
  assert str(interval) == "(0, 1]"
