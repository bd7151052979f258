"""Descriptions of annotated types: the types that a config can contain, the expected values, and examples."""

import collections.abc
import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol


class Interval(Protocol):
  """A range of numbers, see `schema.Range`."""

  low: float
  high: float
  open_low: bool


SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
NAMED = {"Choice": "a name with arguments", "Duration": "a length of training", "Pattern": "a regular expression"}
EXAMPLES = {int: "2", float: "0.1", bool: "true", "Duration": "10ep"}


def is_supported(kind: object) -> bool:
  """Returns true if a config can contain values of an annotated type."""
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is Annotated:
    return is_supported(args[0])
  if origin in (types.UnionType, typing.Union):
    return all(part is type(None) or is_supported(part) for part in args)
  if origin is Literal:
    return True
  if origin is tuple:
    return all(part is Ellipsis or is_supported(part) for part in args)
  if origin is collections.abc.Mapping:
    return args[0] is str and is_supported(args[1])
  return kind in SCALARS or _name(kind) in NAMED or dataclasses.is_dataclass(kind)


def describe_type(kind: Any) -> str:
  """Returns a description of a type, such as "an integer from 1 to 1024" or "a number above 0, or none"."""
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is Annotated:
    bounds = "" if isinstance(args[1], Mapping) else _format_bounds(args[1])
    return describe_type(args[0]) + bounds
  if origin in (types.UnionType, typing.Union):
    words = [describe_type(part) for part in args if part is not type(None)] + ["none"] * (type(None) in args)
    return ", or ".join(words)
  if origin is Literal:
    return " or ".join(map(repr, args))
  if origin is tuple:
    return "a list"
  name = _name(kind)
  return SCALARS.get(kind) or NAMED.get(name) or f"a {name}"


def format_example(kind: Any) -> str:
  """Returns an example of a type as it is written in a flag, or "" if this module contains no example."""
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin in (types.UnionType, typing.Union):
    return next((text for part in args if (text := format_example(part))), "")
  if origin is Literal:
    return str(args[0])
  if origin is tuple:
    parts = [format_example(part) for part in args if part is not Ellipsis] * (2 if args[-1] is Ellipsis else 1)
    return f"'({','.join(parts)})'" if all(parts) else ""
  if origin is Annotated and not isinstance(args[1], Mapping):
    plain = format_example(args[0])
    if args[0] not in (int, float) or _contains(args[1], args[0](plain)):
      return plain
    return f"{args[1].low:.10g}" if math.isfinite(args[1].low) else plain
  return EXAMPLES.get(kind) or EXAMPLES.get(getattr(kind, "__name__", ""), "")


def _name(kind: object) -> str:
  """Returns the name of a type. A type of bound choices is named `Choice`."""
  names = [base.__name__ for base in getattr(kind, "__mro__", ())]
  return next((name for name in names if name in NAMED), getattr(kind, "__name__", str(kind)))


def _contains(interval: Interval, value: float) -> bool:
  return value > interval.low if interval.open_low else interval.low <= value <= interval.high


def _format_bounds(interval: Interval) -> str:
  """Returns the range of a number in words, with a leading space."""
  # A bound above a billion only prevents typing errors, so messages omit it.
  low, high = (f"{end:.10g}" if abs(end) < 1e9 else "" for end in (interval.low, interval.high))
  above = "above" if interval.open_low else "from"
  if low and high:
    return f" {above} {low} to {high}"
  if low:
    return f" above {low}" if interval.open_low else f" of at least {low}"
  return f" of at most {high}" if high else ""
