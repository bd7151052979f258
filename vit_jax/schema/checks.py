"""Checks of functions with keyword-only parameters that become keys of a config."""

import dataclasses
import inspect
import typing
from collections.abc import Callable

from vit_jax.schema import expected
from vit_jax.schema.binding import convert
from vit_jax.schema.errors import ConfigError, enter_key
from vit_jax.schema.signatures import read_keywords


def check_types(function: Callable[..., object]) -> None:
  """Checks that every keyword-only parameter has a type that a config can contain, and a default of that type.

  Args:
    function: the function to check.

  Raises:
    ConfigError: a type is missing, unreadable or not supported, or a default does not have its type.
  """
  try:
    hints = typing.get_type_hints(function, include_extras=True)
  except (NameError, TypeError, SyntaxError) as error:
    raise ConfigError(f"its annotations cannot be read ({error}). Import the types that they name") from error
  for key, default in read_keywords(function).items():
    if key not in hints:
      raise ConfigError(f"it has no type. Write {key}: int, or another type", key)
    if not expected.is_supported(hints[key]):
      raise ConfigError(f"a config cannot contain a {hints[key]}. Use int, float, bool, str, Literal or tuple", key)
    if default not in (inspect.Parameter.empty, dataclasses.MISSING):
      with enter_key(key):
        convert(default, hints[key])
