"""File locks that are released when their process ends, for a file that is being written and for a directory."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import IO, Any

LONGEST = 200  # longest file name in bytes to which a suffix can be added; file systems allow 255


@contextlib.contextmanager
def open_partial(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary file next to `path`. The file is locked, so that only this process writes to it.

  A temporary file that a killed process left is reused.

  Args:
    path: the file that the temporary file will replace.
  """
  number, name = 0, path.name
  if len(os.fsencode(name)) > LONGEST:
    name = hashlib.sha256(os.fsencode(name)).hexdigest()
  while True:
    own = path.with_name(f".{name}.{number}.partial" if number else f".{name}.partial")
    with own.open("ab") as file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        number += 1
        continue
      except OSError:  # a file system without locks
        pass
      if _points_to(own, file):  # otherwise another process has renamed the file, and the name is free again
        yield own
        return


def _points_to(path: pathlib.Path, file: IO[Any]) -> bool:
  """Returns whether a path leads to the open file."""
  try:
    return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except FileNotFoundError:
    return False


@contextlib.contextmanager
def lock_file(file: pathlib.Path) -> Iterator[None]:
  """Waits until no other process is inside of this context for the same lock file.

  On a file system without locks, the context is entered at once.

  Args:
    file: the lock file. It is created if necessary, and remains.
  """
  with file.open("ab") as opened:
    with contextlib.suppress(OSError):
      fcntl.flock(opened, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path) -> Iterator[None]:
  """Waits until no other process is inside of this context for the same directory.

  On a file system without locks, the context is entered at once.

  Args:
    folder: the directory.
  """
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)
