"""Paths of checkpoint folders that Orbax and TensorStore can use, for any name of the workdir."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from vit_jax.schema import ConfigError, show
from vit_jax.storage import paths

# Names that both libraries use unchanged. Orbax interprets `[1]` as a pattern and `gs:/` as a bucket, and it resolves
# `..` without following links. TensorStore interprets a backslash as a slash.
_PLAIN = re.compile(r"[\w./+=@,~ -]*")
# The longest path that leaves space for the names that Orbax adds below the folder. Linux allows 4,095 bytes.
_LONGEST = 3500
_OPEN_FOLDERS = pathlib.Path("/proc/self/fd")  # Linux: each open folder of this process by its descriptor
_OBJECTS = re.compile(r"[\w./+=@,~: -]*")


def check_workdir_name(workdir: pathlib.Path) -> None:
  """Checks that checkpoints can be saved under the name of a workdir. Writes no file.

  Args:
    workdir: the directory or the path of a bucket.

  Raises:
    ConfigError: checkpoints cannot be saved under this name.
  """
  if paths.is_in_bucket(workdir):
    if wrong := sorted(set(_OBJECTS.sub("", os.fspath(workdir)))):
      raise ConfigError(
        f"{show(os.fspath(workdir))}: checkpoints cannot be saved under a name with {' '.join(map(repr, wrong))} in a "
        "bucket. Use letters, digits and . _ - + = @ , ~"
      )
  elif not _is_plain(workdir.absolute()) and not _OPEN_FOLDERS.is_dir():
    raise ConfigError(
      f"{show(os.fspath(workdir))}: on this system checkpoints can only be saved below a path of letters, digits, "
      "spaces and . _ - + = @ , ~ without '..'. Use another directory"
    )


@contextlib.contextmanager
def alias_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a path of `folder` that Orbax and TensorStore can use, valid inside the context.

  A plain absolute path and the path of a bucket are yielded unchanged. For any other name, the folder is opened and its
  path in /proc/self/fd is yielded.

  Args:
    folder: an existing folder, or the path of a bucket.

  Yields:
    The path.

  Raises:
    OSError: the folder does not exist or cannot be opened.
    ConfigError: this system has no /proc/self/fd.
  """
  path = paths.make_absolute(folder)
  if paths.is_in_bucket(path) or _is_plain(path):
    yield path
    return
  check_workdir_name(folder)
  descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  try:
    yield _OPEN_FOLDERS / str(descriptor)
  finally:
    os.close(descriptor)


def _is_plain(path: pathlib.Path) -> bool:
  """Returns true if Orbax and TensorStore use an absolute path on a disk unchanged."""
  text = os.fspath(path)
  return bool(_PLAIN.fullmatch(text)) and ".." not in path.parts and len(os.fsencode(text)) <= _LONGEST
