"""A user's text as a path: on a disk, or in a bucket of Google Cloud Storage."""

import contextlib
import functools
import os
import pathlib
import re
from collections.abc import Iterator

from etils import epath

from vit_jax import extras
from vit_jax.schema import ConfigError, show

BUCKET = "gs://"


def path(text: str | os.PathLike, bare: bool = False) -> pathlib.Path:
  """The path that a user means, see `parse`. ConfigError also where its bucket, gcsfs or credentials are missing."""
  parsed = parse(text, bare)
  if in_bucket(parsed):
    try:
      prepare()
      check_bucket(bucket(parsed))
    except ConfigError as error:
      raise ConfigError(f"{os.fspath(text)}: {error}") from error
  return parsed


def parse(text: str | os.PathLike, bare: bool = False) -> pathlib.Path:
  """A path on a disk, or for gs://BUCKET/NAME in a bucket (an `epath.Path`), whether or not that can be used.

  ConfigError for other schemes, and for a bucket without a name in it, which `bare` allows.
  """
  text = os.fspath(text)
  scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
  if not scheme or (os.path.lexists(f"{scheme[1]}:") and not text.startswith(f"{scheme[1]}://")):
    return pathlib.Path(text)
  name = text.removeprefix(BUCKET)
  if name == text:
    raise ConfigError(f"{show(text)}: no such scheme is known; allowed: a path of a disk, or gs://BUCKET/NAME")
  first, *inside = name.rstrip("/").split("/")
  if not first or not (any(inside) or bare) or ".." in inside:
    raise ConfigError(f"{show(text)}: a bucket and a name in it are needed, without '..': gs://BUCKET/NAME")
  return epath.Path(text.rstrip("/"))


def in_bucket(path: os.PathLike) -> bool:
  """Whether a path is in a bucket, where objects are replaced whole and there are no folders."""
  return os.fspath(path).startswith(BUCKET)


def bucket(path: os.PathLike) -> str:
  """The name of the bucket that a path is in."""
  return os.fspath(path).removeprefix(BUCKET).partition("/")[0]


def absolute(path: pathlib.Path) -> pathlib.Path:
  """From the root of the disk, or as it is in a bucket: etils would put the current folder in front."""
  return path if in_bucket(path) else path.absolute()


def expand(path: pathlib.Path) -> pathlib.Path:
  """Returns the path with the home directory in place of a leading `~` or `~USER`.

  Raises:
    ConfigError: there is no such user, or this user has no home directory.
  """
  try:
    return path.expanduser()
  except RuntimeError as error:
    first = path.parts[0]
    raise ConfigError(
      f"{show(str(path))}: the home directory of {show(first)} is unknown. Write the whole path"
      + (", or set HOME" if first == "~" else f", or ./{first} for a directory of this name")
    ) from error


@functools.cache
def prepare():
  """Makes sure, once and before a path is used, that buckets can be, by our own requests; ConfigError if not."""
  try:
    import fsspec
    import gcsfs  # noqa: F401 - whether it can be
  except ImportError as error:
    raise ConfigError(f"buckets need {extras.advice('gcs')} ({error})") from error
  from vit_jax import buckets  # a second, only for those who use them

  buckets.patience()  # what it says is checked before anything waits
  for protocol in ("gs", "gcs"):
    fsspec.register_implementation(protocol, "vit_jax.buckets.FileSystem", clobber=True)
  if os.environ.get("STORAGE_EMULATOR_HOST"):
    return
  import google.auth

  try:
    google.auth.default()
  except google.auth.exceptions.GoogleAuthError as error:
    raise ConfigError(
      "there are no credentials; run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to "
      "the file of a key, or give the VM a service account with the scope of storage"
    ) from error


@functools.cache
def check_bucket(name: str) -> None:
  """ConfigError where there is no such bucket; asks once. OSError where it refuses or does not answer."""
  from vit_jax import buckets

  try:
    buckets.FileSystem().call("GET", "b/{}/o", name, maxResults=1)
  except FileNotFoundError as error:
    raise ConfigError(f"there is no bucket {name!r}, or this account may not see it") from error


@contextlib.contextmanager
def new_folders(folder: pathlib.Path) -> Iterator[None]:
  """Creates a folder of a disk and those above it that are missing; removes them again if the body raises.

  Args:
    folder: to create. A folder of a bucket needs no creation.

  Raises:
    ConfigError: if a file is in the place of one of the folders.
    OSError: if a folder cannot be created.
  """
  missing = []
  if not in_bucket(folder):
    above = folder.absolute()
    while not above.is_dir():
      if above.exists() or above.is_symlink():
        raise ConfigError(f"{folder}: {above} is not a folder. Choose another path")
      missing.append(above)
      above = above.parent
  made, done = [], False
  try:
    for each in reversed(missing):
      each.mkdir(exist_ok=True)
      made.append(each)
    yield
    done = True
  finally:
    with contextlib.suppress(OSError):  # another process wrote into them
      for each in () if done else reversed(made):
        each.rmdir()
