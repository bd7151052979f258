"""Buckets as a file system of fsspec: gcsfs, with other rules of what is tried again and for how long.

gcsfs tries six times, half a minute; a bucket may be away for longer. It remembers listings, which other processes
change. And it makes buckets.
"""

import asyncio
import errno
import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Mapping

import aiohttp
import google.auth.exceptions
import requests
from gcsfs import core, retry

from vit_jax.schema import ConfigError

# A server that stands still is asked again; a whole request may take as long as its bytes need.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=20)
LONGEST = 16.0  # seconds between two tries
NOTICED = 10.0  # seconds after which it is said that a bucket does not answer
# What may be gone with the next try: connections that break or stand still, and servers that say so.
_PASSING = (
  aiohttp.ClientError,
  asyncio.TimeoutError,
  google.auth.exceptions.GoogleAuthError,
  requests.exceptions.RequestException,
  retry.ChecksumError,
)
_REFUSED = (401, 403)
# Each says whether this process may still write. Where one says no, writes wait until it says yes: see `leases`.
FENCES: list[Callable[[], bool]] = []
_once = core.GCSFileSystem._request.__wrapped__


def patience() -> float:
  """Seconds that a bucket may be away before that is an error: less than a step may take by `config.limits`."""
  return seconds("VITJAX_PATIENCE", 240.0)


def seconds(name: str, default: float) -> float:
  """What a variable of the environment says, or else the default; ConfigError for what is no number of seconds."""
  text = os.environ.get(name) or str(default)
  try:
    if 0 < (value := float(text)) < 1e6:
      return value
  except ValueError:
    pass
  raise ConfigError(f"{name}: {text!r} is no number of seconds; allowed: more than 0, as {default:g}")


def version(about: Mapping) -> tuple[str, ...]:
  """Returns what identifies the contents of an object, from its description by gcsfs (`info`, `find`).

  The generation is a new number for each write (https://cloud.google.com/storage/docs/metadata); the digests are for
  servers that imitate buckets and have no generations. The time of change has whole seconds in some clients.
  """
  return tuple(str(about.get(key, "")) for key in ("generation", "etag", "md5Hash", "crc32c", "size", "updated"))


class FileSystem(core.GCSFileSystem):
  """gs:// for fsspec, and so for etils, Orbax and TFDS."""

  def __init__(self, *arguments, **options):
    ours = {"use_listings_cache": False, "requests_timeout": TIMEOUT}
    if os.environ.get("STORAGE_EMULATOR_HOST"):
      ours["token"] = "anon"
    self._said = False  # that it does not answer
    self.fenced = True  # by FENCES
    self.away = False  # since a request for which the patience ran out: the next ones are tried once
    super().__init__(*arguments, **ours | options)

  async def _request(self, method, path, *arguments, **options):
    """One request, tried again with growing pauses while a bucket is away.

    PermissionError where the bucket refuses, FileNotFoundError for what is not there, OSError after `patience`.
    """
    began, pause = time.monotonic(), 0.25
    while True:
      while self.fenced and method != "GET" and not all(fence() for fence in FENCES):
        await asyncio.sleep(0.1)
      try:
        answer = await _once(self, method, path, *arguments, **options)
        self.away = self._said = False
        return answer
      except FileNotFoundError as error:
        if method == "DELETE" and pause > 0.25:  # by a try before, whose answer was lost
          return 204, {}, None, b""
        absent = "there is no such object, or no such bucket"
        raise FileNotFoundError(errno.ENOENT, absent, _name(path, *arguments)) from error
      except retry.HttpError as error:
        reason = f"{error.code}: {error.message}"
        if error.code in _REFUSED:
          raise _refusal(path, arguments, reason) from error
        if error.code not in retry.errs:
          raise OSError(errno.EIO, f"the bucket answers {reason}", _name(path, *arguments)) from error
      except _PASSING as error:
        reason = f"{type(error).__name__} {error}".strip()
      except OSError as error:
        if str(error).startswith("Forbidden"):
          raise _refusal(path, arguments, str(error).partition("\n")[2] or "forbidden") from error
        raise
      waited = time.monotonic() - began
      left = patience() - waited
      if self.away or left <= 0:
        self.away = True
        raise OSError(
          errno.EHOSTDOWN, f"the bucket has not answered for {waited:.0f} s ({reason})", _name(path, *arguments)
        )
      if waited > NOTICED and not self._said:
        self._said = True
        logging.warning("%s does not answer (%s); waiting up to %.0f s", _name(path, *arguments), reason, patience())
      await asyncio.sleep(min(left, pause * random.uniform(0.5, 1)))
      pause = min(2 * pause, LONGEST)

  def _open(self, path, mode="rb", **options):
    """A file whose reads are gcsfs's; what is written is uploaded at the end, whole.

    gcsfs begins an upload of parts for each text, which cannot be tried again once its last answer is lost.
    """
    return _Upload(self, path) if mode == "wb" else super()._open(path, mode=mode, **options)

  async def _isdir(self, path):
    """gcsfs takes whatever goes wrong for no."""
    try:
      return (await self._info(path))["type"] == "directory"
    except FileNotFoundError:
      return False

  async def _mkdir(self, path, **_):
    """Nothing: folders are names of objects, and a misspelt path makes no bucket."""

  async def _makedirs(self, path, exist_ok=False):
    """Nothing, as above."""

  def mkdir(self, path, **_):
    """Nothing, as above."""

  def makedirs(self, path, exist_ok=False):
    """Nothing, as above."""


class _Upload(io.BytesIO):
  """Bytes that become an object when they are closed, but for an error inside its context."""

  def __init__(self, file_system, path):
    super().__init__()
    self._file_system, self._path = file_system, path

  def __exit__(self, kind, *error):
    if kind:
      super().close()
    return super().__exit__(kind, *error)

  def close(self):
    if not self.closed:
      content = self.getvalue()
      super().close()  # before what may fail: Python closes what it forgets, and would try again
      self._file_system.pipe_file(self._path, content)


def _refusal(path, arguments, reason):
  text = " ".join(reason.split())[:160]
  return PermissionError(errno.EACCES, f"the bucket refuses ({text})", _name(path, *arguments))


def _name(path, *arguments):
  """gs:// and the bucket of a request, with the object where its path says it."""
  if path.startswith("b/") and arguments:
    return "gs://" + "/".join(str(each) for each in arguments[:2])
  bucket = re.search(r"/b/([^/?]+)", path)
  return f"gs://{bucket[1]}" if bucket else path.partition("?")[0]
