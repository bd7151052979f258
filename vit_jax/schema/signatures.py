"""Keyword-only parameters of functions, and advice for unknown ones."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.schema import aliases, suggestions
from vit_jax.schema.errors import format_names, suggest_nearest


def read_keywords(function: Callable) -> dict[str, Any]:
  """Returns the keyword-only parameters of a function with their defaults, as {name: default}."""
  parameters = inspect.signature(function).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def suggest_fix(key: str, value, entries: Mapping[str, tuple], others: Mapping[str, Callable | tuple]) -> str:
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
  takers = [name for name, each in functions.items() if any(key in read_keywords(function) for function in each)]
  if takers:
    return f" {format_names(takers)} take{'s' * (len(takers) == 1)} it.{format_allowed(entries)}"
  if (here := suggestions.translate_key(key, suggestions.format_typed(value), entries)) is not None:
    return f" Did you mean {here!r}?{format_allowed(entries)}"
  fitting = [name for name, (kind, _) in entries.items() if isinstance(value, str) and value in _list_words(kind)]
  return (
    f" Did you mean {fitting[0]!r}? Allowed: {format_names(entries)}."
    if len(fitting) == 1
    else suggest_nearest(key, entries)
  )


def is_certain(key: str, entries: Mapping[str, tuple], others: Mapping[str, Callable | tuple]) -> bool:
  """Returns true if `suggest_fix` knows the meaning of the key and does not guess it from the spelling.

  Args:
    key: the key, which is not among the entries.
    entries: {key: (type, default)} of the allowed keys.
    others: {name: functions} of the other choices, which may accept the key.
  """
  every = [entry if isinstance(entry, tuple) else (entry,) for entry in others.values()]
  taken = any(key in read_keywords(function) for functions in every for function in functions)
  return taken or aliases.find_equivalent(key, entries) is not None


def format_allowed(entries: Mapping[str, tuple]) -> str:
  """Returns the end of an error about a key: the list of the allowed keys."""
  return f" Allowed: {format_names(entries)}." if entries else " No keys are allowed here."


def _list_words(kind) -> list:
  """Returns the allowed values of a Literal, or of an optional Literal."""
  return [word for part in (kind, *typing.get_args(kind)) for word in typing.get_args(part)]
