"""Locks of a disk that die with their process: on a file to be written, and on what a folder holds."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
from collections.abc import Iterator

LONGEST = 200  # bytes of a file name to which a suffix can be added; file systems take 255


@contextlib.contextmanager
def partial(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A file beside `path` that nobody else writes to: locked, and where a kill has left one, that one."""
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
      if _leads(own, file):  # or it has its place by now, and this name is free
        yield own
        return


def _leads(path, file):
  """Whether a path leads to the open file."""
  try:
    return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except FileNotFoundError:
    return False


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
  """Waits until no other process is in such a block for this folder; on a file system without locks it does not."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)
