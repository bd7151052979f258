"""The schema of configs: types that a signature may use, choices by name, and how values are checked against them.

Wherever a config makes a choice, it gives a name and arguments: `dict(name="adamw", lr=1e-3)`. The name stands in a
table, and the keyword-only parameters of the function found there are the schema: which arguments exist, their types,
ranges and defaults. Positional parameters are what the run itself supplies. So there is no second list of keys to keep.
"""

import ast
import collections.abc
import dataclasses
import difflib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import ml_collections


class ConfigError(ValueError):
  """A mistake in a config, a flag or the environment that the user can mend: says what, value, allowed, what to do."""


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
Rate = Annotated[float, Range(0, 1, open_high=True)]  # of dropping: 1 would drop everything
Pattern = typing.NewType("Pattern", str)  # a regular expression over a whole parameter path


class Text(str):
  """A value as typed in a flag; the schema decides what it is."""


class Required(str):
  """The place of a value that a recipe leaves to its user; `resolve` asks for it by name."""


required = Required("required: no value yet")


class Duration(str):
  """A length of training: steps ("500", "10k"), epochs ("90ep"), examples ("2Mex") or a share of the run ("5%")."""

  _FORM = re.compile(r"(\d+\.?\d*|\.\d+)([kM]?)(st|ep|ex|%)?")

  def __new__(cls, value):
    match = cls._FORM.fullmatch(str(value).strip())
    if isinstance(value, bool) or not match:
      raise ConfigError(f"{value!r} is not a duration; write steps as 500 or '10k', else '90ep', '2Mex' or '5%'")
    self = super().__new__(cls, str(value).strip())
    number, scale, unit = match.groups()
    self.amount = float(number) * {"": 1, "k": 1_000, "M": 1_000_000}[scale]
    self.unit = unit or "st"
    if self.amount > 2**53:
      raise ConfigError(f"{str(value)[:40]} is longer than any run; allowed: up to 2**53 of a unit")
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


def nearest(word: str, allowed) -> str:
  """' Did you mean ...?' or nothing, and what is allowed: the end of every error about a name."""
  allowed = [str(a) for a in allowed]
  close = difflib.get_close_matches(str(word), allowed, n=1, cutoff=0.5)
  some = ", ".join(allowed[:40]) + (f", ... ({len(allowed)} in all)" if len(allowed) > 40 else "")
  return (f" Did you mean {close[0]!r}?" if close else "") + f" Allowed: {some or 'nothing'}."


def lookup(table: Mapping[str, Callable], name: str, where: str) -> Callable:
  """The function that `name` stands for, or an error with the nearest spelling."""
  if name not in table:
    raise ConfigError(f"{where}.name: unknown name {name!r}.{nearest(name, table)}")
  return table[name]


def bind(choice: Choice, functions: tuple[Callable, ...], where: str) -> Choice:
  """The choice with all arguments checked and all defaults filled in, by the keyword-only parameters of `functions`."""
  schema = {}
  for function in functions:
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
      if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        schema[name] = (hints[name], parameter.default)
  return Choice(choice.name, _fields(choice.args, schema, where, f"{choice.name!r}", inspect.Parameter.empty))


def make(choice: Choice, table: Mapping[str, Callable], where: str, *given):
  """What the function that a choice names gives, for `given`, which the run supplies, and the choice's arguments."""
  function = lookup(table, choice.name, where)
  return function(*given, **bind(choice, (function,), where).args)


def arguments(choice: Choice, function: Callable) -> dict[str, Any]:
  """The arguments of a bound choice that belong to `function`."""
  parameters = inspect.signature(function).parameters.values()
  return {p.name: choice.args[p.name] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _fields(given: Mapping, schema: Mapping, where: str, owner: str, no_default) -> dict[str, Any]:
  """Values of all schema entries, converted; `given` may name nothing else."""
  for key in given:
    if key not in schema:
      raise ConfigError(f"{where}.{key}: unknown key for {owner}, value {plain(given[key])!r}.{nearest(key, schema)}")
  result = {}
  for key, (kind, default) in schema.items():
    absent = isinstance(given[key], Required) if key in given else default is no_default
    if absent:
      raise ConfigError(f"{where}.{key}: missing; {owner} needs it. Add it to the config or as --{where}.{key}=...")
    result[key] = convert(given.get(key, default), kind, f"{where}.{key}")
  return result


def default_of(field):
  return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def convert(value, kind, where):
  """The value as the annotated type `kind`, or a ConfigError that names the place, the value and what is allowed."""
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is Annotated:
    result = convert(value, args[0], where)
    if result is not None and result not in args[1]:
      raise ConfigError(f"{where}: {result!r} is out of range; allowed: {args[1]}")
    return result
  if origin in (types.UnionType, typing.Union):
    said_none = value is None or (isinstance(value, Text) and value.lower() == "none")
    if said_none and type(None) in args:
      return None
    return convert(value, next(a for a in args if a is not type(None)), where)
  if origin is Literal:
    if value not in args:
      raise ConfigError(f"{where}: {value!r} is not a choice.{nearest(value, args)}")
    return str(value) if isinstance(value, str) else value
  if kind is Choice:
    return _choice(value, where)
  if kind is Duration:
    try:
      return Duration(value)
    except ConfigError as error:
      raise ConfigError(f"{where}: {error}") from None
  if dataclasses.is_dataclass(kind):
    return _dataclass(value, kind, where)
  if origin is collections.abc.Mapping:
    if not isinstance(value, Mapping | ml_collections.ConfigDict):
      raise ConfigError(f"{where}: {value!r} is not a set of named entries; write dict(...)")
    return {str(k): convert(v, args[1], f"{where}.{k}") for k, v in value.items()}
  if origin is tuple:
    return _tuple(_literal(value, where), args, where)
  return _scalar(value, kind, where)


def _choice(value, where):
  if isinstance(value, Choice):
    return value
  if not isinstance(value, Mapping | ml_collections.ConfigDict) or not isinstance(value.get("name"), str):
    raise ConfigError(f"{where}: {plain(value)!r} is not a choice; write dict(name='...', ...), or --{where}.name=...")
  # Nested choices keep their own form until their table is known.
  return Choice(str(value["name"]), {k: v for k, v in value.items() if k != "name"})


def _dataclass(value, kind, where):
  if isinstance(value, kind):
    return value
  if not isinstance(value, Mapping | ml_collections.ConfigDict):
    raise ConfigError(
      f"{where}: {value!r} is not a set of named values; keys: {[word(f) for f in dataclasses.fields(kind)]}"
    )
  hints = typing.get_type_hints(kind, include_extras=True)
  schema = {word(f): (hints[f.name], default_of(f)) for f in dataclasses.fields(kind)}
  owner = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
  found = _fields(value, schema, where, owner, dataclasses.MISSING)
  return kind(**{f.name: found[word(f)] for f in dataclasses.fields(kind)})


def _tuple(value, args, where):
  if not isinstance(value, tuple | list):
    raise ConfigError(f"{where}: {value!r} is not a list of values")
  if args[-1] is Ellipsis:
    args = (args[0],) * len(value)
  if len(args) != len(value):
    raise ConfigError(f"{where}: {value!r} has {len(value)} values; it takes {len(args)}")
  return tuple(convert(v, a, f"{where}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True)))


def _literal(value, where):
  if not isinstance(value, Text):
    return value
  try:
    return ast.literal_eval({"true": "True", "false": "False"}.get(value.lower(), str(value)))
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    raise ConfigError(f"{where}: cannot read {str(value)!r} as a number or a list") from None


def _scalar(value, kind, where):
  if kind in (str, Pattern) and isinstance(value, str):
    if kind is Pattern:
      try:
        re.compile(value)
      except re.error as error:
        raise ConfigError(f"{where}: {str(value)!r} is not a regular expression: {error}") from None
    return str(value)
  value = _literal(value, where)
  fits = {
    bool: isinstance(value, bool),
    int: isinstance(value, int) and not isinstance(value, bool),
    float: isinstance(value, int | float) and not isinstance(value, bool),
  }.get(kind, False)
  if kind is float and fits and not abs(value) < 2**1023:
    raise ConfigError(f"{where}: {value!r} is not a finite number")
  if not fits:
    raise ConfigError(f"{where}: {value!r} is a {type(value).__name__}; it takes a {getattr(kind, '__name__', kind)}")
  return kind(value)
