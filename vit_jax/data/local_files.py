"""Files of data on a disk: their bytes, bounded, and values that change when a file changes."""

import concurrent.futures
import hashlib
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

# Bytes of the largest image file: any image that is allowed by default has fewer, if it is compressed at all.
LARGEST = 2**28
# A digest covers all bytes of a file of up to WHOLE bytes, and BLOCKS blocks of BLOCK bytes of a larger file.
WHOLE, BLOCKS, BLOCK = 2**18, 8, 2**14
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
  """Returns the `stamp` of each file; (None, None) for a file that does not exist."""
  return [(None, None) if status is None else (status.st_size, status.st_mtime_ns) for status in _statuses(files)]


def states(files: Sequence[str]) -> list[tuple[int, ...] | None]:
  """Returns values of each file of which at least one changes when the file is replaced or written to.

  No file is read. No program can set the time of status change, which `cp -p` and `touch` set to now. The number of the
  device is left out: it changes when a machine is started again.

  Args:
    files: names of files on a disk.

  Returns:
    (inode, size in bytes, time of modification in ns, time of status change in ns) of each file; None for a file that
    does not exist.
  """
  return [
    status and (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in _statuses(files)
  ]


def changes(files: Sequence[str]) -> list[tuple[int, int] | None]:
  """Returns (number of the device, time of status change in ns) of each file; None for a file that does not exist."""
  return [status and (status.st_dev, status.st_ctime_ns) for status in _statuses(files)]


def _statuses(files) -> list[os.stat_result | None]:
  """Returns the status of each file, with several requests at once, because a file server answers slowly."""

  def ask(first):
    result = []
    for file in files[first : first + 1000]:
      try:
        result.append(os.stat(file))
      except (OSError, ValueError):  # reported when the file is read; a name may have a character of code 0
        result.append(None)
    return result

  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    return [one for some in pool.map(ask, range(0, len(files), 1000)) for one in some]


class Version(NamedTuple):
  """Values that identify a file and its content. At least one of them changes when the file is replaced or written to.

  Size and time of modification alone do not: `cp -p`, `rsync -t` and `os.utime` restore the time, and a label can
  change without a change of size. No program can set the time of status change (`changed`).
  """

  path: str  # absolute, as it was named
  real: str  # the same without symbolic links
  device: int
  inode: int
  size: int  # bytes
  modified: int  # ns
  changed: int  # ns, of the status
  sampled: str  # digest of some bytes, for file systems whose times are coarse or whose inodes are reused


def version(file: str | os.PathLike) -> Version:
  """Returns the version of a regular file on a disk; reads up to WHOLE bytes of it. Raises OSError."""
  path, hashed = os.path.abspath(file), hashlib.blake2b(digest_size=16)
  with open(path, "rb", buffering=0) as opened:
    status = os.fstat(opened.fileno())
    whole, last = status.st_size <= WHOLE, status.st_size - BLOCK
    blocks = [(0, WHOLE)] if whole else [(last * i // (BLOCKS - 1), BLOCK) for i in range(BLOCKS)]
    for first, size in blocks:
      hashed.update(os.pread(opened.fileno(), size, first))
  times = status.st_mtime_ns, status.st_ctime_ns
  about = status.st_dev, status.st_ino, status.st_size, *times
  return Version(path, os.path.realpath(path), *about, hashed.hexdigest())
