"""Files of data on a disk: their bytes, bounded, and what tells that they were changed."""

import concurrent.futures
import os
import stat
from collections.abc import Sequence

# Bytes of the largest image file: any image that is allowed by default has fewer, if it is compressed at all.
LARGEST = 2**28
_KINDS = {"d": "a folder", "p": "a named pipe", "s": "a socket", "c": "a device", "b": "a device"}


def contents(file: str | os.PathLike) -> bytes:
  """The bytes of a regular file. OSError for anything else: a named pipe would wait for its writer for ever."""
  descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
  try:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
      raise OSError(f"it is {_KINDS[stat.filemode(status.st_mode)[0]]}, not a regular file")
    if status.st_size > LARGEST:
      raise OSError(f"it has {status.st_size:,} bytes; allowed: {LARGEST:,}")
    with open(descriptor, "rb", closefd=False) as opened:
      return opened.read(status.st_size)
  finally:
    os.close(descriptor)


def stamp(file: str | os.PathLike) -> tuple[int, int]:
  """(size in bytes, time of last change in ns) of a local file."""
  status = os.stat(file)
  return status.st_size, status.st_mtime_ns


def stamps(files: Sequence[str]) -> list[tuple[int | None, int | None]]:
  """`stamp` of each file, of many at once, for a file server takes its time; (None, None) without such a file."""

  def ask(first):
    result = []
    for file in files[first : first + 1000]:
      try:
        result.append(stamp(file))
      except (OSError, ValueError):  # it shows when it is read; a name may hold a character of code 0
        result.append((None, None))
    return result

  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    return [one for some in pool.map(ask, range(0, len(files), 1000)) for one in some]
