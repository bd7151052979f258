"""Paths that users provide: on a disk, or in a bucket of Google Cloud Storage."""

import contextlib
import functools
import os
import pathlib
import re
from collections.abc import Iterator

from etils import epath

from vit_jax.schema import ConfigError, extras, show
from vit_jax.storage import hub_addresses

BUCKET = "gs://"


def resolve_path(text: str | os.PathLike[str], bare: bool = False) -> pathlib.Path:
  """Parses a path and checks that its bucket can be used.

  Args:
    text: a path on a disk, or gs://BUCKET/NAME.
    bare: whether to accept a bucket without a name.

  Returns:
    A `pathlib.Path`, or an `epath.Path` for a bucket.

  Raises:
    ConfigError: the path is invalid, or the bucket, gcsfs or credentials are missing.
    OSError: the bucket refuses the request or does not respond.

  Example:
    workdir = resolve_path("runs/digits")
    assert not is_in_bucket(workdir)
  """
  parsed = parse_path(text, bare)
  if is_in_bucket(parsed):
    try:
      prepare_buckets()
      check_bucket(get_bucket_name(parsed))
    except ConfigError as error:
      raise ConfigError(f"{os.fspath(text)}: {error}") from error
  return parsed


def parse_path(text: str | os.PathLike[str], bare: bool = False) -> pathlib.Path:
  """Parses a path without any check of its bucket.

  Args:
    text: a path on a disk, or gs://BUCKET/NAME.
    bare: whether to accept a bucket without a name.

  Returns:
    A `pathlib.Path`, or an `epath.Path` for a bucket.

  Raises:
    ConfigError: the scheme is unknown, or the path in the bucket is invalid.
  """
  text = os.fspath(text)
  if text.startswith("hf:") and not text.startswith("hf:/"):
    raise ConfigError(
      f"{show(text)}: only weights can be on the Hugging Face Hub. Use a path on a disk, such as "
      f"{pathlib.Path(text).absolute()}"
    )
  scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
  if not scheme or (os.path.lexists(f"{scheme[1]}:") and not text.startswith(f"{scheme[1]}://")):
    path = pathlib.Path(text)
    # Path removes the ./ that distinguishes such a file from an address on the Hub.
    return path.absolute() if str(path).startswith(hub_addresses.PREFIX) else path
  name = text.removeprefix(BUCKET)
  if name == text:
    near = hub_addresses.suggest_address(text)
    raise ConfigError(f"{show(text)}: unknown scheme.{near} Use a path on a disk, or gs://BUCKET/NAME")
  first, *inside = name.rstrip("/").split("/")
  if not first or not (any(inside) or bare) or ".." in inside:
    raise ConfigError(f"{show(text)}: expected a bucket and a name in it, without '..': gs://BUCKET/NAME")
  return epath.Path(text.rstrip("/"))


def is_in_bucket(path: os.PathLike[str]) -> bool:
  """Returns whether a path is in a bucket, where objects are replaced as a whole and directories do not exist."""
  return os.fspath(path).startswith(BUCKET)


def get_bucket_name(path: os.PathLike[str]) -> str:
  """Returns the name of the bucket of a path."""
  return os.fspath(path).removeprefix(BUCKET).partition("/")[0]


def make_absolute(path: pathlib.Path) -> pathlib.Path:
  """Returns the absolute path. A path in a bucket is unchanged, because etils would prepend the current directory."""
  return path if is_in_bucket(path) else path.absolute()


def expand_home(path: pathlib.Path) -> pathlib.Path:
  """Replaces a leading `~` or `~USER` by the home directory.

  Raises:
    ConfigError: the user does not exist or has no home directory.
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
def prepare_buckets() -> None:
  """Prepares the process for paths in buckets. Only the first call has an effect.

  fsspec then uses the requests of `vit_jax.storage.buckets`.

  Raises:
    ConfigError: gcsfs or credentials are missing, or VITJAX_PATIENCE is invalid.
  """
  try:
    import fsspec
    import gcsfs  # noqa: F401 - tests whether gcsfs can be imported
  except ImportError as error:
    raise ConfigError(f"buckets need {extras.format_advice('gcs')} ({error})") from error
  from vit_jax.storage import buckets  # takes a second, so it is imported only for buckets

  buckets.get_patience()  # checks the environment variable early
  for protocol in ("gs", "gcs"):
    fsspec.register_implementation(protocol, "vit_jax.storage.buckets.FileSystem", clobber=True)
  if os.environ.get("STORAGE_EMULATOR_HOST"):
    return
  import google.auth

  try:
    google.auth.default()
  except google.auth.exceptions.GoogleAuthError as error:
    raise ConfigError(
      "no credentials were found. Run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to "
      "the file of a key, or give the VM a service account with the scope of storage"
    ) from error


@functools.cache
def check_bucket(name: str) -> None:
  """Checks that a bucket exists. The result is cached for each bucket.

  Args:
    name: name of the bucket.

  Raises:
    ConfigError: the bucket does not exist.
    OSError: the bucket refuses the request or does not respond.
  """
  from vit_jax.storage import buckets

  try:
    buckets.FileSystem().call("GET", "b/{}/o", name, maxResults=1)
  except FileNotFoundError as error:
    raise ConfigError(f"the bucket {name!r} does not exist, or this account cannot see it") from error


@contextlib.contextmanager
def create_folders(folder: pathlib.Path) -> Iterator[None]:
  """Creates a directory and its missing parents. Removes the created directories if the context raises an exception.

  Args:
    folder: the directory to create. Directories in a bucket are not created.

  Raises:
    ConfigError: one of the parents is a file.
    OSError: a directory cannot be created.
  """
  missing = []
  if not is_in_bucket(folder):
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
