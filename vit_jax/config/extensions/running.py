"""Execution of users' files: config files, extensions named by flags, and extensions of installed packages."""

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from vit_jax.config.extensions import memory, names
from vit_jax.config.extensions.names import Extension
from vit_jax.schema import ConfigError, show, suggest_nearest

Result = TypeVar("Result")
GROUP = "vit_jax.config.extensions"  # group of entry points
_loaded: dict[pathlib.Path, tuple[bytes, types.ModuleType]] = {}  # files that were run by their path
_given: list[str] = []  # files as the user wrote them, and modules


def call_function(
  path: str, function: Callable[..., Result], *arguments: object, flag: str = "--config", file: str | None = None
) -> Result:
  """Calls a function of a user's file and converts errors.

  Args:
    path: the file or module as the user wrote it, for messages.
    function: the function.
    *arguments: its arguments.
    flag: the flag that named the file, for messages.
    file: the file, if `path` is the name of a recipe or ends with an argument.

  Returns:
    The result of the function.

  Raises:
    ConfigError: the function raised an error. The message contains the file, the line and the reason.
  """
  try:
    return function(*arguments)
  except ConfigError:
    raise
  except (Exception, SystemExit) as error:  # the file is the user's program and may raise any error
    name = pathlib.Path(file or path).with_suffix(".py").name  # the path may be the name of a module
    frames = [f for f in traceback.extract_tb(error.__traceback__) if pathlib.Path(f.filename).name == name]
    # An error that the file raises itself has a message for the user.
    own = isinstance(error, ValueError) and frames and (frames[-1].line or "").startswith("raise")
    line = f", line {frames[-1].lineno}" if frames and not own else ""
    problem = str(error) if own else f"{type(error).__name__}: {error}"
    raise ConfigError(f"{flag}: {path}{line}: {problem}") from error


def run_file(path: str | os.PathLike[str], flag: str = "--config", remember: bool = True) -> types.ModuleType:
  """Runs a Python file once and returns its module.

  The folder of the file is appended to Python's import path, so that the file can import modules next to it. A file
  that has changed since it was run is run again, and replaces the names that it registered.

  Args:
    path: path of the file.
    flag: the flag that named the file, for messages.
    remember: true records that the user ran this file and the extensions that it imports, see `restore`.

  Raises:
    ConfigError: the file raised an error.

  Example:
    import pathlib
    from vit_jax.config import extensions

    file = pathlib.Path("/tmp/my_config.py")
    file.write_text("BATCH = 64")
    assert extensions.run_file(file).BATCH == 64
  """
  file = pathlib.Path(path).resolve()
  content = file.read_bytes()
  if file in _loaded and _loaded[file][0] == content:
    return _loaded[file][1]
  digest = hashlib.sha256(os.fsencode(file)).hexdigest()[:8]
  spec = importlib.util.spec_from_file_location(f"config_{file.stem}_{digest}", file)
  if spec is None or spec.loader is None:
    raise ConfigError(f"{flag}: {str(path)!r} is not a Python file. Name a file that ends in .py")
  module = importlib.util.module_from_spec(spec)
  names.forget(str(file))
  before = set(names.list_registered())
  _import_from(file.parent)
  names.note_module(module.__name__)
  sys.modules[module.__name__] = module  # dataclasses and type hints of the file search this table for it
  try:
    call_function(str(path), spec.loader.exec_module, module, flag=flag)
  except ConfigError:
    del sys.modules[module.__name__]
    names.forget(str(file))
    raise
  _loaded[file] = content, module
  made = [key for key in names.list_registered() if key not in before]
  if made:
    _remember_flag(str(path))
  if remember:
    memory.remember(extension for key in made if (extension := names.find_registration(*key)))
  return module


def import_named(text: str) -> None:
  """Imports the file or module that `--import=TEXT` names.

  Args:
    text: a Python file, or a module on Python's import path.

  Raises:
    ConfigError: the file or module does not exist, fails, or does not register a name.
  """
  before = names.list_registered()
  if text.endswith(".py") or os.sep in text:
    file = pathlib.Path(text)
    if not file.is_file():
      near = sorted(str(other) for other in file.parent.glob("*.py"))
      raise ConfigError(
        f"--import: no file {show(text)}.{suggest_nearest(text, near) if near else ' Name a Python file.'}"
      )
    run_file(file, "--import")
    found = any(extension.file == str(file.resolve()) for extension in names.list_extensions())
  else:
    with _missing_module(text):
      call_function(text, importlib.import_module, text, flag="--import")
    found = any(extension.module.partition(".")[0] == text.partition(".")[0] for extension in names.list_extensions())
  if not found and names.list_registered() == before:
    raise ConfigError(
      f"--import: {text} does not register anything. Use the decorators of vit_jax.register, see docs/extend/index.md"
    )
  _remember_flag(text)
  memory.remember(names.list_extensions())


@functools.cache
def import_installed() -> None:
  """Imports modules of installed packages with an entry point in the group `vit_jax.config.extensions`.

  Only the first call has an effect.

  Raises:
    ConfigError: a module raised an error.
  """
  for point in importlib.metadata.entry_points(group=GROUP):
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an installed package"
    call_function(point.value, point.load, flag=f"extension {point.name!r} of {package}")


def import_again(extension: Extension) -> None:
  """Imports a file by its module name, or runs it by its path.

  Args:
    extension: the file.

  Raises:
    ConfigError: the file fails, or another file has its module name.
  """
  file = pathlib.Path(extension.file)
  if not extension.module:
    run_file(file, "--import", remember=False)
    return
  levels = len(extension.module.split(".")) - (file.name == "__init__.py")
  _import_from(file.parents[levels - 1] if levels else file.parent.parent)
  found = sys.modules.get(extension.module)
  origin = getattr(found, "__file__", None)  # built-in modules have none
  if origin and pathlib.Path(origin).resolve() != file:
    raise ConfigError(
      f"the module {extension.module!r} is {origin} here, and the run used {file}. Rename one of the two files"
    )
  call_function(str(file), importlib.import_module, extension.module, flag="--import")


def list_active() -> list[Extension]:
  """Returns the files of all registered names, for another process of this run."""
  return [extension for extension in names.list_extensions() if extension.file]


def make_import_flags() -> list[str]:
  """Returns the flags with which another command registers the names of this process. Empty without extensions."""
  return [f"--import={text}" for text in _given] if names.list_extensions() else []


def _remember_flag(text: str) -> None:
  if text not in _given:
    _given.append(text)


def import_active(extensions: Iterable[Extension]) -> None:
  """Imports the files that `list_active` returned in the process that started this one.

  Args:
    extensions: the files.

  Raises:
    ConfigError: a file fails.
  """
  import_installed()
  known = names.list_extensions()
  for extension in extensions:
    if extension not in known:
      import_again(Extension(*extension))


@contextlib.contextmanager
def _missing_module(name: str) -> Iterator[None]:
  """Replaces the error for a missing module by an error that explains how to name a file."""
  if importlib.util.find_spec(name.partition(".")[0]) is None:
    raise ConfigError(
      f"--import: no module {show(name)} on Python's import path. Name a file, --import=FILE.py, or install its package"
    )
  yield


def _import_from(folder: pathlib.Path) -> None:
  """Appends a folder to the end of Python's import path."""
  if str(folder) not in sys.path:
    sys.path.append(str(folder))
