"""A user's text as a path: on a disk, or in a bucket of Google Cloud Storage."""

import functools
import importlib.util
import os
import pathlib
import re

from etils import epath

from vit_jax.schema import ConfigError, show

BUCKET = "gs://"


def path(text: str | os.PathLike) -> pathlib.Path:
  """The path that a user means: gs://BUCKET/NAME in a bucket (an `epath.Path`), or anything else on a disk.

  ConfigError for other schemes, for a bucket without a name in it, and where gcsfs or credentials are missing.
  """
  text = os.fspath(text)
  scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
  if not scheme or (os.path.lexists(f"{scheme[1]}:") and not text.startswith(f"{scheme[1]}://")):
    return pathlib.Path(text)
  name = text.removeprefix(BUCKET)
  if name == text:
    raise ConfigError(f"{show(text)}: no such scheme is known; allowed: a path of a disk, or gs://BUCKET/NAME")
  if not re.fullmatch(r"[^/]+/+[^/].*", name) or ".." in name.split("/"):
    raise ConfigError(f"{show(text)}: a bucket and a name in it are needed, without '..': gs://BUCKET/NAME")
  try:
    prepare()
  except ConfigError as error:
    raise ConfigError(f"{text}: {error}") from error
  return epath.Path(text.rstrip("/"))


def in_bucket(path: os.PathLike) -> bool:
  """Whether a path is in a bucket, where objects are replaced whole and there are no folders."""
  return os.fspath(path).startswith(BUCKET)


def absolute(path: pathlib.Path) -> pathlib.Path:
  """From the root of the disk, or as it is in a bucket: etils would put the current folder in front."""
  return path if in_bucket(path) else path.absolute()


@functools.cache
def prepare():
  """Makes sure, once and before a path is used, that buckets can be, by our own requests; ConfigError if not."""
  if importlib.util.find_spec("gcsfs") is None:
    raise ConfigError("buckets need the extra gcs: pip install 'vit_jax[gcs]'")
  import fsspec

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
