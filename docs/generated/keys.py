"""Keys of configs: their types, defaults and descriptions, read from functions and dataclasses."""

import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping

from docs.generated.docstrings import escape, is_shipped, read_summary, unwrap
from vit_jax import schema
from vit_jax.schema import expected

GROUP = "those of its keys"
Choices = Mapping[str, Callable[..., object] | tuple[Callable[..., object], ...]]


class Key(typing.NamedTuple):
  """A key of a config, as the reference describes it.

  Attributes:
    name: the key.
    type: type and range in words.
    default: the default, or "required".
    text: its entry in the docstring.
  """

  name: str
  type: str
  default: str
  text: str


def format_chapters(chapters: Mapping[str, Choices]) -> str:
  """Returns a chapter for each table of choices, with the keys of each name, and once the keys that all names share.

  Args:
    chapters: {title: {name: function, or functions}}.
  """
  parts = []
  for title, choices in chapters.items():
    functions = {name: entry if isinstance(entry, tuple) else (entry,) for name, entry in choices.items()}
    functions = {name: each for name, each in functions.items() if is_shipped(each[0])}
    shared = list(next(iter(functions.values()))[1:]) if len(functions) > 1 else []
    parts.append(f"## {title}\n")
    for name, each in functions.items():
      own = each[: len(each) - len(shared)]
      parts += [f"### {name}\n", f"{read_summary(own[0])}\n", list_keys(*filter(schema.read_keywords, own))]
    if shared:
      parts += ["### Keys of all of these\n", list_keys(*shared)]
  return "\n".join(parts)


def read_keys(*functions: Callable[..., object]) -> list[Key]:
  """Returns the keys that functions or dataclasses define by keyword-only parameters or fields."""
  found = {}
  for function in functions:
    source = unwrap(function)
    hints, texts = typing.get_type_hints(source, include_extras=True), read_argument_texts(source)
    if dataclasses.is_dataclass(source) and not schema.read_keywords(source):
      defaults = {field.name: schema.get_field_default(field) for field in dataclasses.fields(source)}
    else:
      defaults = schema.read_keywords(source)
    for name, default in defaults.items():
      shown = "required" if default in (inspect.Parameter.empty, dataclasses.MISSING) else format_value(default)
      text = texts.get(name, "")
      found.setdefault(name, Key(name.rstrip("_"), describe_type(hints[name]), shown, text))
  return list(found.values())


def describe_type(kind: object) -> str:
  """Returns the type of a key with its range, in words."""
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is typing.Annotated and isinstance(args[1], Mapping):
    return describe_type(args[0])
  if origin is tuple:
    inner = [describe_type(part) for part in args if part is not Ellipsis]
    return f"a list, each {inner[0]}" if args[-1] is Ellipsis else f"a list of {', '.join(inner)}"
  if isinstance(origin, type) and issubclass(origin, Mapping):
    return f"named entries, each {describe_type(args[1])}"
  if origin is typing.Literal:
    words = [f"`{word}`" for word in args]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
  if len(args) > 1 and type(None) in args and origin is not typing.Annotated:
    return ", or ".join([*(describe_type(part) for part in args if part is not type(None)), "none"])
  if isinstance(kind, type) and dataclasses.is_dataclass(kind) and not issubclass(kind, schema.Choice):
    return "a group of keys"
  excluded = origin is typing.Annotated and args[1].open_high and math.isfinite(args[1].high)
  below = f", below {args[1].high:g}" if excluded else ""
  return expected.describe_type(kind).replace("a name with arguments", "a choice") + below


def format_value(default: object) -> str:
  """Returns a default as a config contains it."""
  if isinstance(default, schema.Choice):
    return ", ".join([default.name, *(f"{key}={format_value(each)}" for key, each in default.args.items())])
  if dataclasses.is_dataclass(default):
    return GROUP
  if isinstance(default, Mapping):
    return ", ".join(f"{key}: {format_value(each)}" for key, each in default.items())
  if default is None:
    return "none"
  return str(default).lower() if isinstance(default, bool) else str(default)


def read_argument_texts(function: Callable[..., object]) -> dict[str, str]:
  """Returns {argument: its text} of the `Args` of a docstring. A class inherits the arguments of its bases."""
  sources = function.__mro__[-2::-1] if isinstance(function, type) else (function,)
  found = []
  for source in sources:
    block = re.search(r"^Args:\n((?:(?: .*)?\n)+)", f"{inspect.getdoc(source) or ''}\n", re.M)
    found += re.findall(r"^  \*{0,2}(\w+): (.*(?:\n    .*)*)", block[1] if block else "", re.M)
  return {name: re.sub(r"\s+", " ", text[:1].upper() + text[1:]) for name, text in found}


def list_keys(*functions: Callable[..., object]) -> str:
  """Returns a list of the keys that functions or dataclasses define, one item each."""
  items = [
    f"- `{key.name}`: {escape(key.type)}; default: {format_code(key.default)}. {escape(key.text)}"
    for key in read_keys(*functions)
  ]
  items = [item.replace("; default: `required`.", "; required.") for item in items]
  return "".join(f"{item.rstrip()}\n" for item in items) or "This name has no keys.\n"


def format_code(text: str) -> str:
  """Returns a default as inline code. An empty text becomes the word `empty`."""
  return text if text == GROUP else f"`{text}`" if text else "empty"
