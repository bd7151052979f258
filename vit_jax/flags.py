"""From the command line to an editable config: files, `--config.KEY=VALUE`, and what is wrong with either."""

import ast
import pathlib
import re
import types
from collections.abc import Mapping, Sequence

import ml_collections

from vit_jax import extensions
from vit_jax.schema import ConfigError, Text, nearest, places, show, suggestions, texts

DEPTH = 16  # words of a key; those that there are have up to 7
_ENTRY = re.compile(r"([^\[\]]+)\[([0-9]{1,4})\]")  # "parts[0]", an entry of a list


def module(path: str) -> tuple[types.ModuleType, str]:
  """The module of a config file given as `path` or `path:argument`, and the argument ("" where there is none)."""
  path, argument = split(path)
  file = pathlib.Path(path)
  if not file.is_file():
    raise ConfigError(_not_a_file(path))
  if file.suffix != ".py":
    raise ConfigError(f"--config: {path!r} is not a Python file. A config ends in .py, such as configs/digits.py")
  if not _may_define(file, "get_config"):
    raise ConfigError(
      f"--config: {path} defines no get_config(), so that it is no config and was not run. See configs/digits.py"
    )
  loaded = extensions.run_file(file)
  if not callable(getattr(loaded, "get_config", None)):
    raise ConfigError(f"--config: {path} defines no get_config(). See configs/digits.py")
  return loaded, argument


def split(text: str) -> tuple[str, str]:
  """Returns (file, argument) of a --config, `FILE` or `FILE:ARGUMENT`; an argument that is not given is "".

  The names of directories may contain a colon: the file ends at the first colon before which there is a file, or else
  at the first `.py:`.
  """
  colons = [position for position, letter in enumerate(text) if letter == ":"]
  for position in [*colons, len(text)]:
    if pathlib.Path(text[:position]).is_file():
      return text[:position], text[position + 1 :]
  first = text.find(".py:")
  position = first + 3 if first >= 0 else colons[0] if colons else len(text)
  return text[:position], text[position + 1 :]


def _not_a_file(path):
  """Returns the message for a --config that is no file: the nearest file, or where recipes are."""
  file = pathlib.Path(path)
  if file.is_dir():
    advice = " A run that exists is given as --workdir" if (file / "config.json").exists() else ""
    kind = f"{show(path)} is a folder, not a file.{advice or ' Name a Python file in it'}"
  else:
    kind = f"no file {show(path)}"
  beside = [str(other) for other in sorted(file.parent.glob("*.py")) if other.is_file()]
  known = _recipes()
  wanted = file.name.removesuffix(".py")
  named = [other for other in [*beside, *known] if wanted and pathlib.Path(other).stem == wanted]
  if named:
    return f"--config: {kind}. Did you mean {show(named[0])}?"
  if near := nearest(path, beside) or nearest(path, known):
    return f"--config: {kind}.{near}"
  return (
    f"--config: {kind}. The recipes are in the folder configs/ of the repository, which pip does not install: run the "
    "command in a clone of it, or write a file that defines get_config(), see docs/extend.md"
  )


def _recipes():
  """Returns the shipped config files, relative to the current folder if they are in it; none outside of a clone."""
  folder = pathlib.Path(__file__).parent.parent / "configs"
  here = pathlib.Path.cwd()
  files = sorted(folder.rglob("*.py")) if (folder / "digits.py").is_file() else []
  return [str(file.relative_to(here) if file.is_relative_to(here) else file) for file in files]


def _may_define(file, name):
  """Returns whether a Python file defines, assigns or imports a name; also True if it cannot be parsed."""
  try:
    tree = ast.parse(file.read_bytes())
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return True  # running it reports the mistake
  return any(
    (isinstance(node, ast.FunctionDef) and node.name == name)
    or (isinstance(node, ast.Name) and node.id == name)
    or (isinstance(node, ast.alias) and name in (node.asname, node.name))
    or (isinstance(node, ast.alias) and node.name == "*")
    for node in ast.walk(tree)
  )


def load(path: str, overrides: Mapping[str, str] | None = None) -> ml_collections.ConfigDict:
  """The editable config of a file, `configs/digits.py` or `configs/folder.py:ViT-S/16`, edited by flags {key: text}."""
  loaded, argument = module(path)
  config = extensions.called(path, loaded.get_config, *([argument] if argument else []))
  if not isinstance(config, ml_collections.ConfigDict):
    advice = ". Return it from sweep(), and use python -m vit_jax.sweep" if type(config).__name__ == "Sweep" else ""
    raise ConfigError(f"--config: get_config() of {path} returned a {type(config).__name__}, not recipe(...){advice}")
  for key, text in (overrides or {}).items():
    edit(config, key, text)
  return config


def edit(config: ml_collections.ConfigDict, key: str, text: str) -> None:
  """Sets `--config.optim.lr=1e-3` (key "optim.lr") in place.

  Args:
    config: the config to change.
    key: words with dots between them. A word with a position, "data.parts[0].weight", is an entry of a list.
    text: the value. `default` removes a value that the file gives.

  Raises:
    ConfigError: the config has no such group or entry.
  """
  *parents, last = key.split(".")
  if len(parents) > DEPTH:
    raise ConfigError(f"--config.{show(key)}: there is no key of {len(parents) + 1} words")
  whole = config
  for depth, name in enumerate(parents):
    if depth and name and name not in config and text != "default" and not _ENTRY.fullmatch(name):
      config[name] = ml_collections.ConfigDict(type_safe=False)  # a choice that the file leaves at its default
    part = _part(config, name)
    if not isinstance(part, ml_collections.ConfigDict):
      place = ".".join(["config", *parents[:depth]])
      if not depth and places.is_measurement(whole):
        raise ConfigError(places.MEASURES)
      groups = [k for k, v in config.items() if isinstance(v, ml_collections.ConfigDict)]
      elsewhere = "" if depth else places.advice(whole, key, text) or str(suggestions.of_group(key, text))
      raise ConfigError(f"--config.{key}: {place} has no group {show(name)}.{elsewhere or nearest(name, groups)}")
    config = part
  if not last:
    raise ConfigError(f"--config.{key}: the key ends in a dot")
  if text != "default":
    config[last] = Text(text)
  elif last in config:
    del config[last]


def _part(config, name):
  """Returns a value of a config, or an entry of a list in it, which becomes editable; None if there is none."""
  entry = _ENTRY.fullmatch(name)
  if not entry or name in config:
    return config.get(name) if name in config else None
  values = _entries(config, entry[1])
  if int(entry[2]) >= len(values):
    return None
  config[entry[1]] = tuple(_editable(value) for value in values)
  return config[entry[1]][int(entry[2])]


def _entries(config, name):
  """Returns the entries of a list, which a flag may have given as text; none for any other value."""
  value = config.get(name) if name in config else None
  try:
    value = texts.literal(value)
  except ConfigError:  # reported when the value is converted
    return ()
  return value if isinstance(value, tuple | list) else ()


def _editable(value):
  return ml_collections.ConfigDict(value, type_safe=False) if isinstance(value, dict) else value


def choice(changes: Mapping[str, str], group: str) -> ml_collections.ConfigDict:
  """What flags alone choose, {"name": "folder", "path": "/photos"} of `--data.name=folder --data.path=/photos`."""
  config = ml_collections.ConfigDict({group: ml_collections.ConfigDict(type_safe=False)})
  for key, text in changes.items():
    edit(config, f"{group}.{key}", text)
  return config[group]


def has(config: ml_collections.ConfigDict | Mapping, key: str) -> bool:
  """Returns whether a config has a value for a key such as "optim.lr" or "data.parts[0].weight"."""
  for name in key.split("."):
    if not isinstance(config, ml_collections.ConfigDict | Mapping):
      return False
    entry = _ENTRY.fullmatch(name)
    if name in config:
      config = config[name]
    elif entry and int(entry[2]) < len(entries := _entries(config, entry[1])):
      config = entries[int(entry[2])]
    else:
      return False
  return True


def overrides(words: Sequence[str], group: str = "config") -> tuple[dict[str, str], list[str]]:
  """`--config.optim.lr=1e-3` and `--config.optim.lr 1e-3` as {"optim.lr": "1e-3"}, and the other words as they are."""
  changes, others, words = {}, [], list(words)
  while words:
    word = words.pop(0)
    if not word.startswith(f"--{group}."):
      others.append(word)
      continue
    flag, equals, text = word.partition("=")
    if not equals:
      if not words:
        raise ConfigError(f"{flag}: no value; write {flag}=VALUE")
      text = words.pop(0)
    changes[flag.removeprefix(f"--{group}.")] = text
  return changes, others
