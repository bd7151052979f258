"""The schema of configs: types that a signature may use, choices by name, and how values are checked against them.

Wherever a config makes a choice, it gives a name and arguments: `dict(name="adamw", lr=1e-3)`. The name stands in a
table, and the keyword-only parameters of the functions that the table has for it are the schema: which arguments exist,
their types, ranges and defaults. Positional parameters are what the run itself supplies. An argument that is a choice
again names its table in the annotation, `crop: Annotated[Choice, CROPS]`. So there is no second list of keys to keep.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import ml_collections

from vit_jax.schema import patterns, signatures, texts
from vit_jax.schema.errors import ConfigError, UnknownKeyError, at, nearest, place, show
from vit_jax.schema.signatures import keywords
from vit_jax.schema.texts import Text
from vit_jax.schema.texts import amount as amount

# Types that a signature may use.


class Range(NamedTuple):
  """Closed interval, or open at an end: annotation for numbers, `Annotated[float, Range(0, 1)]`."""

  low: float = -math.inf
  high: float = math.inf
  open_low: bool = False
  open_high: bool = False

  def __contains__(self, value):
    above = value > self.low if self.open_low else value >= self.low
    return above and (value < self.high if self.open_high else value <= self.high)

  def __str__(self):
    return f"{'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


Count = Annotated[int, Range(1, 2**40)]
Positive = Annotated[float, Range(0, math.inf, open_low=True, open_high=True)]
NonNegative = Annotated[float, Range(0, math.inf, open_high=True)]
Fraction = Annotated[float, Range(0, 1)]
Probability = Annotated[float, Range(0, 1, open_high=True)]  # of dropping: 1 would drop everything
Momentum = Annotated[float, Range(0, 1, open_high=True)]  # of a moving average: 1 would never move
Pattern = typing.NewType("Pattern", str)  # a regular expression over a whole parameter path, see `patterns`


class Required(str):
  """The place of a value that a recipe leaves to its user; `resolve` asks for it by name."""


required = Required("required: no value yet")


class Duration(str):
  """A length of training: steps ("500", "10k"), epochs ("90ep"), examples ("2Mex") or a share of the run ("5%")."""

  _FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([kM]?)(st|ep|ex|%)?")

  def __new__(cls, value):
    text = value.strip() if isinstance(value, str) else show(value)
    match = cls._FORM.fullmatch(text)
    if isinstance(value, bool) or not match:
      raise ConfigError(f"{show(value)} is not a duration; write steps as 500 or '10k', else '90ep', '2Mex' or '5%'")
    self = super().__new__(cls, text)
    number, scale, unit = match.groups()
    self.amount = float(number) * {"": 1, "k": 1_000, "M": 1_000_000}[scale]
    self.unit = unit or "st"
    if self.amount > 2**53:
      raise ConfigError(f"{show(text)} is longer than any run; allowed: up to 2**53 of a unit")
    return self

  def steps(self, batch: int, examples: int, total: int | None = None) -> int:
    """Nearest number of steps of `batch` examples, at least one unless the duration is zero.

    `examples` is the size of one epoch, `total` the steps of the whole run (needed for a percentage).
    """
    if self.unit == "%" and total is None:
      raise ConfigError(f"{self!s} of what? The length of the run itself takes steps, 'ep' or 'ex'")
    scale = {"st": 1, "ep": examples / batch, "ex": 1 / batch, "%": (total or 0) / 100}[self.unit]
    return max(round(self.amount * scale), 1) if self.amount else 0


@dataclasses.dataclass(frozen=True)
class Choice:
  """A name from a table, and keyword arguments for the function it names."""

  name: str
  args: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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


# Names and arguments, checked against tables and signatures.


Table = Mapping[str, Callable | tuple[Callable, ...]]  # by name; the first of several makes what is chosen


def lookup(table: Table, name: str) -> tuple[Callable, ...]:
  """The functions that `name` stands for, or an error with the nearest spelling."""
  if name not in table:
    raise ConfigError(f"unknown name {show(name)}.{nearest(name, table)}", "name")
  return table[name] if isinstance(table[name], tuple) else (table[name],)


def bind(choice: Choice, functions: tuple[Callable, ...], table: Table | None = None) -> Choice:
  """The choice with all arguments checked and all defaults filled in, by the keyword-only parameters of `functions`.

  Which other name of the `table` takes an argument that this one does not is part of the error.
  """
  entries = {}
  for function in functions:
    hints = typing.get_type_hints(function, include_extras=True)
    entries |= {name: (hints[name], default) for name, default in keywords(function).items()}
  return Choice(choice.name, _fields(choice.args, entries, f"{choice.name!r}", inspect.Parameter.empty, table))


def make(choice: Choice, table: Table, *supplied):
  """What the first function that a choice names makes of what the run supplies and of the choice's arguments."""
  functions = lookup(table, choice.name)
  return functions[0](*supplied, **arguments(bind(choice, functions), functions[0]))


def arguments(choice: Choice, *functions: Callable) -> dict[str, Any]:
  """The arguments of a bound choice that belong to the functions."""
  return {name: choice.args[name] for function in functions for name in keywords(function)}


def preset(function: Callable, *first, **defaults) -> Callable:
  """The function with its first arguments filled in and some defaults replaced: as a schema it is like any other."""
  made = functools.partial(function, *first, **defaults)
  # A partial hides them, and the module that their names are of.
  made.__annotations__ = typing.get_type_hints(function, include_extras=True)
  return made


def _fields(values: Mapping, entries: Mapping, owner: str, no_default, others: Table | None = None) -> dict[str, Any]:
  """Values of all entries {key: (type, default)}, converted; `values` may name nothing else."""
  for key in values:
    if key not in entries:
      advice = signatures.advice(key, values[key], entries, others or {})
      raise UnknownKeyError(f"unknown key for {owner}, value {show(plain(values[key]))}.{advice}", str(key))
  result = {}
  for key, (kind, default) in entries.items():
    absent = isinstance(values[key], Required) if key in values else default is no_default
    if absent:
      raise ConfigError(f"missing; {owner} needs it. Add it to the config or as --{place(key)}=...", key)
    value = values.get(key, default)
    if isinstance(default, Choice) and isinstance(value, Mapping | ml_collections.ConfigDict) and "name" not in value:
      value = {"name": default.name, **default.args, **value}  # other arguments of what is the default
    with at(key):
      result[key] = convert(value, kind)
  return result


def default_of(field):
  return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def convert(value, kind, table: Table | None = None):
  """The value as the annotated type `kind`, or a ConfigError that names the place, the value and what is allowed.

  `table` is that of a choice, where it is known.
  """
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is Annotated:
    return _annotated(convert(value, args[0], args[1] if isinstance(args[1], Mapping) else None), args[1])
  if origin in (types.UnionType, typing.Union):
    is_none = value is None or (isinstance(value, Text) and value.lower() == "none")
    if is_none and type(None) in args:
      return None
    words = [word for each in args[1:] if typing.get_origin(each) is Literal for word in typing.get_args(each)]
    if isinstance(value, str) and value in words:  # a word beside values of another kind
      return str(value)
    if str in args and int in args and isinstance(value, int):  # a number among words, as it would be typed
      value = str(value)
    return convert(value, next(a for a in args if a is not type(None)), table)
  if origin is Literal:
    if value not in args:
      raise ConfigError(f"{show(value)} is not a choice.{nearest(value, args)}")
    return str(value) if isinstance(value, str) else value
  if kind is Choice:
    return _choice(value, table)
  if kind is Duration:
    return Duration(value)
  if dataclasses.is_dataclass(kind):
    return _dataclass(value, kind)
  if origin is collections.abc.Mapping:
    return _mapping(value, args[1])
  if origin is tuple:
    return _tuple(value, args)
  return _scalar(value, kind)


def _annotated(value, annotation):
  """The converted value, checked against a range, or bound by a table of choices."""
  if value is None:
    return None
  if isinstance(annotation, Mapping):
    return bind(value, lookup(annotation, value.name), annotation)
  if value not in annotation:
    raise ConfigError(f"{show(value)} is out of range; allowed: {annotation}")
  return value


def _choice(value, table):
  if isinstance(value, Choice):
    return value
  if not isinstance(value, Mapping | ml_collections.ConfigDict) or not isinstance(value.get("name"), str):
    allowed = isinstance(value, str) and (value.isidentifier() if table is None else value in table)
    name = str(value) if allowed else "..."
    names = "" if allowed or table is None else f".{nearest(value, table)}"
    flag = f"--{place('name')}={name if allowed else 'NAME'}"
    raise ConfigError(f"{show(plain(value))} is not a choice; write dict(name={name!r}, ...), or {flag}{names}")
  # Nested choices keep their own form until their table is known.
  return Choice(str(value["name"]), {k: v for k, v in value.items() if k != "name"})


def _dataclass(value, kind):
  if isinstance(value, kind):
    return value
  fields = dataclasses.fields(kind)
  if not isinstance(value, Mapping | ml_collections.ConfigDict):
    raise ConfigError(f"{show(value)} is not a set of named values; keys: {[word(field) for field in fields]}")
  hints = typing.get_type_hints(kind, include_extras=True)
  entries = {word(field): (hints[field.name], default_of(field)) for field in fields}
  owner = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
  values = _fields(value, entries, owner, dataclasses.MISSING)
  return kind(**{field.name: values[word(field)] for field in fields})


def _mapping(value, kind):
  if not isinstance(value, Mapping | ml_collections.ConfigDict):
    raise ConfigError(f"{show(value)} is not a set of named entries; write dict(...)")
  result = {}
  for key, entry in value.items():
    with at(str(key)):
      result[str(key)] = convert(entry, kind)
  return result


def _tuple(value, kinds):
  try:
    read = texts.literal(value)
  except ConfigError as error:
    raise ConfigError(f"{error.message}{_as_list(value, kinds[0])}") from None
  if not isinstance(read, tuple | list):
    raise ConfigError(f"{show(read)} is not a list of values{_as_list(read, kinds[0])}")
  value = read
  if kinds[-1] is Ellipsis:
    kinds = (kinds[0],) * len(value)
  if len(kinds) != len(value):
    raise ConfigError(f"{show(value)} has {len(value)} values; it takes {len(kinds)}")
  result = []
  for i, (entry, kind) in enumerate(zip(value, kinds, strict=True)):
    with at(f"[{i}]"):
      result.append(convert(entry, kind))
  return tuple(result)


def _as_list(value, kind):
  """How a list of words with this one is written in a flag, where words are wanted."""
  if kind not in (str, Pattern) or not place():
    return ""
  word = value if isinstance(value, str) and not set(value) & set("'\"[") else "..."
  return f"""; write --{place()}='["{word}"]'"""


def _scalar(value, kind):
  if kind in (str, Pattern) and isinstance(value, str):
    if kind is Pattern:
      patterns.check(value)
    return str(value)
  value = texts.number(value) if kind is float else texts.literal(value)
  fits = {
    bool: isinstance(value, bool),
    int: isinstance(value, int) and not isinstance(value, bool),
    float: isinstance(value, int | float) and not isinstance(value, bool),
  }.get(kind, False)
  if kind is float and fits and not abs(value) < 2**1023:
    raise ConfigError(f"{show(value)} is not a finite number")
  if not fits:
    raise ConfigError(f"{show(value)} is a {type(value).__name__}; it takes a {getattr(kind, '__name__', kind)}")
  return kind(value)
