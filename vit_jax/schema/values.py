"""Values of a config as plain data, and the fields of its dataclasses."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from vit_jax.schema.types import Choice


def get_config_key(field: dataclasses.Field[Any]) -> str:
  """Returns the key of a field in a config. The field `from_` has the key `from`, which is a keyword of Python."""
  return field.name.rstrip("_")


def to_plain(value: object) -> Any:
  """Converts a Run or one of its values to dicts, lists and scalars, for JSON and for comparison."""
  match value:
    case Choice():
      return {"name": value.name} | {k: to_plain(v) for k, v in value.args.items()}
    case _ if dataclasses.is_dataclass(value):
      return {get_config_key(f): to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    case Mapping() | ml_collections.ConfigDict():
      return {k: to_plain(v) for k, v in value.items()}
    case tuple() | list():
      return [to_plain(v) for v in value]
    case str():
      return str(value)
  return value


def list_choices(value: object) -> set[str]:
  """Returns the names of all choices in a Run or in one of its values."""
  match value:
    case Choice():
      return {value.name}.union(*map(list_choices, value.args.values()))
    case _ if dataclasses.is_dataclass(value):
      return set().union(*(list_choices(getattr(value, field.name)) for field in dataclasses.fields(value)))
    case Mapping():
      return set().union(*map(list_choices, value.values()))
    case tuple() | list():
      return set().union(*map(list_choices, value))
  return set()


def convert_to_group(value: Any) -> dict[str, Any]:
  """Returns a choice as a dictionary. A name alone is a choice without arguments.

  Args:
    value: a choice, its name, or its arguments.
  """
  if isinstance(value, Choice):
    return {"name": value.name, **value.args}
  return {"name": value} if isinstance(value, str) else dict(value)


def flatten_choices(arguments: Mapping[str, Any]) -> dict[str, Any]:
  """Returns arguments with dotted keys for the arguments of choices: {"norm": "layer", "norm.eps": 1e-6}.

  Args:
    arguments: arguments by key, possibly choices. Choices among the arguments of a choice are kept as values.
  """
  result = {}
  for key, value in arguments.items():
    if isinstance(value, Choice):
      result |= {key: value.name} | {f"{key}.{inner}": one for inner, one in value.args.items()}
    else:
      result[key] = value
  return result


def nest_choices(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Inverts `flatten_choices`. A choice without a name among the settings keeps its default name.

  Args:
    settings: arguments with dotted keys.
  """
  result = {key: value for key, value in settings.items() if "." not in key}
  for key, value in settings.items():
    group, dot, inner = key.partition(".")
    if dot:
      before = result.get(group, {})
      result[group] = ({"name": before} if isinstance(before, str) else before) | {inner: value}
  return result


def get_field_default(field: dataclasses.Field[Any]) -> Any:
  """Returns the default of a dataclass field, or MISSING if the field has no default."""
  return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
