"""Names that users registered, and the files that registered them."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vit_jax.schema import ConfigError


class Extension(NamedTuple):
  """A file that registered names."""

  file: str  # absolute path; "" for code without a file, such as a notebook
  module: str  # name under which Python imports it; "" for a file that is run by its path, such as a config


class Name(NamedTuple):
  """A registered name, and the code that registered it."""

  extension: Extension
  namespace: Mapping[str, Any]  # globals of the module that registered it
  definition: str  # qualified name and line of what is registered
  remove: Callable[[], None]  # takes the name out of its table


_names: dict[tuple[str, str], Name] = {}  # (kind, name)
_by_path: set[str] = {"__main__"}  # names of modules that Python cannot import by name


def add(
  kind: str,
  name: str,
  table: Any,
  entry: Any,
  namespace: Mapping[str, Any],
  definition: str,
  place: str = "",
) -> None:
  """Puts an entry under a name into a table.

  Args:
    kind: "reader", "model", ...
    name: new in the table, unless the same file registered it before and is run again.
    table: of all names of this kind.
    entry: of the table.
    namespace: globals of the module that registers the name.
    definition: what is registered, to notice two definitions of one name.
    place: beginning of an error message: the file, the line and the function that the user called. By default
      the function alone.

  Raises:
    ConfigError: if the name is built in, or another definition registered it.
  """
  place = place or f"register.{kind}"
  file = str(pathlib.Path(path).resolve()) if (path := namespace.get("__file__")) else ""
  module = str(namespace.get("__name__", ""))
  extension = Extension(file, "" if module in _by_path or not file else module)
  before = _names.get((kind, name))
  if before is None and name in table:
    raise ConfigError(f"{place}: {name!r} is a name of vit_jax itself. Choose another name")
  if before is not None:
    again = before.extension.file == file and (before.namespace is not namespace or before.definition == definition)
    if not again:
      where = before.extension.file or "this session"
      raise ConfigError(f"{place}: {where} already registered {name!r}. Choose another name")
  table[name] = entry
  _names[kind, name] = Name(extension, namespace, definition, lambda: table.pop(name, None))


def registered() -> list[tuple[str, str]]:
  """Returns (kind, name) of all names that users registered, in order."""
  return list(_names)


def registration(kind: str, name: str) -> Extension | None:
  """Returns the file that registered a name; None for a name that is not registered."""
  return _names[kind, name].extension if (kind, name) in _names else None


def extensions() -> list[Extension]:
  """Returns the files of all registered names, in order."""
  return list(dict.fromkeys(each.extension for each in _names.values()))


def note_module(module: str) -> None:
  """Notes that Python cannot import a module by its name, because it was run by the path of its file."""
  _by_path.add(module)


def forget(file: str) -> None:
  """Removes the names that a file registered, before it is run again."""
  for key in [key for key, each in _names.items() if file and each.extension.file == file]:
    _names.pop(key).remove()
