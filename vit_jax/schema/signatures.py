"""Keyword-only parameters of functions, and advice for unknown ones."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.schema import aliases, suggestions
from vit_jax.schema.errors import nearest, some


def keywords(function: Callable) -> dict[str, Any]:
  """Returns the keyword-only parameters of a function with their defaults, as {name: default}."""
  parameters = inspect.signature(function).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def advice(key: str, value, entries: Mapping[str, tuple], others: Mapping[str, Callable | tuple]) -> str:
  """Returns advice for the end of an error about an unknown key.

  The advice names the functions that accept the key. If there are none, it names the key that accepts the value, or a
  similar key.

  Args:
    key: the key, which is not among the entries.
    value: the value of the key.
    entries: {key: (type, default)} of the allowed keys.
    others: {name: functions} of the other choices, which may accept the key.
  """
  functions = {name: entry if isinstance(entry, tuple) else (entry,) for name, entry in others.items()}
  takers = [name for name, each in functions.items() if any(key in keywords(function) for function in each)]
  if takers:
    return f" {some(takers)} take{'s' * (len(takers) == 1)} it.{allowed(entries)}"
  if (here := suggestions.here(key, suggestions.typed(value), entries)) is not None:
    return f" Did you mean {here!r}?{allowed(entries)}"
  fitting = [name for name, (kind, _) in entries.items() if isinstance(value, str) and value in _words(kind)]
  return f" Did you mean {fitting[0]!r}? Allowed: {some(entries)}." if len(fitting) == 1 else nearest(key, entries)


def is_certain(key: str, entries: Mapping[str, tuple], others: Mapping[str, Callable | tuple]) -> bool:
  """Returns true if `advice` knows the meaning of the key and does not guess it from the spelling.

  Args:
    key: the key, which is not among the entries.
    entries: {key: (type, default)} of the allowed keys.
    others: {name: functions} of the other choices, which may accept the key.
  """
  every = [entry if isinstance(entry, tuple) else (entry,) for entry in others.values()]
  taken = any(key in keywords(function) for functions in every for function in functions)
  return taken or aliases.here(key, entries) is not None


def allowed(entries: Mapping[str, tuple]) -> str:
  """Returns the end of an error about a key: the list of the allowed keys."""
  return f" Allowed: {some(entries)}." if entries else " No keys are allowed here."


def _words(kind) -> list:
  """Returns the allowed values of a Literal, or of an optional Literal."""
  return [word for part in (kind, *typing.get_args(kind)) for word in typing.get_args(part)]
