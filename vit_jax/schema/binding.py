"""Schema of configs: the types that a signature may use, choices by name, and the checks of values.

A choice in a config consists of a name and arguments: `dict(name="adamw", lr=1e-3)`. A table maps the name to
functions. The keyword-only parameters of these functions are the schema: they define the arguments with their types,
ranges and defaults. Positional parameters are supplied by the run. If an argument is a choice too, its annotation
contains the table: `crop: Annotated[Choice, CROPS]`. A second list of keys is therefore not needed.
"""

import collections.abc
import dataclasses
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import ml_collections

from vit_jax.schema import aliases, expected, patterns, signatures, suggestions, texts
from vit_jax.schema.bound import Bound
from vit_jax.schema.errors import ConfigError, UnknownKeyError, enter_key, get_current_key, show, suggest_nearest
from vit_jax.schema.signatures import read_keywords
from vit_jax.schema.tables import DerivedTable, Table, Variants, lookup
from vit_jax.schema.texts import Text
from vit_jax.schema.texts import format_amount as format_amount
from vit_jax.schema.types import Choice, Duration, Pattern, Required
from vit_jax.schema.values import get_config_key, get_field_default, to_plain

_Result = TypeVar("_Result")
_GROUP = Mapping | ml_collections.ConfigDict  # the arguments of a choice in a config


def bind(choice: Choice, functions: tuple[Callable[..., object], ...], table: Table | None = None) -> Bound:
  """Checks all arguments of a choice and adds the defaults.

  Args:
    choice: a name with arguments.
    functions: functions that define the arguments by their keyword-only parameters.
    table: the table of the choice. The error for an unknown argument lists the other names of the table that accept it.

  Returns:
    A choice with a value for every argument. Its type is the type of the table's choices, see `DerivedTable`.

  Raises:
    ConfigError: an argument is unknown, missing or invalid.
  """
  entries = {}
  for function in functions:
    hints = typing.get_type_hints(function, include_extras=True)
    entries |= {name: (hints[name], default) for name, default in read_keywords(function).items()}
  kind = table.kind if isinstance(table, DerivedTable) else Bound
  return kind(choice.name, _convert_fields(choice.args, entries, f"{choice.name!r}", inspect.Parameter.empty, table))


def make(choice: Choice, table: Table, *supplied: object) -> Any:
  """Calls the first function that a choice names.

  Args:
    choice: a name with arguments. The arguments are checked first.
    table: the table of the choice.
    *supplied: positional arguments of the function.

  Returns:
    The result of the function.

  Raises:
    ConfigError: the name or an argument is unknown, missing or invalid.

  Example:
    from vit_jax import schema

    def linear(steps: int, *, end: schema.Fraction = 0.0):
      return [1 + (end - 1) * step / steps for step in range(steps + 1)]

    values = schema.make(schema.Choice("linear", {"end": 0.5}), {"linear": linear}, 2)
    assert values == [1.0, 0.75, 0.5]
  """
  functions = lookup(table, choice.name)
  return bind(choice, functions).call(functions[0], *supplied)


def preset(function: Callable[..., _Result], *first: object, **defaults: object) -> Callable[..., _Result]:
  """Returns a function with some arguments filled in and some defaults replaced. It can be used as a schema.

  Args:
    function: a function with annotations.
    *first: values of the first positional parameters.
    **defaults: new defaults of keyword parameters.
  """
  made = functools.partial(function, *first, **defaults)
  # A partial object hides the annotations, and the module in which their names are defined.
  made.__annotations__ = typing.get_type_hints(function, include_extras=True)
  return made


def _convert_fields(
  values: Mapping[str, object], entries: Mapping[str, Any], owner: str, no_default: object, others: Table | None = None
) -> dict[str, Any]:
  """Converts the values of all entries {key: (type, default)}. Every key in `values` must be an entry."""
  for key in values:
    if key not in entries:
      advice = signatures.suggest_fix(key, values[key], entries, others or {})
      problem = f"unknown key for {owner}, value {show(to_plain(values[key]))}."
      bare = problem + signatures.format_allowed(entries)
      # The correct place of the key is known, not only a similar spelling.
      known = signatures.is_certain(key, entries, others or {})
      elsewhere = (
        ""
        if known
        else str(suggestions.suggest_for_key(get_current_key(str(key)), suggestions.format_typed(values[key])))
      )
      raise UnknownKeyError(bare + elsewhere if elsewhere else problem + advice, str(key), "" if known else bare)
  result = {}
  for key, (kind, default) in entries.items():
    absent = isinstance(values[key], Required) if key in values else default is no_default
    if absent:
      raise ConfigError(_describe_missing(get_current_key(key), owner), key)
    value = values.get(key, default)
    if isinstance(default, Choice):
      value = _inherit(value, default, find_table(kind))
    with enter_key(key):
      try:
        result[key] = convert(value, kind)
      # Not for the value itself, because the message already contains the place of an item in a list.
      except _TypeMismatch as error:
        if error.place != get_current_key():
          raise
        raise ConfigError(_describe_mismatch(value, kind)) from None
  return result


def find_table(kind: object) -> Table | None:
  """Returns the table of a choice's type, or None for another type."""
  if typing.get_origin(kind) is not Annotated:
    return None
  table = typing.get_args(kind)[1]
  return table if isinstance(table, Mapping) else None


def _inherit(value: object, default: Choice, table: Table | None) -> Any:
  """Returns the value of a choice with the arguments of the default choice that it keeps.

  Without a name, the value keeps the default's name and all of its arguments. With another name, it keeps arguments if
  the table is a `Variants`.
  """
  if isinstance(value, str) and table is not None and value in table:
    value = {"name": str(value)}
  elif isinstance(value, Choice):
    value = {"name": value.name, **value.args}
  if not isinstance(value, _GROUP):
    return value
  if "name" not in value:
    kept = {"name": default.name, **default.args}
  elif isinstance(table, Variants) and str(value["name"]) in table:
    own = {name for function in lookup(table, str(value["name"])) for name in read_keywords(function)}
    kept = {name: argument for name, argument in default.args.items() if name in own}
  else:
    return value
  inner = {key: _inherit(value[key], kept[key], None) for key in kept if key in value and isinstance(kept[key], Choice)}
  return kept | dict(value) | inner


class _TypeMismatch(ConfigError):
  """An error for a value that does not have the type of its key."""


def _describe_mismatch(value: object, kind: object) -> str:
  """Returns the message for a value of the wrong type: the expected type, the value, and an example."""
  example = aliases.find_example(get_current_key()) or expected.format_example(kind)
  shown = show(str(value) if isinstance(value, Text) else to_plain(value))
  advice = f" Write a value such as {example}" if example else ""
  return f"expected {expected.describe_type(kind)}, got {shown}.{advice}"


def _describe_missing(key: str, owner: str) -> str:
  """Returns the message for a key without a value: the meaning of the value, and how to provide it."""
  if what := aliases.describe_value(key):
    is_choice = key in ("config.model", "config.data", "config.optim")
    return f"missing. Give {what}: --{key}{'.name=NAME' if is_choice else '=...'}"
  return f"missing; {owner} needs it. Add it to the config or as --{key}=..."


def convert(value: Any, kind: object, table: Table | None = None) -> Any:
  """Converts a value to an annotated type.

  Args:
    value: a value of a config, or a `Text` from a flag.
    kind: the type.
    table: the table of names if the type is `Choice` and the table is known.

  Returns:
    The converted value. Choices are bound if their table is known.

  Raises:
    ConfigError: the value does not have the type or is out of range. The message contains the place of the value in the
      config and the allowed values.

  Example:
    from vit_jax import schema

    assert schema.convert(schema.Text("5%"), schema.Fraction) == 0.05
    assert schema.convert((1, 2), tuple[int, ...]) == (1, 2)
  """
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is Annotated:
    return _check_annotated(convert(value, args[0], args[1] if isinstance(args[1], Mapping) else None), args[1])
  if origin in (types.UnionType, typing.Union):
    is_none = value is None or (isinstance(value, Text) and value.lower() == "none")
    if is_none and type(None) in args:
      return None
    words = [word for each in args[1:] if typing.get_origin(each) is Literal for word in typing.get_args(each)]
    if isinstance(value, str) and value in words:  # a word that is allowed as an alternative to values of another type
      return str(value)
    if str in args and int in args and isinstance(value, int):  # a number among allowed words, as a user would type it
      value = str(value)
    return convert(value, next(a for a in args if a is not type(None)), table)
  if origin is Literal:
    if value not in args:
      raise ConfigError(f"{show(value)} is not a choice.{suggest_nearest(value, args)}")
    return str(value) if isinstance(value, str) else value
  if isinstance(kind, type) and issubclass(kind, Choice):
    return _convert_choice(value, table)
  if kind is Duration:
    return Duration(value)
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    return _convert_dataclass(value, kind)
  if origin is collections.abc.Mapping:
    return _convert_mapping(value, args[1])
  if origin is tuple:
    return _convert_tuple(value, args)
  return _convert_scalar(value, kind)


def _check_annotated(value: Any, annotation: Any) -> Any:
  """Checks a converted value against a range, or binds a choice with its table."""
  if value is None:
    return None
  if isinstance(annotation, Mapping):
    return bind(value, lookup(annotation, value.name), annotation)
  if value not in annotation:
    raise ConfigError(f"{show(value)} is out of range. Allowed: {annotation}")
  return value


def _convert_choice(value: Any, table: Table | None) -> Choice:
  if isinstance(value, Choice):
    return value
  if isinstance(value, str) and table is not None and value in table:
    return Choice(str(value), {})
  if not isinstance(value, Mapping | ml_collections.ConfigDict) or not isinstance(value.get("name"), str):
    allowed = isinstance(value, str) and (value.isidentifier() if table is None else value in table)
    name = str(value) if allowed else "..."
    names = "" if allowed or table is None else f".{suggest_nearest(value, table)}"
    flag = texts.format_flag(get_current_key("name"), name if allowed else "NAME")
    raise ConfigError(f"{show(to_plain(value))} is not a choice. Write dict(name={name!r}, ...), or {flag}{names}")
  # Nested choices keep their form until their table is known.
  return Choice(str(value["name"]), {k: v for k, v in value.items() if k != "name"})


def _convert_dataclass(value: object, kind: type) -> Any:
  if isinstance(value, kind):
    return value
  fields = dataclasses.fields(kind)
  # A flag such as --config.group=VALUE creates {"name": VALUE}, see `set_value`.
  named = isinstance(value, _GROUP) and isinstance(value.get("name"), Text)
  if not isinstance(value, _GROUP) or (named and "name" not in map(get_config_key, fields)):
    value = value["name"] if isinstance(value, _GROUP) else value
    names, remark = (
      [get_config_key(field) for field in fields],
      aliases.REMARKS.get(aliases.get_last_word(get_current_key())),
    )
    advice = f". {remark}" if remark else f". Write --{get_current_key(names[0])}=..." if get_current_key() else ""
    raise ConfigError(f"{show(value)} is not a set of named values. Allowed keys: {names}{advice}")
  hints = typing.get_type_hints(kind, include_extras=True)
  entries = {get_config_key(field): (hints[field.name], get_field_default(field)) for field in fields}
  owner = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
  values = _convert_fields(value, entries, owner, dataclasses.MISSING)
  return kind(**{field.name: values[get_config_key(field)] for field in fields})


def _convert_mapping(value: object, kind: object) -> dict[str, Any]:
  if not isinstance(value, Mapping | ml_collections.ConfigDict):
    key = get_current_key("NAME")
    raise ConfigError(
      f"{show(value)} is not a set of named entries. Set an entry with --{key}.name=.... Remove an entry with "
      f"--{key}=default"
    )
  result = {}
  for key, entry in value.items():
    with enter_key(str(key)):
      try:
        result[str(key)] = convert(entry, kind)
      except ConfigError as error:
        if _is_named(entry) or not isinstance(entry, _GROUP):
          raise
        raise ConfigError(error.message + _suggest_entry(str(key), entry, value)) from None
  return result


def _is_named(entry: object) -> bool:
  return isinstance(entry, Choice) or (isinstance(entry, _GROUP) and isinstance(entry.get("name"), str))


def _suggest_entry(key: str, entry: Mapping[str, object], entries: Mapping[str, object]) -> str:
  """Returns a suggestion for an error about an entry without a `name`: the existing entries, and flags for one."""
  names = [str(name) for name, other in entries.items() if _is_named(other)]
  if not names:
    return ""
  near = (difflib.get_close_matches(key, names, 1) or names)[0]
  parent = get_current_key().removesuffix(key)
  words = {name: suggestions.format_typed(each) for name, each in entry.items()}
  flags = " ".join(texts.format_flag(f"{parent}{near}.{name}", word) for name, word in words.items() if word)
  return f". Existing entries: {', '.join(names)}." + (f" Did you mean {flags}?" if flags else "")


def _convert_tuple(value: object, kinds: tuple[object, ...]) -> tuple[Any, ...]:
  try:
    read = texts.parse_literal(value)
  except ConfigError as error:
    if advice := _advise_list(value, kinds[0]):
      raise ConfigError(f"{error.message}{advice}") from None
    raise ConfigError(_describe_list_error(f"expected a list, got {show(str(value))}", kinds)) from None
  if not isinstance(read, tuple | list):
    advice = _advise_list(read, kinds[0])
    raise ConfigError(
      f"{show(read)} is not a list of values{advice}"
      if advice
      else _describe_list_error(f"{show(read)} is not a list of values", kinds)
    )
  value = read
  if kinds[-1] is Ellipsis:
    kinds = (kinds[0],) * len(value)
  if len(kinds) != len(value):
    raise ConfigError(f"{show(value)} has {format_amount(len(value), 'value')}. Expected {len(kinds)}")
  result = []
  for i, (entry, kind) in enumerate(zip(value, kinds, strict=True)):
    with enter_key(f"[{i}]"):
      result.append(convert(entry, kind))
  return tuple(result)


def _describe_list_error(problem: str, kinds: tuple[object, ...]) -> str:
  """Returns the message for a value where a list of numbers, or a list of lists, is expected."""
  example = aliases.find_example(get_current_key()) or expected.format_example(types.GenericAlias(tuple, kinds))
  return f"{problem}. Write a value such as {example}" if example else problem


def _advise_list(value: object, kind: object) -> str:
  """Returns advice to write a single word as a list in a flag, or "" if no list of words is expected."""
  if kind not in (str, Pattern) or not get_current_key():
    return ""
  word = value if isinstance(value, str) and not set(value) & set("'\"[") else "..."
  return f""". Write {texts.format_flag(get_current_key(), f'["{word}"]')}"""


def _convert_scalar(value: Any, kind: Any) -> Any:
  if kind in (str, Pattern) and isinstance(value, str):
    if kind is Pattern:
      patterns.check_pattern(value)
    return str(value)
  try:
    value = texts.parse_number(value) if kind is float else texts.parse_literal(value)
  except ConfigError as error:
    raise _TypeMismatch(error.message) from None
  fits = {
    bool: isinstance(value, bool),
    int: isinstance(value, int) and not isinstance(value, bool),
    float: isinstance(value, int | float) and not isinstance(value, bool),
  }.get(kind, False)
  if kind is float and fits and not abs(value) < 2**1023:
    raise ConfigError(f"{show(value)} is not a finite number")
  if not fits:
    raise _TypeMismatch(f"expected {expected.describe_type(kind)}, got {show(value)}")
  return kind(value)
