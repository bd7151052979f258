"""Directories of datasets on a disk or in a bucket: listing, reading, versions, and checks that a bucket responds."""

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple, TypeVar

from vit_jax.data import local_files
from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import UnreachableError
from vit_jax.storage import paths

Answer = TypeVar("Answer")
ASKED = 32  # number of parallel requests to a bucket; 3,000 files with a latency of 50 ms take 5 s


def call_storage(root: os.PathLike[str], ask: Callable[[], Answer]) -> Answer:
  """Returns `ask()` for a path on a disk or in a bucket.

  Args:
    root: the path.
    ask: function that accesses the path.

  Raises:
    UnreachableError: if the bucket does not exist, does not answer or refuses access.
  """
  if not paths.is_in_bucket(root):
    return ask()
  try:
    paths.prepare_buckets()  # also required in workers, which may not have used a bucket before
    paths.check_bucket(paths.get_bucket_name(root))
    return ask()
  except ConfigError as error:
    raise UnreachableError(f"{root} cannot be reached: {error.message}", "path") from error
  except OSError as error:
    raise UnreachableError(f"{root} cannot be reached: {str(error).splitlines()[0]}", "path") from error


def read_stamps(files: Sequence[pathlib.Path]) -> list[tuple[int, int]]:
  """Returns (bytes, modification time) of files on a disk or in a bucket. Queries many files in parallel.

  Modification times of objects in a bucket are in whole seconds.
  """

  def ask(file: Any) -> Any:
    if not paths.is_in_bucket(file):
      return local_files.read_stamp(file)
    status = file.stat()
    return status.length, status.mtime

  with futures.ThreadPoolExecutor(ASKED) as pool:
    return list(pool.map(ask, files))


class DiskFolder(NamedTuple):
  """A directory on a disk. Paths of its methods are relative to `root`.

  Attributes:
    root: the directory.
  """

  root: pathlib.Path

  def is_file(self) -> bool:
    """Returns whether the root is a file instead of a directory."""
    return self.root.is_file()

  def open_parent(self) -> "DiskFolder":
    """Returns the parent directory of the root."""
    return DiskFolder(self.root.parent)

  def list_entries(self, folder: str) -> list[tuple[str, bool]]:
    """Returns (name, whether it is a directory) of each entry of a directory."""
    with os.scandir(self.root / folder) as entries:
      return [(entry.name, _is_folder(entry)) for entry in entries]

  def contains_itself(self, folder: str) -> bool:
    """Returns whether a directory is a link to a directory that contains it."""
    path = self.root / folder
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())

  def read_stamps(self, files: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Returns (bytes, modification time) of files."""
    return local_files.read_stamps(self.list_local_paths(files))

  def list_local_paths(self, files: Sequence[str]) -> list[str]:
    """Returns the complete paths of files that are on a disk."""
    return [f"{self.root}/{file}" for file in files]

  def read_versions(self, files: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """Returns (). The version of a local file is determined when the file is used, see `local_files.read_version`."""
    return ()

  def read(self, file: str) -> bytes:
    """Returns the content of a file. Raises OSError."""
    return local_files.read_file(self.root / file)


class BucketFolder(NamedTuple):
  """A directory in a bucket. Listing it needs one request per 1,000 objects, and each read is another request.

  Attributes:
    root: the directory.
    objects: (bytes, modification time) by path relative to the root. "" is the root itself if it is an object.
    folders: for each directory, whether each of its entries is a directory.
    described: result of `buckets.get_version` by path relative to the root.
  """

  root: pathlib.Path
  objects: dict[str, tuple[int, str]]
  folders: dict[str, dict[str, bool]]
  described: dict[str, tuple[str, ...]]

  @classmethod
  def read_listing(cls, root: pathlib.Path) -> "BucketFolder":
    """Returns a listing of the current content. Raises OSError."""
    from vit_jax.storage import buckets

    start, objects, folders, described = str(root).removeprefix(paths.BUCKET), {}, {}, {}
    for name, about in file_system().find(str(root), detail=True).items():
      name = name.removeprefix(start).lstrip("/")
      objects[name], described[name] = (about["size"], str(about["updated"])), buckets.get_version(about)
      while name:
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, {}).setdefault(last, name not in objects)
        name = folder
    return cls(root, objects, folders, described)

  def is_file(self) -> bool:
    """Returns whether the root is an object instead of a directory."""
    return "" in self.objects

  def open_parent(self) -> "BucketFolder":
    """Returns the parent directory of an object, with only this object."""
    name = self.root.name
    return BucketFolder(self.root.parent, {name: self.objects[""]}, {"": {name: False}}, {name: self.described[""]})

  def list_entries(self, folder: str) -> list[tuple[str, bool]]:
    """Returns (name, whether it is a directory) of each entry of a directory."""
    return list(self.folders.get(folder, {}).items())

  def contains_itself(self, folder: str) -> bool:
    """Returns False, because buckets have no links."""
    return False

  def read_stamps(self, files: Sequence[str]) -> list[tuple[int | None, str | None]]:
    """Returns (bytes, modification time) of files, or (None, None) for an object that does not exist."""
    return [self.objects.get(file, (None, None)) for file in files]

  def list_local_paths(self, files: Sequence[str]) -> list[str]:
    """Returns [], because a bucket has no local files."""
    return []

  def read_versions(self, files: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """Returns the version of each file, see `buckets.get_version`."""
    return tuple(self.described[file] for file in files)

  def read(self, file: str) -> bytes:
    """Returns the content of a file. Raises OSError."""
    if self.objects[file][0] > local_files.LARGEST:
      raise OSError(f"it has {self.objects[file][0]:,} bytes. Allowed: {local_files.LARGEST:,}")
    return file_system().cat_file(f"{self.root}/{file}")


Folder = DiskFolder | BucketFolder


@functools.cache
def file_system() -> Any:
  """Returns the file system of buckets that direct requests use."""
  from vit_jax.storage import buckets

  return buckets.FileSystem()


def resolve_manifest_path(manifest: str, file: str) -> str:
  """Returns the complete path of a file, from its path in a manifest.

  Args:
    manifest: path of the manifest.
    file: path in the manifest. Relative paths start at the directory of the manifest.
  """
  if not file.startswith(paths.BUCKET):
    file = os.path.join(os.path.dirname(manifest), file)
  return file if file.startswith(paths.BUCKET) else os.path.expanduser(file)


def read_versions(files: Sequence[str]) -> list[tuple[str, ...]]:
  """Returns the version of each object, see `buckets.get_version`, or () for an object that does not exist.

  A directory with many of these objects is listed, with 1,000 objects per request. Each remaining object needs one
  request.

  Args:
    files: complete paths of objects, which start with gs://.

  Raises:
    OSError: if a bucket cannot be reached.
  """
  if not files:
    return []
  from vit_jax.storage import buckets

  paths.prepare_buckets()
  system, folders = file_system(), {}
  for file in dict.fromkeys(files):
    folders.setdefault(file.rpartition("/")[0], []).append(file)

  def read_version(file: str) -> Any:
    try:
      return file, buckets.get_version(system.info(file))
    except FileNotFoundError:  # errors are reported when the image is read
      return file, ()

  def list_versions(folder: str) -> Any:
    try:
      entries = system.ls(folder, detail=True)
    except FileNotFoundError:
      return {}
    return {paths.BUCKET + entry["name"]: buckets.get_version(entry) for entry in entries if entry["type"] == "file"}

  with futures.ThreadPoolExecutor(ASKED) as pool:
    large = [folder for folder, some in folders.items() if len(some) > ASKED]
    known = {file: version for each in pool.map(list_versions, large) for file, version in each.items()}
    known |= pool.map(read_version, [file for file in dict.fromkeys(files) if file not in known])
  return [known[file] for file in files]


def read_content(file: str) -> bytes:
  """Returns the content of an image file on a disk or in a bucket.

  Args:
    file: complete path of the file.

  Raises:
    OSError: if the file cannot be read, is larger than `local_files.LARGEST`, or has an invalid path.
  """
  if "\0" in file:
    raise OSError("its path contains a null character")
  if not file.startswith(paths.BUCKET):
    try:
      return local_files.read_file(file)
    except UnicodeEncodeError as error:
      raise OSError(f"its path {show(file)} is not valid Unicode") from error
  paths.prepare_buckets()
  data = file_system().cat_file(file, end=local_files.LARGEST + 1)
  if len(data) > local_files.LARGEST:
    raise OSError(f"it is larger than the limit of {local_files.LARGEST:,} bytes")
  return data


def _is_folder(entry: os.DirEntry[str]) -> bool:
  try:
    return entry.is_dir()
  except OSError:  # for example, a link to itself
    return False
