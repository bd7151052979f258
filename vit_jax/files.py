"""Files: replaced whole or not at all, added to, read as JSON within bounds, written as CSV, cached."""

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

from vit_jax import disk, locks, ownership, paths
from vit_jax.json_text import JSON_BYTES as JSON_BYTES
from vit_jax.json_text import parse_json as parse_json
from vit_jax.schema import ConfigError, show

_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # but those that stand for bytes of file names
DAMAGE = (  # what NumPy and zipfile raise of damaged or hostile files, beside OSError
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
def replacing(path: pathlib.Path, before: Callable[[], None] | None = None) -> Iterator[pathlib.Path]:
  """Yields a temporary path on a disk to write to; its content takes the place of `path` when the context ends.

  A reader, or a restart after a kill, sees the old file or the new one, never a part. An exception inside the context
  keeps the old file. Several processes may write at once, each to a temporary file of its own. An object in a bucket is
  replaced by one upload.

  The new file keeps the mode of the old one, and its owner and group where this account may set them. Without an old
  file the mode follows the umask. If `path` is a symbolic link, the file that it leads to is replaced, and the link
  stays. Access control lists, extended attributes and hard links are not kept.

  Args:
    path: the file to replace.
    before: called when all is written, by one process of the folder at a time, which then replaces the file. An
      exception that it raises keeps the old file.

  Raises:
    OSError: the file cannot be written, nothing was written, or `path` is no regular file.
  """
  if paths.in_bucket(path):
    with tempfile.TemporaryDirectory(prefix="vit_jax_") as folder:
      partial = pathlib.Path(folder, path.name)
      yield partial
      if before:
        before()
      copy(partial, path)
    return
  with disk.writing(path):
    target = ownership.find_target(path)
    with locks.partial(target) as partial:
      try:
        mode = ownership.take_mode(target, partial)
        os.utime(partial, (0, 0))  # writing, and opening to write, change that
        yield partial
        if not partial.stat().st_mtime_ns:
          raise FileNotFoundError(errno.ENOENT, "nothing was written", str(path))
        ownership.set_mode(partial, mode)
        with partial.open("rb") as file:
          os.fsync(file.fileno())
        with locks.alone(target.parent) if before else contextlib.nullcontext():
          if before:
            before()
          os.replace(partial, target)
      finally:
        with contextlib.suppress(OSError):  # of what went wrong before, if anything
          partial.unlink()


def write_text(path: pathlib.Path, text: str) -> None:
  """Replaces a file by the text, see `replacing`."""
  if paths.in_bucket(path):  # in one request
    with disk.writing(path):
      path.write_bytes(text.encode())
    return
  with replacing(path) as partial:
    partial.write_text(text)


def write_together(documents: Mapping[pathlib.Path, str]) -> None:
  """Writes texts, of which none is left where one cannot be written; one that is there already with its text stays."""
  made = []
  try:
    for path, text in documents.items():
      if content(path) != text.encode():
        write_text(path, text)
        made.append(path)
  except OSError:
    for path in made:
      path.unlink(missing_ok=True)
    raise


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies a file or a folder into a bucket; an object appears there whole or not at all."""
  if source.is_dir():
    for each in sorted(source.iterdir()):
      copy(each, target / each.name)
    return
  from vit_jax import buckets  # gcsfs, if it is there, takes a second

  with disk.writing(target):
    buckets.FileSystem().put_file(str(source), str(target))


def local(path: pathlib.Path, beside: Sequence[str] = ()) -> pathlib.Path:
  """The file itself, or of an object in a bucket a copy on this machine's disk, for libraries that read nothing else.

  The copy is kept in the cache under bucket, name and version of the object (`buckets.version`). The objects of its
  folder whose names are in `beside` are copied too.
  """
  if not paths.in_bucket(path):
    return path
  folder = local_cache("objects")
  there = [path, *(other for name in beside if (other := path.with_name(name)).exists())]
  from vit_jax import buckets  # gcsfs, if it is there, takes a second

  file_system = buckets.FileSystem()
  about = [(str(each), buckets.version(file_system.info(str(each)))) for each in there]
  folder /= hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
  for source in there:
    target = folder / source.name
    if not target.exists():
      folder.mkdir(parents=True, exist_ok=True)
      with source.open("rb") as content, replacing(target) as partial, partial.open("wb") as file:
        shutil.copyfileobj(content, file, 2**22)
  return folder / path.name


def read_json(path: pathlib.Path) -> dict | None:
  """The JSON object in a file; None where there is no such file, or an empty object. OSError for a bucket's trouble.

  ConfigError for what is no such text, and for a link that leads nowhere.
  """
  try:
    data = content(path) if paths.in_bucket(path) else _read(path)
    values = {} if data is None else parse_json(data)
  except ConfigError:
    raise
  except ValueError as error:
    raise ConfigError(f"{path} cannot be read as JSON ({error}); mend or remove it") from error
  if not isinstance(values, dict):
    raise ConfigError(f"{path} holds no JSON object; mend or remove it")
  return values or None


def _read(path):
  """The beginning of a file of a disk, None where there is none; ValueError where it cannot be read."""
  try:
    if not path.exists():
      if path.is_symlink():
        leads = show(os.readlink(path))
        raise ConfigError(f"{path} is a link to {leads}, where no file is; bring that file back, or remove the link")
      return None
    if not path.is_file():
      raise ValueError("it is no file")
    with path.open("rb") as file:
      return file.read(JSON_BYTES + 1)
  except OSError as error:
    raise ValueError(str(error)) from error


def content(path: pathlib.Path) -> bytes | None:
  """What a file holds; None where there is none."""
  try:
    return path.read_bytes()
  except FileNotFoundError:
    return None


def size(path: pathlib.Path) -> int | None:
  """Bytes of a file; None where there is none."""
  try:
    status = path.stat()
  except FileNotFoundError:
    return None
  return status.length if paths.in_bucket(path) else status.st_size


def write_csv(path: pathlib.Path, rows: Iterable[Sequence]) -> None:
  """Replaces a file by rows of cells, numbers and texts; of these, names that come from elsewhere are `csv_name`s."""
  # Names of files need not be UTF-8; Python carries such bytes as surrogates, and they go out as they came.
  with replacing(path) as partial, partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
    plain, quoted = (csv.writer(file, lineterminator="\n", quoting=q) for q in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in rows:  # before Python 3.13 a cell with \r alone is not quoted
      (quoted if any(isinstance(cell, str) and "\r" in cell for cell in row) else plain).writerow(row)


def csv_name(name: str) -> str:
  """A name as a cell: with ' in front where a spreadsheet would compute with it, or where it begins with ' itself.

  Whoever reads it takes the first ' away. Half of a pair of UTF-16, which JSON may have and no file, becomes U+FFFD.
  """
  name = _HALVES.sub("\ufffd", name)
  return f"'{name}" if name[:1] in tuple("=+-@\t\r\n'＝＋－＠") else name


def cache(kind: str) -> pathlib.Path:
  """Returns the directory of what can be computed again: $XDG_CACHE_HOME/vit_jax, else ~/.cache/vit_jax."""
  folder = paths.path(os.environ.get("XDG_CACHE_HOME") or paths.expand(pathlib.Path("~/.cache")))
  return folder / "vit_jax" / kind


def local_cache(kind: str) -> pathlib.Path:
  """Returns the same on this machine's disk: ~/.cache/vit_jax if the other is in a bucket."""
  folder = cache(kind)
  return paths.expand(pathlib.Path("~/.cache/vit_jax", kind)) if paths.in_bucket(folder) else folder


def check_path(path: pathlib.Path, suffixes: Sequence[str] = (".csv", ".npz")) -> None:
  """ConfigError for a path that nothing can be written to, before the work starts."""
  if path.suffix.lower() not in suffixes:
    raise ConfigError(f"{path}: {path.suffix or 'no suffix'} is not a format; end the name in {' or '.join(suffixes)}")
  if path.is_dir():
    raise ConfigError(f"{path} is a folder; name a file")
  if not paths.in_bucket(path) and not path.parent.is_dir():
    raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or name a file in one that exists")
