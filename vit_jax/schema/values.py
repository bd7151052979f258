"""Values of a config as plain data, and the fields of its dataclasses."""

import dataclasses
from collections.abc import Mapping

import ml_collections

from vit_jax.schema.kinds import Choice


def word(field: dataclasses.Field) -> str:
  """The word for a field in a config: `from_` is `from`, which Python keeps for itself."""
  return field.name.rstrip("_")


def plain(value):
  """Dicts, lists and scalars of a Run or a part of it, ready for JSON and for comparison."""
  match value:
    case Choice():
      return {"name": value.name} | {k: plain(v) for k, v in value.args.items()}
    case _ if dataclasses.is_dataclass(value):
      return {word(f): plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    case Mapping() | ml_collections.ConfigDict():
      return {k: plain(v) for k, v in value.items()}
    case tuple() | list():
      return [plain(v) for v in value]
    case str():
      return str(value)
  return value


def choices(value) -> set[str]:
  """Returns the names of all choices in a Run or a part of it."""
  match value:
    case Choice():
      return {value.name}.union(*map(choices, value.args.values()))
    case _ if dataclasses.is_dataclass(value):
      return set().union(*(choices(getattr(value, field.name)) for field in dataclasses.fields(value)))
    case Mapping():
      return set().union(*map(choices, value.values()))
    case tuple() | list():
      return set().union(*map(choices, value))
  return set()


def default_of(field):
  return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
