"""What the signatures of functions say: their keyword-only parameters, and what an unknown one was meant for."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.schema import aliases, suggestions
from vit_jax.schema.errors import nearest, some


def keywords(function: Callable) -> dict[str, Any]:
  """The keyword-only parameters of a function and their defaults."""
  parameters = inspect.signature(function).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def advice(key: str, value, entries: Mapping[str, tuple], others: Mapping[str, Callable | tuple]) -> str:
  """The end of the error about an unknown key: who takes it, which key takes its value, or which is spelled like it.

  Args:
    key: that is not among the entries.
    value: that it has.
    entries: {key: (type, default)}, those that are allowed.
    others: functions by other names, of which some may take the key.
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
  """Returns whether `advice` knows what the key is meant for, and does not guess by its spelling."""
  every = [entry if isinstance(entry, tuple) else (entry,) for entry in others.values()]
  taken = any(key in keywords(function) for functions in every for function in functions)
  return taken or aliases.here(key, entries) is not None


def allowed(entries: Mapping[str, tuple]) -> str:
  """Returns the end of an error about a key: which keys there are."""
  return f" Allowed: {some(entries)}." if entries else " It takes no key."


def _words(kind) -> list:
  """What a Literal allows, or one that may be None."""
  return [word for part in (kind, *typing.get_args(kind)) for word in typing.get_args(part)]
