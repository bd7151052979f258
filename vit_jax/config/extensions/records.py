"""Records of the extension files that a run uses, and import of these files when the run is used again."""

import hashlib
import logging
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vit_jax.config.extensions import memory, names, running
from vit_jax.config.extensions.names import Extension
from vit_jax.schema import ConfigError, show
from vit_jax.schema.texts import format_flag
from vit_jax.storage import paths


def record(choices: Collection[str]) -> list[dict[str, Any]]:
  """Returns the files that registered any of the given names, as JSON values to be stored with a run.

  Args:
    choices: names that the run uses.

  Returns:
    A list of {"file", "module", "sha256", "names"}.
  """
  used: dict[Extension, list[str]] = {}
  for kind, name in names.list_registered():
    if name in choices and (extension := names.find_registration(kind, name)):
      used.setdefault(extension, []).append(f"{kind} {name}")
  return [
    {"file": each.file, "module": each.module, "sha256": _compute_digest(each.file), "names": words}
    for each, words in used.items()
  ]


def check(recorded: object) -> None:
  """Checks that a record has the form that `record` returns.

  Args:
    recorded: JSON values.

  Raises:
    ValueError: the record has another form.
  """
  form = {"file": str, "module": str, "sha256": str, "names": list}
  rows = recorded if isinstance(recorded, list) else [None]
  for row in rows:
    if (
      not isinstance(row, dict)
      or not all(isinstance(row.get(key), kind) for key, kind in form.items())
      or not all(isinstance(name, str) and " " in name for name in row["names"])
    ):
      raise ValueError(f"its record of extensions is not valid: {str(recorded)[:80]}")


def restore(recorded: Any, origin: str | os.PathLike[str]) -> None:
  """Imports the files of a record again if the rules of this package permit it.

  A warning is logged if a file has changed since it was recorded.

  Args:
    recorded: the result of `record`, or None for a run without extensions.
    origin: the workdir that contains the record, for messages. Files inside it are never imported.

  Raises:
    ConfigError: a file may not be imported or does not exist. The message contains the flag to use.
    ValueError: the record has another form than the result of `record`.
  """
  if not recorded:
    return
  check(recorded)
  running.import_installed()
  refused = {}
  for row in recorded:
    missing = _find_missing(row)
    if missing and (problem := _find_refusal(row["file"], origin)):
      refused[row["file"]] = problem, missing
  if refused:
    raise ConfigError(_format_advice(refused), str(origin))
  for row in recorded:
    if _find_missing(row) and (extension := memory.find_remembered(row["file"])):
      running.import_again(extension)  # under the module name that this user used: the record may contain any name
    if gone := _find_missing(row):
      raise ConfigError(_format_advice({row["file"]: ("it no longer registers the name", gone)}), str(origin))
    found = [names.find_registration(*key) for key in _get_keys(row)]
    _warn_of_change(row["sha256"], [extension.file for extension in found if extension], origin)


def _get_keys(row: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns (kind, name) of each name in a row of a record."""
  return [tuple(name.split(" ", 1)) for name in row["names"]]


def _find_missing(row: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns (kind, name) of the names in a row of a record that are not registered now."""
  return [key for key in _get_keys(row) if names.find_registration(*key) is None]


def restore_for_workdir(workdir: pathlib.Path, about: Mapping[str, Any]) -> None:
  """Imports the user's files that a workdir requires, see `restore`.

  Args:
    workdir: workdir of a run, or of weights that `convert` wrote.
    about: description of its newest checkpoint, or contents of its recipe.json.

  Raises:
    ConfigError: a file may not be imported, or the record is not valid.
  """
  try:
    restore(about.get("extensions") or about.get("identity", {}).get("extensions"), workdir)
  except ConfigError:
    raise
  except ValueError as error:
    raise ConfigError(f"{workdir}: {error}. Use a workdir that a run wrote") from error


def _format_advice(refused: Mapping[str, Any]) -> str:
  """Returns the message for files {path: (reason, names)} that are not imported."""
  words = [f"the {kind} {show(name)}" for _, missing in refused.values() for kind, name in missing]
  reason, _ = next(iter(refused.values()))
  flags = " ".join(format_flag("import", file if os.path.isfile(file) else "FILE.py") for file in refused)
  return f"it uses {' and '.join(words)}. {reason[0].upper()}{reason[1:]}. Add {flags}, or import the code first"


def _find_refusal(file: str, origin: str | os.PathLike[str]) -> str | None:
  """Returns the reason why a recorded file is not imported, or None if it may be imported."""
  if not file:
    return "it was registered by code without a file, such as a notebook"
  if not os.path.isfile(file):
    return f"the file {show(file)} does not exist"
  workdir = paths.parse_path(origin)
  if not paths.is_in_bucket(workdir) and pathlib.Path(file).resolve().is_relative_to(workdir.resolve()):
    return f"{show(file)} is inside the workdir and is not imported automatically"
  if memory.find_remembered(file) is None:
    return f"you did not use {show(file)} on this machine before, so it is not imported automatically"
  return None


_warned: set[tuple[str, str]] = set()


def _warn_of_change(digest: str, now: Iterable[str], origin: str | os.PathLike[str]) -> None:
  for file in dict.fromkeys(now):
    if _compute_digest(file) != digest and (file, digest) not in _warned:
      _warned.add((file, digest))
      logging.warning("%s changed since the run in %s used it: results may differ", file or "an extension", origin)


def list_changes(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> list[str]:
  """Returns a line for each extension with different content in two records.

  Args:
    before: the earlier record.
    now: the present record.
  """
  digests = {name: row["sha256"] for row in before for name in row["names"]}
  return [
    f"{row['file']} changed"
    for row in now
    if any(digests.get(name, row["sha256"]) != row["sha256"] for name in row["names"])
  ]


def _compute_digest(file: str) -> str:
  """Returns the SHA-256 of a file, or "" if the file does not exist."""
  try:
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() if file else ""
  except OSError:
    return ""
