"""Listings of files with many records: the files at a path, the split of each file, and reads of their bytes."""

import concurrent.futures
import contextvars
import dataclasses
import errno
import functools
import io
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vit_jax.data import local_files
from vit_jax.data.readers import locations, patterns
from vit_jax.schema import ConfigError, enter_key, show
from vit_jax.schema.errors import AbsentError, format_names
from vit_jax.storage import paths

T = TypeVar("T")

DEPTH = 4  # levels of directories below the given one
OPEN = 256  # number of local files that are open at the same time; a process may have 1,024
STREAMED = 2**23  # bytes per request for sequential reads; starting a request takes as long as transferring 4 MB


@dataclasses.dataclass(frozen=True)
class Files:
  """Files below one directory, on a disk or in a bucket, sorted by name. Many threads may use them at the same time.

  Files are numbered from 0 in the order of `names`.

  Attributes:
    root: the directory.
    names: paths of the files, relative to the root.
    stamps: (bytes, modification time) of each file.
    versions: version of each object of a bucket, see `buckets.get_version`. Empty on a disk.
    matched: whether a pattern chose the files.
  """

  root: pathlib.Path
  names: tuple[str, ...]
  stamps: tuple[tuple[Any, ...], ...]
  versions: tuple[tuple[Any, ...], ...] = ()
  matched: bool = False

  @property
  def remote(self) -> bool:
    """True if the files are in a bucket."""
    return paths.is_in_bucket(self.root)

  def path(self, file: int) -> str:
    """Returns the complete path of a file."""
    return f"{self.root}/{self.names[file]}"

  def size(self, file: int) -> int:
    """Returns the size of a file in bytes."""
    return self.stamps[file][0]

  def version(self, file: int) -> tuple[Any, ...]:
    """Returns values that identify the content of a file. See `local_files.FileVersion` and `buckets.get_version`."""
    return (self.path(file), *self.versions[file]) if self.remote else local_files.read_version(self.path(file))

  def is_settled(self, file: int, seconds: float) -> bool:
    """Returns whether the next change of a file is certain to change its version.

    On a disk, this requires that the last change is old enough.

    Args:
      file: number of the file.
      seconds: time since the last change after which a local file is settled.
    """
    return self.remote or abs(time.time() - os.stat(self.path(file)).st_ctime) >= seconds

  def read(self, file: int, first: int, stop: int) -> bytes:
    """Returns the bytes from `first` up to, but not including, `stop` of a file.

    Args:
      file: number of the file.
      first: position of the first byte.
      stop: position after the last byte.

    Raises:
      OSError: if the file cannot be read. The error has no errno if the file is shorter than `stop`.
    """
    if self.remote:
      data = locations.file_system().cat_file(self.path(file), start=first, end=stop)
    else:
      opened, parts, at = self._open(file), [], first
      while at < stop and (part := os.pread(opened.fileno(), stop - at, at)):
        parts.append(part)
        at += len(part)
      data = b"".join(parts)
    if len(data) != stop - first:
      raise OSError(f"{self.path(file)} ends before byte {stop:,}: the file has become shorter")
    return data

  def open_stream(self, file: int, block: int) -> io.BufferedReader:
    """Returns a buffered stream of a file for sequential reads.

    Args:
      file: number of the file.
      block: bytes per read on a disk. A request to a bucket reads `STREAMED` bytes.
    """
    return io.BufferedReader(self.open_unbuffered(file), STREAMED if self.remote else block)

  def open_unbuffered(self, file: int) -> io.RawIOBase:
    """Returns an unbuffered stream of a file. Each read of the stream is a read of the file or a request."""
    return _Stream(self, file)

  def split(self, file: int) -> str:
    """Returns the split of a file according to its name. See `parse_split`."""
    return parse_split(self.names[file])

  def select(self, numbers: Sequence[int]) -> "Files":
    """Returns a selection of the files.

    Args:
      numbers: numbers of the files, in the new order.
    """
    names, stamps = tuple(self.names[i] for i in numbers), tuple(self.stamps[i] for i in numbers)
    versions = tuple(self.versions[i] for i in numbers if self.versions)
    return Files(self.root, names, stamps, versions, self.matched)

  def map_files(self, function: Callable[[int], T]) -> list[T]:
    """Returns the results of `function(file)` for the numbers of all files. Several files are processed in parallel.

    The first error ends the call and is raised.
    """
    with concurrent.futures.ThreadPoolExecutor(locations.ASKED if self.remote else 8) as pool:
      # Errors contain the current config key, which is stored in the context. A new thread does not have this context.
      waiting = [pool.submit(contextvars.copy_context().run, function, file) for file in range(len(self.names))]
      return [each.result() for each in waiting]

  @functools.cached_property
  def _open(self) -> Callable[[int], io.FileIO]:
    """Cached function that opens a file. Threads can still read from a file that has left the cache."""
    lock = threading.Lock()

    @functools.lru_cache(maxsize=OPEN)
    def open_cached(file: int) -> io.FileIO:
      return open(self.path(file), "rb", buffering=0)

    def open_locked(file: int) -> io.FileIO:
      with lock:
        return open_cached(file)

    return open_locked


class _Stream(io.RawIOBase):
  """A file of `Files` as a stream."""

  def __init__(self, files: Files, file: int) -> None:
    self._files, self._file, self._size, self._at = files, file, files.size(file), 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
    return self._at

  def tell(self) -> int:
    return self._at

  def readinto(self, buffer: Any) -> int:
    stop = min(self._at + len(buffer), self._size)
    data = self._files.read(self._file, self._at, stop) if stop > self._at else b""
    buffer[: len(data)] = data
    self._at += len(data)
    return len(data)


def list_files(path: str, suffixes: Sequence[str], what: str) -> Files:
  """Returns the files that a path specifies.

  Args:
    path: a file, a directory, or a pattern such as train-{0000..1023}.tar (see `patterns`), on a disk or in a bucket.
      A file or directory that exists under exactly this name is not interpreted as a pattern.
    suffixes: suffixes of the files to find in a directory.
    what: description of the files, for errors.

  Raises:
    AbsentError: if no file matches.
    ConfigError: if `path` is empty, is not a valid pattern, or specifies an empty file.
  """
  with enter_key("path"):
    named = paths.expand_home(paths.parse_path(path, bare=True))
  if not path:
    raise ConfigError(f"no path. Specify a folder or a file of {what}", "path")
  above, pattern = patterns.split_pattern(str(named), _exists)
  root = paths.parse_path(above, bare=True)
  tree = locations.call_storage(root, lambda: _open_tree(root))
  if pattern:
    found = patterns.find_matches(pattern, tree.list_entries)
    names = [name for name, is_folder in found.items() if not is_folder]
    names += [file for name, is_folder in found.items() if is_folder for file in _find_files(tree, name, suffixes)]
  elif tree.is_file():
    root, names, tree = root.parent, [root.name], tree.open_parent()
  else:
    names = _find_files(tree, "", suffixes)
  about = {name: stamp for name, stamp in zip(names, tree.read_stamps(names), strict=True) if stamp[0] is not None}
  if not about:
    advice = f" The path is a pattern. {patterns.ESCAPES}" if pattern else ""
    raise AbsentError(
      f"no {what} ({', '.join(suffixes)}) at {show(path)}. Specify a folder of such files, or one file.{advice}", "path"
    )
  names = sorted(about)
  if empty := [name for name in names if not about[name][0]]:
    raise ConfigError(f"{root}/{empty[0]} is empty. Remove it or restore it", "path")
  return Files(root, tuple(names), tuple(about[name] for name in names), tree.read_versions(names), bool(pattern))


def select_files(root: pathlib.Path, names: Sequence[str]) -> Files:
  """Returns files of a directory by name.

  Args:
    root: the directory, on a disk or in a bucket.
    names: paths of the files, relative to the directory.

  Raises:
    FileNotFoundError: if one of the files does not exist.
  """
  tree = locations.call_storage(root, lambda: _open_tree(root))
  stamps = tree.read_stamps(names)
  if absent := [name for name, stamp in zip(names, stamps, strict=True) if stamp[0] is None]:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{root}/{absent[0]}")
  return Files(root, tuple(names), tuple(stamps), tree.read_versions(names))


def parse_split(name: str) -> str:
  """Returns the split that a file belongs to, according to its name.

  The split is the last word of the file's name, ignoring numbers. If the file's name contains no word, the name of its
  directory is used. It is "train" for train-00000-of-00002.parquet (Hugging Face), imagenet1k-train-0000.tar (timm) and
  train/0000.tar. It is also "train" if neither name contains a word.
  """
  for part in reversed(pathlib.PurePosixPath(name).parts):
    stem = re.sub(r"[-_.]?\d+-of-\d+(-[0-9a-f]+)?$", "", re.sub(r"(\.[A-Za-z]+)+$", "", part))
    if word := re.split(r"[-_.]", re.sub(r"[-_.]*\d+$", "", stem))[-1]:
      return word
  return "train"


def group_by_split(files: Files) -> dict[str, Files]:
  """Returns the files of each split.

  Raises:
    ConfigError: if the files of one split are in several directories, unless a pattern chose them. Several directories
      may contain several versions of one dataset.
  """
  by_name = {}
  for file in range(len(files.names)):
    by_name.setdefault(files.split(file), []).append(file)
  for split, numbers in by_name.items():
    folders = sorted({os.path.dirname(files.names[i]) for i in numbers})
    if len(folders) > 1 and not files.matched:
      raise ConfigError(
        f"files of split {split!r} are in several folders of {files.root}: {format_names(folders, 5)}. Name one of "
        "them",
        "path",
      )
  return {split: files.select(numbers) for split, numbers in by_name.items()}


def _exists(path: str) -> bool:
  """Returns whether there is a file or directory with exactly this name."""
  if not paths.is_in_bucket(paths.parse_path(path, bare=True)):
    return os.path.lexists(path)

  def ask() -> bool:
    system = locations.file_system()
    return system.isfile(path) or system.isdir(path)

  return locations.call_storage(paths.parse_path(path, bare=True), ask)


def _open_tree(root: pathlib.Path) -> locations.Folder:
  """Returns the disk or bucket at a path. Raises AbsentError if the path does not exist."""
  if paths.is_in_bucket(root):
    return locations.BucketFolder.read_listing(root)
  if not root.is_dir() and not root.is_file():
    raise AbsentError(f"{show(str(root))} does not exist. Restore it, or name an existing path", "path")
  return locations.DiskFolder(root)


def _find_files(tree: locations.Folder, folder: str, suffixes: Sequence[str]) -> list[str]:
  """Returns the files below a directory that have one of the suffixes. On a disk, searches up to `DEPTH` levels."""
  start = f"{folder}/" if folder else ""
  if isinstance(tree, locations.BucketFolder):
    names = [name for name in tree.objects if name.startswith(start)]
  else:
    names, folders = [], [start]
    for _ in range(DEPTH):
      below = [
        (above, *entry) for above in folders for entry in tree.list_entries(above) if not entry[0].startswith(".")
      ]
      names += [f"{above}{name}" for above, name, is_folder in below if not is_folder]
      folders = [f"{above}{name}/" for above, name, is_folder in below if is_folder]
  return [name for name in names if name.lower().endswith(tuple(suffixes))]
