"""Tests of functions with parameters that become config keys."""

import pytest

from vit_jax.schema import ConfigError, Fraction, checks, enter_key


def test_function_with_supported_types_passes():
  def function(first, *, share: Fraction = 0.5, name: str | None = None, needed: int):
    """A function with an argument of the run, which does not need a type."""

  checks.check_types(function)


def untyped(*, width=3): ...


def unusable(*, width: dict): ...


def unknown(*, width: "NoSuchType"): ...  # noqa: F821


def wrong(*, width: Fraction = 2.0): ...


@pytest.mark.parametrize(
  ("function", "problem"),
  [
    (untyped, r"^config.x.width: it has no type. Write width: int"),
    (unusable, r"^config.x.width: a config cannot contain a <class 'dict'>. Use int"),
    (unknown, r"^config.x: its annotations cannot be read \(name 'NoSuchType' is not defined\)"),
    (wrong, r"^config.x.width: 2.0 is out of range"),
  ],
)
def test_invalid_parameter_is_refused_at_its_key(function, problem):
  with pytest.raises(ConfigError, match=problem), enter_key("config.x"):
    checks.check_types(function)
