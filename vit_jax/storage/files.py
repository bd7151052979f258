"""File operations: atomic replacement, copies to and from buckets, JSON, CSV, and cache directories."""

import contextlib
import csv
import errno
import hashlib
import json
import lzma
import os
import pathlib
import re
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from vit_jax.schema import ConfigError, show
from vit_jax.storage import errors, locks, ownership, paths
from vit_jax.storage.json_text import JSON_BYTES as JSON_BYTES
from vit_jax.storage.json_text import parse_json as parse_json

_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # all surrogates except those that represent bytes of file names
DAMAGE = (  # exceptions of NumPy and zipfile for damaged or hostile files, in addition to OSError
  ArithmeticError,
  AssertionError,
  AttributeError,
  EOFError,
  LookupError,
  MemoryError,
  RuntimeError,
  SyntaxError,
  TypeError,
  ValueError,
  lzma.LZMAError,
  struct.error,
  tokenize.TokenError,
  zipfile.BadZipFile,
  zlib.error,
)


@contextlib.contextmanager
def atomic_write(path: pathlib.Path, before: Callable[[], None] | None = None) -> Iterator[pathlib.Path]:
  """Yields a temporary path to write to. When the context ends, the temporary file replaces `path`.

  A reader, or a restart after a kill, sees either the old file or the complete new file. An exception inside the
  context keeps the old file. Several processes may write at the same time, because each has its own temporary file. An
  object in a bucket is replaced by one upload.

  The new file keeps the mode of the old file. It keeps the owner and group too, if this account may set them. If there
  is no old file, the mode follows the umask. If `path` is a symbolic link, its target is replaced, and the link is
  kept. Access control lists, extended attributes and hard links are not kept.

  Args:
    path: the file to replace.
    before: function that is called after all bytes are written and before the file is replaced. Only one process per
      directory calls this function at a time. If it raises an exception, the old file is kept.

  Raises:
    OSError: the file cannot be written, the context wrote no data, or `path` is not a regular file.

  Example:
    with atomic_write(pathlib.Path("figures.json")) as partial:
      partial.write_text("{}")
  """
  if paths.is_in_bucket(path):
    with tempfile.TemporaryDirectory(prefix="vit_jax_") as folder:
      partial = pathlib.Path(folder, path.name)
      yield partial
      if before:
        before()
      copy_to_bucket(partial, path)
    return
  with errors.add_file_name(path):
    target = ownership.find_target(path)
    with locks.open_partial(target) as partial:
      try:
        mode = ownership.copy_mode(target, partial)
        os.utime(partial, (0, 0))  # Opening the file for writing changes this time.
        yield partial
        if not partial.stat().st_mtime_ns:
          raise FileNotFoundError(errno.ENOENT, "nothing was written", str(path))
        ownership.set_mode(partial, mode)
        with partial.open("rb") as file:
          os.fsync(file.fileno())
        with locks.lock_folder(target.parent) if before else contextlib.nullcontext():
          if before:
            before()
          os.replace(partial, target)
      finally:
        with contextlib.suppress(OSError):  # an earlier error takes precedence
          partial.unlink()


def write_text(path: pathlib.Path, text: str) -> None:
  """Replaces a file by a text atomically, see `atomic_write`.

  Args:
    path: the file, on a disk or in a bucket.
    text: the new content.

  Raises:
    OSError: the file cannot be written.

  Example:
    write_text(pathlib.Path("notes.txt"), "first line")
  """
  if paths.is_in_bucket(path):  # in one request
    with errors.add_file_name(path):
      path.write_bytes(text.encode())
    return
  with atomic_write(path) as partial:
    partial.write_text(text)


def write_texts(documents: Mapping[pathlib.Path, str]) -> None:
  """Writes several texts. If a text cannot be written, the files that were written before are removed.

  A file that already has its text is neither written nor removed.

  Args:
    documents: maps paths to texts.

  Raises:
    OSError: a file cannot be written.
  """
  made = []
  try:
    for path, text in documents.items():
      if read_if_exists(path) != text.encode():
        write_text(path, text)
        made.append(path)
  except OSError:
    for path in made:
      path.unlink(missing_ok=True)
    raise


def copy_to_bucket(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies a file or directory into a bucket. Each object appears as a whole.

  Args:
    source: file or directory on a disk.
    target: path in a bucket.
  """
  if source.is_dir():
    for each in sorted(source.iterdir()):
      copy_to_bucket(each, target / each.name)
    return
  from vit_jax.storage import buckets  # gcsfs takes a second to import

  with errors.add_file_name(target):
    buckets.FileSystem().put_file(str(source), str(target))


def get_local_path(path: pathlib.Path, siblings: Sequence[str] = ()) -> pathlib.Path:
  """Returns a path on the local disk, for libraries that cannot read from buckets.

  The path of a file on a disk is returned unchanged. An object in a bucket is copied to the cache. Its directory in the
  cache depends on the bucket, the name and the version of the object (`buckets.get_version`).

  Args:
    path: the file or object.
    siblings: names of further objects in the same directory, which are also copied if they exist.
  """
  if not paths.is_in_bucket(path):
    return path
  folder = get_local_cache_directory("objects")
  there = [path, *(other for name in siblings if (other := path.with_name(name)).exists())]
  from vit_jax.storage import buckets  # gcsfs takes a second to import

  file_system = buckets.FileSystem()
  about = [(str(each), buckets.get_version(file_system.info(str(each)))) for each in there]
  folder /= hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
  for source in there:
    target = folder / source.name
    if not target.exists():
      folder.mkdir(parents=True, exist_ok=True)
      with source.open("rb") as content, atomic_write(target) as partial, partial.open("wb") as file:
        shutil.copyfileobj(content, file, 2**22)
  return folder / path.name


def read_json(path: pathlib.Path) -> dict[str, Any] | None:
  """Reads a JSON object.

  Args:
    path: the file, on a disk or in a bucket.

  Returns:
    The object, or None if the file does not exist or the object is empty.

  Raises:
    ConfigError: the file is not a JSON object, or it is a dangling link.
    OSError: the bucket fails.
  """
  try:
    data = read_if_exists(path) if paths.is_in_bucket(path) else _read_prefix(path)
    values = {} if data is None else parse_json(data)
  except ConfigError:
    raise
  except ValueError as error:
    raise ConfigError(f"{path} cannot be read as JSON ({error}). Fix or remove it") from error
  if not isinstance(values, dict):
    raise ConfigError(f"{path} does not contain a JSON object. Fix or remove it")
  return values or None


def _read_prefix(path: pathlib.Path) -> bytes | None:
  """Reads the first bytes of a file on a disk, or returns None if it is missing. Raises ValueError on failure."""
  try:
    if not path.exists():
      if path.is_symlink():
        leads = show(os.readlink(path))
        raise ConfigError(f"{path} is a link to {leads}, which does not exist. Restore that file, or remove the link")
      return None
    if not path.is_file():
      raise ValueError("it is not a file")
    with path.open("rb") as file:
      return file.read(JSON_BYTES + 1)
  except OSError as error:
    raise ValueError(str(error)) from error


def read_if_exists(path: pathlib.Path) -> bytes | None:
  """Returns the content of a file, or None if it does not exist.

  Raises:
    OSError: the file cannot be read. A pipe or a device is refused, because reading it may never end.
  """
  try:
    if not paths.is_in_bucket(path) and path.exists() and not (path.is_file() or path.is_dir()):
      raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()
  except FileNotFoundError:
    return None


def get_size(path: pathlib.Path) -> int | None:
  """Returns the size of a file in bytes, or None if it does not exist."""
  try:
    status = path.stat()
  except FileNotFoundError:
    return None
  length: int | None = getattr(status, "length", None)  # the status of an `epath.Path` has other names
  return status.st_size if length is None else length


def write_csv(path: pathlib.Path, rows: Iterable[Sequence[object]]) -> None:
  """Replaces a CSV file.

  Args:
    path: the file.
    rows: rows of numbers and texts. Names that come from users or files must be passed through `escape_csv`.

  Raises:
    OSError: the file cannot be written.
  """
  # Names of files need not be valid UTF-8. Python represents such bytes as surrogates, and they are written unchanged.
  with atomic_write(path) as partial, partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
    plain, quoted = (csv.writer(file, lineterminator="\n", quoting=q) for q in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in rows:  # before Python 3.13 a cell with \r alone is not quoted
      (quoted if any(isinstance(cell, str) and "\r" in cell for cell in row) else plain).writerow(row)


def escape_csv(name: str) -> str:
  """Returns a name as a CSV cell that spreadsheets do not evaluate.

  An apostrophe is put in front of a name that starts like a formula or with an apostrophe. Readers must remove a
  leading apostrophe. An unpaired UTF-16 surrogate, which JSON may contain but files may not, becomes U+FFFD.
  """
  name = _HALVES.sub("\ufffd", name)
  return f"'{name}" if name[:1] in tuple("=+-@\t\r\n'＝＋－＠") else name


def get_cache_directory(kind: str) -> pathlib.Path:
  """Returns the directory for data that can be recomputed: $XDG_CACHE_HOME/vit_jax, or ~/.cache/vit_jax by default.

  Args:
    kind: name of the subdirectory.
  """
  folder = paths.resolve_path(os.environ.get("XDG_CACHE_HOME") or paths.expand_home(pathlib.Path("~/.cache")))
  return folder / "vit_jax" / kind


def get_local_cache_directory(kind: str) -> pathlib.Path:
  """Returns the directory of `get_cache_directory`, or ~/.cache/vit_jax if that directory is in a bucket.

  Args:
    kind: name of the subdirectory.
  """
  folder = get_cache_directory(kind)
  return paths.expand_home(pathlib.Path("~/.cache/vit_jax", kind)) if paths.is_in_bucket(folder) else folder


def check_path(path: pathlib.Path, suffixes: Sequence[str] = (".csv", ".npz")) -> None:
  """Checks an output path before the work starts.

  Args:
    path: the path.
    suffixes: supported suffixes.

  Raises:
    ConfigError: the suffix is not supported, the path is a directory, or its parent directory does not exist.
  """
  if path.suffix.lower() not in suffixes:
    raise ConfigError(f"{path}: {path.suffix or 'no suffix'} is not a format. End the name in {' or '.join(suffixes)}")
  if path.is_dir():
    raise ConfigError(f"{path} is a folder. Name a file")
  if not paths.is_in_bucket(path) and not path.parent.is_dir():
    raise ConfigError(
      f"{path}: the folder {path.parent} does not exist. Create it, or name a file in an existing folder"
    )
