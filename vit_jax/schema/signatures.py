"""Keyword-only parameters of functions, and advice for unknown ones."""

import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from vit_jax.schema import aliases, suggestions
from vit_jax.schema.errors import format_names, suggest_nearest

Entries = Mapping[str, tuple[Any, Any]]  # {key: (type, default)}
Functions = Mapping[str, Callable[..., Any] | tuple[Callable[..., Any], ...]]  # by name; the first makes the object


def read_keywords(function: Callable[..., object]) -> dict[str, Any]:
  """Returns the keyword-only parameters of a function with their defaults, as {name: default}."""
  parameters = inspect.signature(function).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def suggest_fix(key: str, value: object, entries: Entries, others: Functions) -> str:
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
    return f" It is supported by {format_names(takers)}.{format_allowed(entries)}"
  if key in (inner := list_nested({name: kind for name, (kind, _) in entries.items()})):
    return f" Did you mean {inner[key]!r}?{format_allowed(entries)}"
  nested = {name: dotted for name, each in functions.items() if (dotted := _find_nested(key, each))}
  if nested:
    return f" {next(iter(nested.values()))!r} is supported by {format_names(nested)}.{format_allowed(entries)}"
  if (here := suggestions.translate_key(key, suggestions.format_typed(value), entries)) is not None:
    return f" Did you mean {here!r}?{format_allowed(entries)}"
  fitting = [name for name, (kind, _) in entries.items() if isinstance(value, str) and value in _list_words(kind)]
  if len(fitting) == 1:
    return f" Did you mean {fitting[0]!r}? Allowed: {format_names(entries)}."
  alike = difflib.get_close_matches(str(key), [*entries, *inner], n=1)
  return (
    f" Did you mean {inner[alike[0]]!r}?{format_allowed(entries)}"
    if alike and alike[0] not in entries
    else suggest_nearest(key, entries)
  )


def list_nested(kinds: Mapping[str, object]) -> dict[str, str]:
  """Returns {argument of a choice: "key.argument"} for the choices among the types of keys.

  Args:
    kinds: {key: type}.
  """
  result = {}
  for name, kind in kinds.items():
    if typing.get_origin(kind) is Annotated and isinstance(table := typing.get_args(kind)[1], Mapping):
      for entry in table.values():
        for function in entry if isinstance(entry, tuple) else (entry,):
          result |= {inner: f"{name}.{inner}" for inner in read_keywords(function) if inner not in result}
  return result


def _find_nested(key: str, functions: tuple[Callable[..., object], ...]) -> str | None:
  """Returns "group.key" if a choice among the arguments of the functions has the key."""
  for function in functions:
    hints = typing.get_type_hints(function, include_extras=True)
    if dotted := list_nested({name: hints[name] for name in read_keywords(function)}).get(key):
      return dotted
  return None


def is_certain(key: str, entries: Entries, others: Functions) -> bool:
  """Returns true if `suggest_fix` derives its advice from the tables, and false if it compares spellings.

  Args:
    key: the key, which is not among the entries.
    entries: {key: (type, default)} of the allowed keys.
    others: {name: functions} of the other choices, which may accept the key.
  """
  every = [entry if isinstance(entry, tuple) else (entry,) for entry in others.values()]
  taken = any(key in read_keywords(function) for functions in every for function in functions)
  taken = taken or key in list_nested({name: kind for name, (kind, _) in entries.items()})
  taken = taken or any(_find_nested(key, functions) for functions in every)
  return taken or aliases.find_equivalent(key, entries) is not None


def format_allowed(entries: Mapping[str, tuple[object, object]]) -> str:
  """Returns the end of an error about a key: the list of the allowed keys."""
  return f" Allowed: {format_names(entries)}." if entries else " No keys are allowed here."


def _list_words(kind: object) -> list[Any]:
  """Returns the allowed values of a Literal, or of an optional Literal."""
  return [word for part in (kind, *typing.get_args(kind)) for word in typing.get_args(part)]
