"""Where datasets lie, on a disk or in a bucket: what is there, and whether it can be reached."""

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from vit_jax import paths
from vit_jax.data import local_files, sources
from vit_jax.schema import ConfigError, show

ASKED = 32  # files of a bucket at a time: of 3,000, each 50 ms away, it takes 5 s


def reached(root: os.PathLike, ask: Callable[[], Any]) -> Any:
  """What `ask()` says of a path; sources.UnreachableError where its bucket says nothing."""
  if not paths.in_bucket(root):
    return ask()
  try:
    paths.prepare()  # also in workers, to which nobody gives another path in a bucket
    paths.check_bucket(paths.bucket(root))
    return ask()
  except ConfigError as error:
    raise sources.UnreachableError(f"{root} cannot be reached: {error.message}", "path") from error
  except OSError as error:
    raise sources.UnreachableError(f"{root} cannot be reached: {str(error).splitlines()[0]}", "path") from error


def stamps(files: Sequence[pathlib.Path]) -> list[tuple[int, int]]:
  """(bytes, time of last change) of files of a disk or a bucket, of many at once; of a bucket in whole seconds."""

  def ask(file):
    if not paths.in_bucket(file):
      return local_files.stamp(file)
    status = file.stat()
    return status.length, status.mtime

  with futures.ThreadPoolExecutor(ASKED) as pool:
    return list(pool.map(ask, files))


class Disk(NamedTuple):
  """A folder of a disk."""

  root: pathlib.Path

  def is_file(self) -> bool:
    """Returns whether the root is a file and not a folder."""
    return self.root.is_file()

  def above(self) -> "Disk":
    """Returns the folder of the root."""
    return Disk(self.root.parent)

  def entries(self, folder: str) -> list[tuple[str, bool]]:
    """(name, whether it is a folder) of what is in a folder, given from the root on."""
    with os.scandir(self.root / folder) as entries:
      return [(entry.name, _is_folder(entry)) for entry in entries]

  def contains_itself(self, folder: str) -> bool:
    """Whether a folder is a link to one that it is in."""
    path = self.root / folder
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())

  def stamps(self, files: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """(bytes, time of last change) of files."""
    return local_files.stamps(self.on_disk(files))

  def on_disk(self, files: Sequence[str]) -> list[str]:
    """Returns the whole names of files that are on a disk."""
    return [f"{self.root}/{file}" for file in files]

  def versions(self, files: Sequence[str]) -> tuple[tuple, ...]:
    """Returns (): the version of a file on a disk is determined when it is used, see `local_files.version`."""
    return ()

  def read(self, file: str) -> bytes:
    """The content of a file. Raises OSError."""
    return local_files.contents(self.root / file)


class Bucket(NamedTuple):
  """A folder of a bucket, listed once, a request for 1,000 objects; each file that is read is one more."""

  root: pathlib.Path
  objects: dict[str, tuple[int, str]]  # (bytes, time of last change) by name, from the root on; "" is the root itself
  folders: dict[str, dict[str, bool]]  # whether it is a folder, by name, by folder
  described: dict[str, tuple[str, ...]]  # `buckets.version` by name

  @classmethod
  def listed(cls, root: pathlib.Path) -> "Bucket":
    """Returns a listing of the current content. Raises OSError."""
    from vit_jax import buckets

    start, objects, folders, described = str(root).removeprefix(paths.BUCKET), {}, {}, {}
    for name, about in file_system().find(str(root), detail=True).items():
      name = name.removeprefix(start).lstrip("/")
      objects[name], described[name] = (about["size"], str(about["updated"])), buckets.version(about)
      while name:
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, {}).setdefault(last, name not in objects)
        name = folder
    return cls(root, objects, folders, described)

  def is_file(self) -> bool:
    """Returns whether the root is an object and not a folder."""
    return "" in self.objects

  def above(self) -> "Bucket":
    """Returns the folder of an object, with this object alone in it."""
    name = self.root.name
    return Bucket(self.root.parent, {name: self.objects[""]}, {"": {name: False}}, {name: self.described[""]})

  def entries(self, folder: str) -> list[tuple[str, bool]]:
    """As of a `Disk`."""
    return list(self.folders.get(folder, {}).items())

  def contains_itself(self, folder: str) -> bool:
    """As of a `Disk`."""
    return False

  def stamps(self, files: Sequence[str]) -> list[tuple[int | None, str | None]]:
    """As of a `Disk`."""
    return [self.objects.get(file, (None, None)) for file in files]

  def on_disk(self, files: Sequence[str]) -> list[str]:
    """Returns []: a bucket is not a disk."""
    return []

  def versions(self, files: Sequence[str]) -> tuple[tuple, ...]:
    """Returns the version of each file, see `buckets.version`."""
    return tuple(self.described[file] for file in files)

  def read(self, file: str) -> bytes:
    """As of a `Disk`."""
    if self.objects[file][0] > local_files.LARGEST:
      raise OSError(f"it has {self.objects[file][0]:,} bytes; allowed: {local_files.LARGEST:,}")
    return file_system().cat_file(f"{self.root}/{file}")


@functools.cache
def file_system():
  """Buckets, for requests of our own."""
  from vit_jax import buckets

  return buckets.FileSystem()


def beside(manifest: str, file: str) -> str:
  """The path of a file that a manifest names, from the manifest's folder on unless it is a whole one."""
  if not file.startswith(paths.BUCKET):
    file = os.path.join(os.path.dirname(manifest), file)
  return file if file.startswith(paths.BUCKET) else os.path.expanduser(file)


def versions(files: Sequence[str]) -> list[tuple[str, ...]]:
  """Returns the version of each object, see `buckets.version`; () for an object that does not exist.

  Folders of which many objects are wanted are listed, 1,000 objects with a request. Each other object is a request.

  Args:
    files: whole names of objects, which begin with gs://.

  Raises:
    OSError: a bucket cannot be reached.
  """
  if not files:
    return []
  from vit_jax import buckets

  paths.prepare()
  system, folders = file_system(), {}
  for file in dict.fromkeys(files):
    folders.setdefault(file.rpartition("/")[0], []).append(file)

  def of_object(file):
    try:
      return file, buckets.version(system.info(file))
    except FileNotFoundError:  # reported when the image is read
      return file, ()

  def listed(folder):
    try:
      entries = system.ls(folder, detail=True)
    except FileNotFoundError:
      return {}
    return {paths.BUCKET + entry["name"]: buckets.version(entry) for entry in entries if entry["type"] == "file"}

  with futures.ThreadPoolExecutor(ASKED) as pool:
    large = [folder for folder, some in folders.items() if len(some) > ASKED]
    known = {file: version for each in pool.map(listed, large) for file, version in each.items()}
    known |= pool.map(of_object, [file for file in dict.fromkeys(files) if file not in known])
  return [known[file] for file in files]


def content(file: str) -> bytes:
  """The bytes of a file of a disk or a bucket. Raises OSError, also for what no image file is."""
  if "\0" in file:
    raise OSError("its path has a character of code 0")
  if not file.startswith(paths.BUCKET):
    try:
      return local_files.contents(file)
    except UnicodeEncodeError as error:
      raise OSError(f"its path {show(file)} is no Unicode") from error
  paths.prepare()
  data = file_system().cat_file(file, end=local_files.LARGEST + 1)
  if len(data) > local_files.LARGEST:
    raise OSError(f"it has more bytes than are allowed: {local_files.LARGEST:,}")
  return data


def _is_folder(entry):
  try:
    return entry.is_dir()
  except OSError:  # a link to itself
    return False
