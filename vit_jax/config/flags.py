"""Loading of config files, and edits by `--config.KEY=VALUE` flags."""

import ast
import os
import pathlib
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from vit_jax.config import extensions
from vit_jax.schema import ConfigError, Text, misplaced, show, suggest_nearest, suggestions, texts

DEPTH = 16  # maximum number of words in a key; existing keys have up to 7
_ENTRY = re.compile(r"([^\[\]]+)\[([0-9]{1,4})\]")  # an entry of a list, such as "parts[0]"


def load_module(path: str) -> tuple[types.ModuleType, str]:
  """Runs a config file.

  Args:
    path: a file or the name of a recipe, with an optional argument, see `split_argument`.

  Returns:
    The module of the file, and the argument, which is "" by default.

  Raises:
    ConfigError: the file does not exist, is not a Python file, or does not define `get_config`.
  """
  path, argument = split_argument(path)
  file = pathlib.Path(path)
  if not file.is_file():
    raise ConfigError(_explain_missing_file(path))
  if file.suffix != ".py":
    raise ConfigError(f"--config: {path!r} is not a Python file. A config ends in .py, such as {find_example()}")
  if not _may_define(file, "get_config"):
    raise ConfigError(
      f"--config: {path} does not define get_config(), so it was not run as a config. See {find_example()}"
    )
  loaded = extensions.run_file(file)
  if not callable(getattr(loaded, "get_config", None)):
    raise ConfigError(f"--config: {path} does not define get_config(). See {find_example()}")
  return loaded, argument


def split_argument(text: str) -> tuple[str, str]:
  """Splits the value of --config: `FILE`, `FILE:ARGUMENT`, `RECIPE` or `RECIPE:ARGUMENT`.

  Names of directories may contain a colon. The file name ends at the first colon for which the text before it is an
  existing file. If there is no such colon, it ends at the first `.py:`. A recipe is named by its path in configs/
  without `.py`, such as `digits` or `ablations/block`.

  Args:
    text: the value of the flag.

  Returns:
    The file and the argument, which is "" by default. The file of a recipe is the one that belongs to this package.

  Raises:
    ConfigError: the text before the first colon is a recipe, and a file of the same name is in the current directory.
  """
  recipes = list_recipes()
  colons = [position for position, letter in enumerate(text) if letter == ":"]
  for position in [*colons, len(text)]:
    if text[:position] not in recipes and pathlib.Path(text[:position]).is_file():
      return text[:position], text[position + 1 :]
  name, _, argument = text.partition(":")
  if name in recipes:
    for local in (name, f"{name}.py"):
      if (file := pathlib.Path(local)).is_file() and not file.samefile(recipes[name]):
        raise ConfigError(
          f"--config: {show(name)} is a recipe of vit_jax, and the file {show(local)} exists too. "
          f"Write ./{local} for the file, or rename the file"
        )
    return str(recipes[name]), argument
  first = text.find(".py:")
  position = first + 3 if first >= 0 else colons[0] if colons else len(text)
  return text[:position], text[position + 1 :]


def list_recipes() -> dict[str, pathlib.Path]:
  """Returns {name: file} of the recipes that belong to this package.

  They are in the folder `configs` of a clone, and in the folder `recipes` of an installed package.
  """
  package = pathlib.Path(__file__).parents[1]
  folders = (package / "recipes", package.parent / "configs")
  folder = next((folder for folder in folders if (folder / "digits.py").is_file()), None)
  files = sorted(folder.rglob("*.py")) if folder else []
  return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files if folder}


def find_example() -> str:
  """Returns the path of a recipe for messages. It is relative if the recipe is below the current directory."""
  file, here = list_recipes()["digits"], pathlib.Path.cwd()
  return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _explain_missing_file(path: str) -> str:
  """Returns the message for a --config that is not a file.

  The message suggests a similar file or recipe.
  """
  file = pathlib.Path(path)
  if file.is_dir():
    advice = " To continue or evaluate an existing run, use --workdir" if (file / "config.json").exists() else ""
    kind = f"{show(path)} is a folder, not a file.{advice or ' Name a Python file in it'}"
  else:
    kind = f"no file {'' if file.suffix == '.py' or '/' in path else 'or recipe '}{show(path)}"
  siblings = [
    str(other) for other in sorted(file.parent.glob("*.py")) if other.is_file() and _may_define(other, "get_config")
  ]
  here, recipes = pathlib.Path.cwd(), list_recipes()
  known = [str(file.relative_to(here)) if file.is_relative_to(here) else name for name, file in recipes.items()]
  wanted = file.name.removesuffix(".py")
  named = [other for other in [*siblings, *known] if wanted and pathlib.Path(other).stem == wanted]
  if named:
    return f"--config: {kind}. Did you mean {show(named[0])}?"
  # The files next to the missing file may be recipes. Such recipes are listed as files, all others by name.
  files = set(map(os.path.realpath, siblings))
  others = [name for name, file in recipes.items() if os.path.realpath(file) not in files]
  if near := suggest_nearest(path, [*others, *siblings]):
    return f"--config: {kind}.{near}"
  return f"--config: {kind}. Write a file that defines get_config(), see docs/extend/index.md"


def _may_define(file: pathlib.Path, name: str) -> bool:
  """Returns whether a Python file defines, assigns or imports a name, or cannot be parsed."""
  try:
    tree = ast.parse(file.read_bytes())
  except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
    return True  # running the file reports the error
  return any(
    (isinstance(node, ast.FunctionDef) and node.name == name)
    or (isinstance(node, ast.Name) and node.id == name)
    or (isinstance(node, ast.alias) and name in (node.asname, node.name))
    or (isinstance(node, ast.alias) and node.name == "*")
    for node in ast.walk(tree)
  )


def load_config(path: str, overrides: Mapping[str, str] | None = None) -> ml_collections.ConfigDict:
  """Loads a config file and applies flags.

  Args:
    path: a file or the name of a recipe, with an optional argument: `configs/digits.py`, `digits` or
      `folder:ViT-S/16`.
    overrides: maps keys such as "optim.lr" to their values as text.

  Returns:
    The editable config, see `config.recipe`.

  Raises:
    ConfigError: the file is not a config, or the config does not support a flag.

  Example:
    editable = load_config("configs/digits.py", {"optim.lr": "1e-3"})
    run = config.resolve(editable)
  """
  loaded, argument = load_module(path)
  config = extensions.call_function(path, loaded.get_config, *([argument] if argument else []), file=loaded.__file__)
  if not isinstance(config, ml_collections.ConfigDict):
    advice = ". Return it from sweep(), and use python -m vit_jax.sweep" if type(config).__name__ == "Sweep" else ""
    raise ConfigError(f"--config: get_config() of {path} returned a {type(config).__name__}, not recipe(...){advice}")
  for key, text in (overrides or {}).items():
    set_value(config, key, text)
  return config


def set_value(config: ml_collections.ConfigDict, key: str, text: str) -> None:
  """Sets a value in place, as the flag `--config.optim.lr=1e-3` does.

  If the key is a choice, the value is its name: `optim.schedule=cosine` is `optim.schedule.name=cosine`.

  Args:
    config: the config to change.
    key: words separated by dots, such as "optim.lr". A word with an index selects an entry of a list, such as
      "data.parts[0].weight".
    text: the value. `default` removes a value that the file sets.

  Raises:
    ConfigError: the config has no such group or entry.
  """
  *parents, last = key.split(".")
  if len(parents) > DEPTH:
    raise ConfigError(f"--config.{show(key)}: keys of the config have fewer than {len(parents) + 1} words")
  whole = config
  for depth, name in enumerate(parents):
    if depth and name and name not in config and text != "default" and not _ENTRY.fullmatch(name):
      config[name] = ml_collections.ConfigDict(type_safe=False)  # a choice that the file leaves at its default
    part = _get_part(config, name)
    if depth and isinstance(part, str):  # a choice that is written as its name alone
      part = config[name] = ml_collections.ConfigDict({"name": part}, type_safe=False)
    if not isinstance(part, ml_collections.ConfigDict):
      place = ".".join(["config", *parents[:depth]])
      if not depth and misplaced.is_measurement(whole):
        other = misplaced.suggest_places(whole, key, text)
        known = f"--config.{key}: configs of probes have no group {show(name)}.{other}"
        raise ConfigError(known if other else misplaced.MEASURES)
      groups = [k for k, v in config.items() if isinstance(v, ml_collections.ConfigDict)]
      elsewhere = (
        "" if depth else misplaced.suggest_places(whole, key, text) or str(suggestions.suggest_for_group(key, text))
      )
      raise ConfigError(
        f"--config.{key}: {place} has no group {show(name)}.{elsewhere or suggest_nearest(name, groups)}"
      )
    config = part
  if not last:
    raise ConfigError(f"--config.{key}: the key ends in a dot")
  if text != "default":
    if parents and last in config and isinstance(config[last], ml_collections.ConfigDict):
      config[last] = _copy_group(config[last])
      config, last = config[last], "name"  # a choice that is written as its name alone
    if last == "name" and text == "none":  # the choice "none" has no other keys
      for other in [key for key in config if key != "name"]:
        del config[other]
    config[last] = Text(text)
  elif last in config:
    del config[last]


def _get_part(config: Any, name: str) -> Any:
  """Returns a value of a config, or an entry of a list, in a form that can be changed, or None.

  Groups are replaced by copies, because a config file may assign the same group to two keys.
  """
  entry = _ENTRY.fullmatch(name)
  if not entry or name in config:
    part = config.get(name) if name in config else None
    if isinstance(part, ml_collections.ConfigDict):
      part = config[name] = _copy_group(part)
    return part
  values = _get_entries(config, entry[1])
  if int(entry[2]) >= len(values):
    return None
  config[entry[1]] = tuple(_make_editable(value) for value in values)
  return config[entry[1]][int(entry[2])]


def _get_entries(config: Any, name: str) -> Any:
  """Returns the entries of a list, which a flag may have set as text. Other values have no entries."""
  value = config.get(name) if name in config else None
  try:
    value = texts.parse_literal(value)
  except ConfigError:  # reported when the value is converted
    return ()
  return value if isinstance(value, tuple | list) else ()


def _make_editable(value: object) -> Any:
  if isinstance(value, ml_collections.ConfigDict):
    return _copy_group(value)
  return ml_collections.ConfigDict(value, type_safe=False) if isinstance(value, dict) else value


def _copy_group(group: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns a group with the same values. Groups inside it are not copied."""
  copy = ml_collections.ConfigDict(type_safe=False)
  for key in group:
    copy[key] = group[key]
  return copy


def parse_choice(changes: Mapping[str, str], group: str) -> ml_collections.ConfigDict:
  """Builds a choice from flags alone: `--data.name=folder --data.path=/photos`.

  Args:
    changes: maps keys to texts, such as {"name": "folder", "path": "/photos"}.
    group: name of the group, such as "data".

  Returns:
    The editable choice.

  Raises:
    ConfigError: a key is invalid.
  """
  config = ml_collections.ConfigDict({group: ml_collections.ConfigDict(type_safe=False)})
  for key, text in changes.items():
    set_value(config, f"{group}.{key}", text)
  return config[group]


def has_key(config: ml_collections.ConfigDict | Mapping[str, object], key: str) -> bool:
  """Returns whether a config has a value for a key.

  Args:
    config: the config.
    key: key such as "optim.lr" or "data.parts[0].weight".
  """
  for name in key.split("."):
    if not isinstance(config, ml_collections.ConfigDict | Mapping):
      return False
    entry = _ENTRY.fullmatch(name)
    if name in config:
      config = config[name]
    elif entry and int(entry[2]) < len(entries := _get_entries(config, entry[1])):
      config = entries[int(entry[2])]
    else:
      return False
  return True


def split_overrides(words: Sequence[str], group: str = "config") -> tuple[dict[str, str], list[str]]:
  """Separates flags of a group from other arguments of the command line.

  Both `--config.optim.lr=1e-3` and `--config.optim.lr 1e-3` are accepted.

  Args:
    words: arguments of the command line.
    group: name of the group.

  Returns:
    The flags as {"optim.lr": "1e-3"}, and the other arguments.

  Raises:
    ConfigError: the last flag has no value.
  """
  changes, others, words = {}, [], list(words)
  while words:
    word = words.pop(0)
    if not word.startswith(f"--{group}."):
      others.append(word)
      continue
    flag, equals, text = word.partition("=")
    if not equals:
      if not words:
        raise ConfigError(f"{flag}: no value. Write {flag}=VALUE")
      text = words.pop(0)
    changes[flag.removeprefix(f"--{group}.")] = text
  return changes, others
