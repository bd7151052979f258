"""Record of the files that this user ran on this machine. They may be imported again without a flag."""

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable

from vit_jax.config.extensions.names import Extension
from vit_jax.schema import ConfigError
from vit_jax.storage import files


def remember(extensions: Iterable[Extension]) -> None:
  """Records in the user's cache directory that this user ran these files.

  Args:
    extensions: the files.
  """
  for extension in dict.fromkeys(extensions):
    if extension.file and find_remembered(extension.file) != extension:
      with contextlib.suppress(OSError, RuntimeError):  # without a home directory, --import is required each time
        note = _get_note_path(extension.file)
        note.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(note, json.dumps(extension._asdict()) + "\n")


def find_remembered(file: str) -> Extension | None:
  """Returns the extension as this user ran it before.

  Args:
    file: absolute path of the file.

  Returns:
    The extension, or None if this user did not run the file or does not own it.
  """
  try:
    note = files.read_json(_get_note_path(file))
    own = os.stat(file).st_uid in (os.getuid(), 0)
  except (ConfigError, OSError, RuntimeError):
    return None
  if not own or not isinstance(note, dict) or note.get("file") != file or not isinstance(note.get("module"), str):
    return None
  return Extension(file, note["module"])


def _get_note_path(file: str) -> pathlib.Path:
  return files.get_local_cache_directory("extensions") / hashlib.sha256(os.fsencode(file)).hexdigest()[:32]
