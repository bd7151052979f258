"""Names that users registered, and the files that registered them."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vit_jax.schema import ConfigError


class Extension(NamedTuple):
  """A file that registered names.

  Attributes:
    file: absolute path, or "" for code without a file, such as a notebook.
    module: name under which Python imports the file, or "" for a file that is run by its path, such as a config.
  """

  file: str
  module: str


class Registration(NamedTuple):
  """A registered name, and the code that registered it.

  Attributes:
    extension: the file.
    namespace: globals of the module that registered the name.
    definition: qualified name and line of the registered object.
    remove: removes the name from its table.
  """

  extension: Extension
  namespace: Mapping[str, Any]
  definition: str
  remove: Callable[[], None]


_names: dict[tuple[str, str], Registration] = {}  # (kind, name)
_by_path: set[str] = {"__main__"}  # names of modules that Python cannot import by name


def add(
  kind: str,
  name: str,
  table: Any,
  entry: object,
  namespace: Mapping[str, Any],
  definition: str,
  place: str = "",
) -> None:
  """Adds an entry to a table under a new name.

  Args:
    kind: type of the entry, such as "reader" or "model".
    name: the name. It must be new in the table, unless the same file registered it before and is run again.
    table: table of all names of this type.
    entry: the entry.
    namespace: globals of the module that registers the name.
    definition: identifies the registered object, to detect two definitions of one name.
    place: start of an error message: the file, the line and the function that the user called. The default is the
      function alone.

  Raises:
    ConfigError: the name is built in, or another definition registered it.

  Example:
    from vit_jax.config.extensions import add, list_registered

    table = {}
    add("reader", "mine", table, entry=print, namespace=globals(), definition="print")
    assert table == {"mine": print} and ("reader", "mine") in list_registered()
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
  _names[kind, name] = Registration(extension, namespace, definition, lambda: table.pop(name, None))


def list_registered() -> list[tuple[str, str]]:
  """Returns (kind, name) of all names that users registered, in order of registration."""
  return list(_names)


def find_registration(kind: str, name: str) -> Extension | None:
  """Returns the file that registered a name, or None if the name is not registered.

  Args:
    kind: type of the entry.
    name: the name.
  """
  return _names[kind, name].extension if (kind, name) in _names else None


def list_extensions() -> list[Extension]:
  """Returns the files of all registered names, in order of registration."""
  return list(dict.fromkeys(each.extension for each in _names.values()))


def note_module(module: str) -> None:
  """Records that Python cannot import a module by its name, because it was run by the path of its file."""
  _by_path.add(module)


def forget(file: str) -> None:
  """Removes the names that a file registered, before the file is run again."""
  for key in [key for key, each in _names.items() if file and each.extension.file == file]:
    _names.pop(key).remove()
