"""Files: replaced whole or not at all, read as JSON, cached; and what is said when a disk fails."""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

from vit_jax.schema import ConfigError

# What to do about an error of the disk.
ADVICE = {
  errno.ENOSPC: "the disk is full: make room (df shows where)",
  errno.EDQUOT: "your quota is used up: make room (quota shows how much)",
  errno.EFBIG: "files may not grow beyond the limit of this process: raise it (ulimit -f)",
  errno.EROFS: "it is mounted read-only: mount it for writing",
  errno.EACCES: "change its owner or its rights",
  errno.EPERM: "change its owner or its rights",
}


def trouble(error: OSError) -> str:
  """The file, what is wrong with it and what to do, in one line."""
  # Some libraries raise an OSError that is a text and nothing else.
  text = str(error) if error.errno is None else error.strerror
  name = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
  return f"{name}{text}; {ADVICE.get(error.errno, 'mend it')}, and run the same command again"


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Gives an OSError the name of the file; of its own a failed write names none."""
  try:
    yield
  except OSError as error:
    if error.errno is not None:
      error.filename = str(path)
    raise


def check_there(path: pathlib.Path, descriptor: int) -> None:
  """FileNotFoundError if `path` leads no longer to what is open as `descriptor`: what is written there would be lost.

  The descriptor is held open, so that a file system that numbers files as it meets them keeps the number.
  """
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    if os.path.samestat(os.stat(path), os.fstat(descriptor)):
      return
  raise FileNotFoundError(errno.ENOENT, "the workdir is gone: it was removed, moved or replaced", str(path))


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A path beside `path` to write to, which takes its place at the end.

  A reader, or a restart after a kill, sees the old file or the new one, never a part; what raises leaves the old one.
  """
  partial = path.with_name(f".{path.name}.partial")
  with writing(path):
    try:
      yield partial
      with partial.open("rb") as file:
        os.fsync(file.fileno())
      os.replace(partial, path)
    finally:
      with contextlib.suppress(OSError):  # of what went wrong before, if anything
        partial.unlink()


def write_text(path: pathlib.Path, text: str) -> None:
  """Replaces a file by the text, see `replacing`."""
  with replacing(path) as partial:
    partial.write_text(text)


def read_json(path: pathlib.Path) -> dict | None:
  """The JSON object in a file; None where there is no such file, or an empty object."""
  try:
    values = json.loads(path.read_text()) if path.exists() else {}
  except (ValueError, OSError) as error:
    raise ConfigError(f"{path} cannot be read as JSON ({error}); mend or remove it") from error
  if not isinstance(values, dict):
    raise ConfigError(f"{path} holds no JSON object; mend or remove it")
  return values or None


def cache(kind: str) -> pathlib.Path:
  """Where things are kept that can be computed again: $XDG_CACHE_HOME/vit_jax, else ~/.cache/vit_jax."""
  folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
  return folder / "vit_jax" / kind


def check_path(path: pathlib.Path, suffixes: Sequence[str] = (".csv", ".npz")) -> None:
  """ConfigError for a path that nothing can be written to, before the work starts."""
  if path.suffix.lower() not in suffixes:
    raise ConfigError(f"{path}: {path.suffix or 'no suffix'} is not a format; end the name in {' or '.join(suffixes)}")
  if path.is_dir():
    raise ConfigError(f"{path} is a folder; name a file")
  if not path.parent.is_dir():
    raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or name a file in one that exists")
