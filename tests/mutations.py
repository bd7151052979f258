"""Random mistakes in configs: wrong keys, types, ranges and nesting. For tests and `tests.campaigns.configs`."""

import json
import random
import re
from collections.abc import Callable, Iterator

import ml_collections

from vit_jax import config, schema
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.training import build, experiment

# Flag values of every type, for every key.
VALUES = (
  "-1", "0", "0.5", "1e30", "nan", "none", "true", "nonsense", "[]", "(1,2)", "{}", "''", "10ep", "3", "[('x', 1)]",
)  # fmt: skip
# Malicious values, and values that only Python files can contain.
WORSE = (
  "inf", "-0.0", "1" * 30, "9" * 5000, "1e400", "0x10", "1_000", "1000000", "default", "(" * 300, "[" * 90 + "]" * 90,
  "x" * 100_000, "\x1b[2Jred", "a\nb", "\u202eltr", "ü" * 50, "\ud800", "(a+)+b", "['(a+)+b']", "[('(.*)*k', 1)]",
  "[('.*', nan)]", "1+1j", "b'x'", "{'name': 'adamw'}", "dict(name='sgd')", "5%", "-5%", "1e9ep", "99999999Mex",
  "train[:200%]", "train[5:2]", "../../etc/passwd", "gs://nowhere/x", "%s%n", "{0.__class__}",
)  # fmt: skip
OBJECTS = (
  None, True, -1, 0, 2**40, 2**63, 10**5000, 0.5, float("nan"), float("inf"), -0.0, "", "x", b"x", (), [], {},
  [[]], {1: 2}, {"": 1},
  {"name": "x"}, {"name": 3}, {"name": "none"}, (1, 2, 3), "1" * 5000, object, len, 1j, {1, 2}, range(3), [None],
)  # fmt: skip


def leaves(value, path: str = "") -> Iterator[tuple[str, object]]:
  """Yields (dotted key, value) of nested dictionaries."""
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from leaves(inner, f"{path}.{key}" if path else key)
  else:
    yield path, value


def misspelled(key: str) -> str:
  """Returns the key with another last letter."""
  return key[:-1] + ("x" if key[-1] != "x" else "y")


def keys(run: config.Run) -> dict[str, object]:
  """Returns all keys of a run with their values, and all groups of keys with None."""
  known = dict(leaves(json.loads(config.dumps(run))))
  return dict.fromkeys(sorted({key.rpartition(".")[0] for key in known} - {""})) | known


def near(draw: random.Random, value) -> object:
  """Returns another value of the same type, which may be valid."""
  match value:
    case bool():
      return not value
    case int() | float():
      return draw.choice((0, 1, value + 1, 2 * value, value / 2, value // 2, -value, 1000 * value))
    case str():
      return draw.choice((value, value.upper(), value[:-1], f"{value}x", "none", "train", "cosine", "1ep", "resize"))
    case list():
      return draw.choice((value[:-1], [*value, *value], value[::-1], tuple(value)))
  return draw.choice((1, 2, 0.1, "1", True))


def mutation(draw: random.Random, known: dict[str, object]) -> tuple[str, object]:
  """Returns a key, which may be wrong, and a text for a flag or an object for a file."""
  key = draw.choice(list(known))
  if draw.randrange(2):
    return key, near(draw, known[key])
  match draw.randrange(8):
    case 0:
      key = misspelled(key)
    case 1:
      key += draw.choice((".", ".x", ".name", "..y", ".name.name", ".\x1b[2J", "." + "z" * 1000))
    case 2:
      key = draw.choice((key.rpartition(".")[2], "x", "", "name", "model", key.upper(), f"{key} "))
  value = draw.choice((draw.choice(VALUES), draw.choice(WORSE), draw.choice(OBJECTS)))
  return key, value


def apply(edited: ml_collections.ConfigDict, key: str, value) -> None:
  """Changes a config like a flag if the value is a text, else like a Python file."""
  if isinstance(value, str):
    flags.set_value(edited, key, value)
    return
  *parents, last = key.split(".")
  for name in parents:
    inner = edited.get(name)
    if not isinstance(inner, ml_collections.ConfigDict):
      raise schema.ConfigError("there is no such group", f"config.{key}")
    edited = inner
  try:
    edited[last] = value
  except OverflowError as error:  # ml_collections raises it; in a Python file, the line would be reported
    raise schema.ConfigError(str(error), f"config.{key}") from error


def opener() -> Callable:
  """Returns a cached `catalog.open_split`. Opening a split takes longer than the rest of a build."""
  opened = {}

  def open_split(choice, split):
    # A split that cannot be opened is tried each time.
    key = json.dumps(schema.to_plain(choice.select(catalog.READERS[choice.name])))
    if (choice.name, key, split) not in opened:
      opened[choice.name, key, split] = catalog.open_split(choice, split)
    return opened[choice.name, key, split]

  return open_split


# Keys with errors that another key alone may cause.
DEPENDENT = {
  "optim.warmup": ("total",),  # the run must be longer than the warm-up
  "model": ("data.image_size",),  # patches or windows must divide the image size
}


def says_where(error: schema.ConfigError, changed: list[str]) -> bool:
  """Returns whether an error starts with a changed key, its group or a part of it, or names the whole key."""
  message, keys = str(error), [schema.errors.make_printable(key) for key in changed]
  # Messages truncate long keys, and keys have no numeric parts.
  start = re.match(r"(?:(?:--)?config\b)?\.?(.*?)(?:\.\.\. \(.*|\[\d.*)?: ", message, re.DOTALL)
  place = start[1] if start else "nowhere"
  dependent = [of for of, on in DEPENDENT.items() if {*on} & {*changed}]
  # Another name may not accept the other keys of its group.
  near = [f"{key.removesuffix('.name')[:100]}." for key in keys + dependent]
  if any(key.startswith(f"{place[:100]}.") or f"{place[:100]}.".startswith(key) for key in near):
    return True
  return any(key and re.search(rf"config\.{re.escape(key)}(?!\w)", message) for key in keys)


def wrong(error: BaseException, changed: list[str]) -> str | None:
  """Returns the problem of an error that changed keys caused, or None if it is short and names the place."""
  if not isinstance(error, schema.ConfigError):
    return f"{type(error).__name__}: {str(error)[:300]}"
  message = str(error)
  if not says_where(error, changed):
    return f"the message does not say where: {message[:300]}"
  if len(message) > 2500 or message.count("\n") > 3 or "\x1b" in message:
    return f"the message is not fit to be read: {message[:300]!r}"
  return None


def built(edited: ml_collections.ConfigDict, devices, open_split: Callable) -> experiment.Experiment:
  """Builds the run of an edited config without compiling a program."""
  return build.build(build.complete(config.resolve(edited)), devices, open_split)
