"""From the command line to an editable config: files, `--config.KEY=VALUE`, and what is wrong with either."""

import importlib.util
import pathlib
import traceback
import types
from collections.abc import Callable, Mapping, Sequence

import ml_collections

from vit_jax.schema import ConfigError, Text, nearest, places, show

DEPTH = 16  # words of a key; those that there are have up to 7


def module(path: str) -> tuple[types.ModuleType, str]:
  """The module of a config file given as `path` or `path:argument`, and the argument ("" where there is none)."""
  path, _, argument = path.partition(":")
  file = pathlib.Path(path)
  if not file.is_file():
    others = sorted(str(other) for other in file.parent.glob("*.py") if other.is_file())
    kind = f"{show(path)} is a folder, not a file" if file.is_dir() else f"no file {show(path)}"
    raise ConfigError(f"--config: {kind}.{nearest(path, others)}")
  spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
  if spec is None:
    raise ConfigError(f"--config: {path!r} is not a Python file")
  loaded = importlib.util.module_from_spec(spec)
  called(path, spec.loader.exec_module, loaded)
  if not callable(getattr(loaded, "get_config", None)):
    raise ConfigError(f"--config: {path} defines no get_config(); see configs/digits.py")
  return loaded, argument


def called(path: str, function: Callable, *arguments):
  """What a function of a config file returns; ConfigError for whatever goes wrong in it, which is a program."""
  try:
    return function(*arguments)
  except ConfigError:
    raise
  except (Exception, SystemExit) as error:  # the file is the user's program, and raises what it likes
    file = pathlib.Path(path.partition(":")[0]).name
    frames = [f for f in traceback.extract_tb(error.__traceback__) if pathlib.Path(f.filename).name == file]
    # An error that the file raises itself is in words for the user.
    words = isinstance(error, ValueError) and frames and frames[-1].line.startswith("raise")
    line = f", line {frames[-1].lineno}" if frames and not words else ""
    what = str(error) if words else f"{type(error).__name__}: {error}"
    raise ConfigError(f"--config: {path}{line}: {what}") from error


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
  if len(parents) > DEPTH:
    raise ConfigError(f"--config.{show(key)}: there is no key of {len(parents) + 1} words")
  whole = config
  for depth, name in enumerate(parents):
    if depth and name and name not in config and text != "default":
      config[name] = ml_collections.ConfigDict(type_safe=False)  # a choice that the file leaves at its default
    part = config.get(name) if name in config else None
    if not isinstance(part, ml_collections.ConfigDict):
      place = ".".join(["config", *parents[:depth]])
      groups = [k for k, v in config.items() if isinstance(v, ml_collections.ConfigDict)]
      elsewhere = "" if depth else places.advice(whole, key)
      raise ConfigError(f"--config.{key}: {place} has no group {show(name)}.{elsewhere or nearest(name, groups)}")
    config = part
  if not last:
    raise ConfigError(f"--config.{key}: the key ends in a dot")
  if text != "default":
    config[last] = Text(text)
  elif last in config:
    del config[last]


def choice(changes: Mapping[str, str], group: str) -> ml_collections.ConfigDict:
  """What flags alone choose, {"name": "folder", "path": "/photos"} of `--data.name=folder --data.path=/photos`."""
  config = ml_collections.ConfigDict({group: ml_collections.ConfigDict(type_safe=False)})
  for key, text in changes.items():
    edit(config, f"{group}.{key}", text)
  return config[group]


def has(config: ml_collections.ConfigDict, key: str) -> bool:
  """Whether a config has a value for a key such as "optim.lr"."""
  for name in key.split("."):
    if not isinstance(config, ml_collections.ConfigDict) or name not in config:
      return False
    config = config[name]
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
