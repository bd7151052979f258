"""From the command line to an editable config: files, `--config.KEY=VALUE`, and what is wrong with either."""

import importlib.util
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence

import ml_collections

from vit_jax.schema import ConfigError, Text, nearest

_FILE_ERRORS = (
  ArithmeticError,
  AssertionError,
  AttributeError,
  ImportError,
  LookupError,
  NameError,
  OSError,
  RuntimeError,
  SyntaxError,
  SystemExit,
  TypeError,
  ValueError,
)


def module(path: str) -> tuple[types.ModuleType, str]:
  """The module of a config file given as `path` or `path:argument`, and the argument ("" where there is none)."""
  path, _, argument = path.partition(":")
  file = pathlib.Path(path)
  if not file.is_file():
    raise ConfigError(f"--config: no file {path!r}.{nearest(path, sorted(map(str, file.parent.glob('*.py'))))}")
  spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
  if spec is None:
    raise ConfigError(f"--config: {path!r} is not a Python file")
  loaded = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(loaded)
  except _FILE_ERRORS as error:
    raise ConfigError(f"--config: {path} does not run: {type(error).__name__}: {error}") from error
  if not callable(getattr(loaded, "get_config", None)):
    raise ConfigError(f"--config: {path} defines no get_config(); see configs/digits.py")
  return loaded, argument


def called(path: str, function: Callable, *arguments):
  """What a function of a config file returns; ConfigError for what goes wrong in it."""
  try:
    return function(*arguments)
  except ConfigError:
    raise
  except _FILE_ERRORS as error:
    raise ConfigError(f"--config: {path}: {type(error).__name__}: {error}") from error


def load(path: str, overrides: Mapping[str, str] | None = None) -> ml_collections.ConfigDict:
  """The editable config of a file, `configs/digits.py` or `configs/folder.py:ViT-S/16`, edited by flags {key: text}."""
  loaded, argument = module(path)
  config = called(path, loaded.get_config, *([argument] if argument else []))
  if not isinstance(config, ml_collections.ConfigDict):
    raise ConfigError(f"--config: get_config() of {path} returned a {type(config).__name__}, not recipe(...)")
  for key, text in (overrides or {}).items():
    edit(config, key, text)
  return config


def edit(config: ml_collections.ConfigDict, key: str, text: str) -> None:
  """Sets `--config.optim.lr=1e-3` (key "optim.lr") in place; the text `default` removes a value that the file gives."""
  *parents, last = key.split(".")
  for depth, name in enumerate(parents):
    if depth and name and name not in config and text != "default":
      config[name] = ml_collections.ConfigDict(type_safe=False)  # a choice that the file leaves at its default
    part = config.get(name) if name in config else None
    if not isinstance(part, ml_collections.ConfigDict):
      place = ".".join(["config", *parents[:depth]])
      groups = [k for k, v in config.items() if isinstance(v, ml_collections.ConfigDict)]
      raise ConfigError(f"--config.{key}: {place} has no group {name!r}.{nearest(name, groups)}")
    config = part
  if not last:
    raise ConfigError(f"--config.{key}: the key ends in a dot")
  if text != "default":
    config[last] = Text(text)
  elif last in config:
    del config[last]


def overrides(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
  """`--config.optim.lr=1e-3` and `--config.optim.lr 1e-3` as {"optim.lr": "1e-3"}, and the other words as they are."""
  changes, others, words = {}, [], list(words)
  while words:
    word = words.pop(0)
    if not word.startswith("--config."):
      others.append(word)
      continue
    flag, equals, text = word.partition("=")
    if not equals:
      if not words:
        raise ConfigError(f"{flag}: no value; write {flag}=VALUE")
      text = words.pop(0)
    changes[flag.removeprefix("--config.")] = text
  return changes, others
