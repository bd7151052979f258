"""Values of a config as plain data, and the fields of its dataclasses."""

import dataclasses
from collections.abc import Mapping

import ml_collections

from vit_jax.schema.kinds import Choice


def config_key(field: dataclasses.Field) -> str:
  """Returns the key of a field in a config. The field `from_` has the key `from`, which is a keyword of Python."""
  return field.name.rstrip("_")


def to_plain(value):
  """Converts a Run or one of its values to dicts, lists and scalars, for JSON and for comparison."""
  match value:
    case Choice():
      return {"name": value.name} | {k: to_plain(v) for k, v in value.args.items()}
    case _ if dataclasses.is_dataclass(value):
      return {config_key(f): to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    case Mapping() | ml_collections.ConfigDict():
      return {k: to_plain(v) for k, v in value.items()}
    case tuple() | list():
      return [to_plain(v) for v in value]
    case str():
      return str(value)
  return value


def list_choices(value) -> set[str]:
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


def field_default(field):
  """Returns the default of a dataclass field, or MISSING if the field has no default."""
  return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
