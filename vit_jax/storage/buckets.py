"""An fsspec file system for buckets, based on gcsfs.

gcsfs differs from the needs of training in three points. It retries six times within half a minute, but a bucket may
be unavailable for longer. It caches listings, which other processes change. It creates missing buckets.
"""

import asyncio
import errno
import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import google.auth.exceptions
import requests
from gcsfs import core, retry

from vit_jax.schema import ConfigError

# A request is retried if the server stops responding. The total time of a request is not limited, because it depends on
# the size of the object.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=20)
LONGEST = 16.0  # maximum number of seconds between two attempts
NOTICED = 10.0  # seconds after which a warning reports that a bucket does not respond
# Errors that may be transient: connections that break or stop responding, and servers that report such a problem.
_PASSING = (
  aiohttp.ClientError,
  asyncio.TimeoutError,
  google.auth.exceptions.GoogleAuthError,
  requests.exceptions.RequestException,
  retry.ChecksumError,
)
_REFUSED = (401, 403)
# Each function returns whether this process may still write. Writes wait until all of them return true: see `leases`.
FENCES: list[Callable[[], bool]] = []
_once = core.GCSFileSystem._request.__wrapped__


def get_patience() -> float:
  """Returns how many seconds a bucket may be unavailable before an error is raised.

  The default of 240 s is below the time limit of a step in `config.limits`. The environment variable VITJAX_PATIENCE
  changes it.
  """
  return read_seconds("VITJAX_PATIENCE", 240.0)


def read_seconds(name: str, default: float) -> float:
  """Reads a number of seconds from an environment variable.

  Args:
    name: name of the variable.
    default: value to use if the variable is unset or empty.

  Raises:
    ConfigError: the value is not a number between 0 and 1e6.
  """
  text = os.environ.get(name) or str(default)
  try:
    if 0 < (value := float(text)) < 1e6:
      return value
  except ValueError:
    pass
  raise ConfigError(f"{name}: expected a number of seconds, got {text!r}. Use a number above 0, such as {default:g}")


def get_version(about: Mapping[str, object]) -> tuple[str, ...]:
  """Returns the properties that identify the content of an object.

  The generation is a new number for each write (https://cloud.google.com/storage/docs/metadata). The digests are needed
  for servers that imitate buckets and have no generations. The time of change alone is not sufficient, because some
  clients round it to seconds.

  Args:
    about: description of the object by gcsfs (`info`, `find`).
  """
  return tuple(str(about.get(key, "")) for key in ("generation", "etag", "md5Hash", "crc32c", "size", "updated"))


class FileSystem(core.GCSFileSystem):
  """The file system for gs:// paths in fsspec, and thereby in etils, Orbax and TFDS."""

  def __init__(self, *arguments: object, **options: object) -> None:
    ours = {"use_listings_cache": False, "requests_timeout": TIMEOUT}
    if os.environ.get("STORAGE_EMULATOR_HOST"):
      ours["token"] = "anon"
    self._said = False  # whether the user was warned that the bucket does not respond
    self.fenced = True  # whether writes wait for FENCES
    self.away = False  # whether the last request exceeded the patience, so that later requests are tried only once
    super().__init__(*arguments, **ours | options)

  async def _request(self, method: str, path: str, *arguments: object, **options: object) -> Any:
    """Sends a request and retries it with growing pauses while the bucket is unavailable.

    Raises:
      PermissionError: the bucket refuses the request.
      FileNotFoundError: the object or the bucket does not exist.
      OSError: the bucket answers with a permanent error, or does not respond for longer than `get_patience`.
    """
    start_time, pause = time.monotonic(), 0.25
    while True:
      while self.fenced and method != "GET" and not all(fence() for fence in FENCES):
        await asyncio.sleep(0.1)
      try:
        answer = await _once(self, method, path, *arguments, **options)
        self.away = self._said = False
        return answer
      except FileNotFoundError as error:
        if method == "DELETE" and pause > 0.25:  # an earlier attempt deleted the object, and its answer was lost
          return 204, {}, None, b""
        absent = "the object or the bucket does not exist"
        raise FileNotFoundError(errno.ENOENT, absent, _format_name(path, *arguments)) from error
      except retry.HttpError as error:
        reason = f"{error.code}: {error.message}"
        if error.code in _REFUSED:
          raise _make_permission_error(path, arguments, reason) from error
        if error.code not in retry.errs:
          raise OSError(errno.EIO, f"the bucket returned {reason}", _format_name(path, *arguments)) from error
      except _PASSING as error:
        reason = f"{type(error).__name__} {error}".strip()
      except OSError as error:
        if str(error).startswith("Forbidden"):
          raise _make_permission_error(path, arguments, str(error).partition("\n")[2] or "forbidden") from error
        raise
      waited = time.monotonic() - start_time
      remaining = get_patience() - waited
      if self.away or remaining <= 0:
        self.away = True
        raise OSError(
          errno.EHOSTDOWN, f"the bucket has not responded for {waited:.0f} s ({reason})", _format_name(path, *arguments)
        )
      if waited > NOTICED and not self._said:
        self._said = True
        logging.warning(
          "%s does not respond (%s), retrying for up to %.0f s", _format_name(path, *arguments), reason, get_patience()
        )
      await asyncio.sleep(min(remaining, pause * random.uniform(0.5, 1)))
      pause = min(2 * pause, LONGEST)

  def _open(self, path: str, mode: str = "rb", **options: object) -> Any:
    """Opens a file. Reads use gcsfs. Written bytes are uploaded as a whole when the file is closed.

    For text files, gcsfs starts a resumable upload. A resumable upload cannot be retried if its last answer was lost.
    """
    return _Upload(self, path) if mode == "wb" else super()._open(path, mode=mode, **options)

  async def _isdir(self, path: str) -> bool:
    """Returns whether the path is a directory. gcsfs would return False for every error."""
    try:
      return (await self._info(path))["type"] == "directory"
    except FileNotFoundError:
      return False

  async def _mkdir(self, path: str, **_: object) -> None:
    """Does nothing. Directories are prefixes of object names, and a misspelt path must not create a bucket."""

  async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
    """Does nothing, like `_mkdir`."""

  def mkdir(self, path: str, **_: object) -> None:
    """Does nothing, like `_mkdir`."""

  def makedirs(self, path: str, exist_ok: bool = False) -> None:
    """Does nothing, like `_mkdir`."""


class _Upload(io.BytesIO):
  """A buffer that is uploaded as an object when it is closed. An error inside its context cancels the upload."""

  def __init__(self, file_system: FileSystem, path: str) -> None:
    super().__init__()
    self._file_system, self._path = file_system, path

  def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
    if kind:
      super().close()
    return super().__exit__(kind, *error)

  def close(self) -> None:
    if not self.closed:
      content = self.getvalue()
      super().close()  # before the upload, which may fail: Python closes forgotten files and would upload again
      self._file_system.pipe_file(self._path, content)


def _make_permission_error(path: str, arguments: Sequence[object], reason: str) -> PermissionError:
  text = " ".join(reason.split())[:160]
  return PermissionError(errno.EACCES, f"the bucket denied access ({text})", _format_name(path, *arguments))


def _format_name(path: str, *arguments: object) -> str:
  """Returns the gs:// name of the bucket of a request, and of the object if the arguments contain it."""
  if path.startswith("b/") and arguments:
    return "gs://" + "/".join(str(each) for each in arguments[:2])
  bucket = re.search(r"/b/([^/?]+)", path)
  return f"gs://{bucket[1]}" if bucket else path.partition("?")[0]
