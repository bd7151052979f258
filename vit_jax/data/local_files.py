"""Local files of data: reads with a size limit, and values that change when a file changes."""

import concurrent.futures
import hashlib
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

# Size of the largest image file in bytes. All images that are allowed by default are smaller if they are compressed.
LARGEST = 2**28
# A digest includes all bytes of a file of up to WHOLE bytes, and BLOCKS blocks of BLOCK bytes of a larger file.
WHOLE, BLOCKS, BLOCK = 2**18, 8, 2**14
_KINDS = {"d": "a folder", "p": "a named pipe", "s": "a socket", "c": "a device", "b": "a device"}


def read_file(file: str | os.PathLike[str]) -> bytes:
  """Returns the content of a regular file.

  Args:
    file: path of the file.

  Raises:
    OSError: if the file cannot be read, has more than `LARGEST` bytes, or is not a regular file. Opening a named pipe,
      for example, could block forever.
  """
  descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
  try:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
      raise OSError(f"it is {_KINDS[stat.filemode(status.st_mode)[0]]}, not a regular file")
    if status.st_size > LARGEST:
      raise OSError(f"it has {status.st_size:,} bytes. Allowed: {LARGEST:,}")
    with open(descriptor, "rb", closefd=False) as opened:
      return opened.read(status.st_size)
  finally:
    os.close(descriptor)


def read_stamp(file: str | os.PathLike[str]) -> tuple[int, int]:
  """Returns (size in bytes, modification time in ns) of a local file."""
  status = os.stat(file)
  return status.st_size, status.st_mtime_ns


def read_stamps(files: Sequence[str]) -> list[tuple[int | None, int | None]]:
  """Returns the `read_stamp` of each file, or (None, None) for a file that does not exist."""
  return [(None, None) if status is None else (status.st_size, status.st_mtime_ns) for status in _read_statuses(files)]


def read_states(files: Sequence[str]) -> list[tuple[int, ...] | None]:
  """Returns the state of each file. At least one value of the state changes when the file is replaced or written to.

  Contents of files are not read. Programs cannot choose the time of status change. For example, `cp -p` and `touch` set
  it to the current time. The device number is not included, because it can change when a machine is restarted.

  Args:
    files: paths of local files.

  Returns:
    (inode, size in bytes, modification time in ns, time of status change in ns) of each file. None for a file that
    does not exist.
  """
  return [
    status and (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    for status in _read_statuses(files)
  ]


def read_change_times(files: Sequence[str]) -> list[tuple[int, int] | None]:
  """Returns (device number, time of status change in ns) of each file, or None for a file that does not exist."""
  return [status and (status.st_dev, status.st_ctime_ns) for status in _read_statuses(files)]


def _read_statuses(files: Sequence[str]) -> list[os.stat_result | None]:
  """Returns the status of each file. Uses parallel requests, because file servers answer slowly."""

  def ask(first: int) -> list[os.stat_result | None]:
    result: list[os.stat_result | None] = []
    for file in files[first : first + 1000]:
      try:
        result.append(os.stat(file))
      except (OSError, ValueError):  # reported when the file is read; a name may contain a character with code 0
        result.append(None)
    return result

  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    return [one for some in pool.map(ask, range(0, len(files), 1000)) for one in some]


class FileVersion(NamedTuple):
  """Values that identify a file and its content. At least one of them changes when the file is replaced or written to.

  Size and modification time alone are not sufficient. `cp -p`, `rsync -t` and `os.utime` restore the time, and a label
  can change without a change of size. Programs cannot choose the time of status change (`changed`).

  Attributes:
    path: absolute path, as given.
    real: absolute path without symbolic links.
    device: device number.
    inode: inode number.
    size: size in bytes.
    modified: modification time in ns.
    changed: time of status change in ns.
    sampled: digest of some bytes, for file systems with coarse times or reused inodes.
  """

  path: str
  real: str
  device: int
  inode: int
  size: int
  modified: int
  changed: int
  sampled: str


def read_version(file: str | os.PathLike[str]) -> FileVersion:
  """Returns the version of a regular local file. Reads up to `WHOLE` bytes of it. Raises OSError."""
  path, hashed = os.path.abspath(file), hashlib.blake2b(digest_size=16)
  with open(path, "rb", buffering=0) as opened:
    status = os.fstat(opened.fileno())
    whole, last = status.st_size <= WHOLE, status.st_size - BLOCK
    blocks = [(0, WHOLE)] if whole else [(last * i // (BLOCKS - 1), BLOCK) for i in range(BLOCKS)]
    for first, size in blocks:
      hashed.update(os.pread(opened.fileno(), size, first))
  times = status.st_mtime_ns, status.st_ctime_ns
  about = status.st_dev, status.st_ino, status.st_size, *times
  return FileVersion(path, os.path.realpath(path), *about, hashed.hexdigest())
