"""Small files in a directory or below gs://, which workers and watchers share.

The standard library has no client of Cloud Storage, so this module uses its JSON interface. A laptop gets its token
from gcloud, a VM from its metadata server. STORAGE_EMULATOR_HOST selects another server, which needs no token.
"""

import contextlib
import dataclasses
import email.utils
import errno
import fcntl
import functools
import http.client
import json
import os
import pathlib
import random
import re
import secrets
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.message import Message
from typing import Any

from .errors import DENIED, LaunchError, UnknownError, call, convert_unexpected, guard_function

LARGEST = 2**28 + 1  # bytes of a file that are read
TRIES, TIMEOUT = 5, 20.0  # tries of a request, and seconds for each
_SERVER = "https://storage.googleapis.com"
_METADATA = "http://{}/computeMetadata/v1/instance/service-accounts/default/token"
_PASSING = (408, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True)
class StoredFile:
  """A file: its bytes, age in seconds, generation, and the service's time of the answer (0 for a local file)."""

  content: bytes
  age: float
  generation: int
  now: float = 0.0


def open_storage(folder: str) -> "Storage":
  """Returns the files below gs://BUCKET/NAME, or below a directory of this machine."""
  return Bucket(folder) if folder.startswith("gs://") else Disk(folder)


def read_regular_file(path: pathlib.Path, most: int) -> tuple[bytes, os.stat_result]:
  """Returns (the first `most` bytes of a regular file, its status). Raises OSError for other files, such as a pipe."""
  number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
  try:
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
      raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with open(number, "rb", closefd=False) as file:
      return file.read(most), status
  finally:
    os.close(number)


class ServiceClock:
  """The time of the service that stores the files, from its last answer and the monotonic clock."""

  def __init__(self) -> None:
    self._offset: float | None = None

  def show(self, seconds: float) -> None:
    """Records the time of an answer that has just arrived, in seconds since the epoch."""
    self._offset = seconds - _get_monotonic_time()

  @property
  def known(self) -> bool:
    """Returns whether the service has shown its time."""
    return self._offset is not None

  def now(self) -> float:
    """Returns the service's time; this machine's if the service has not shown one."""
    return time.time() if self._offset is None else self._offset + _get_monotonic_time()


@functools.cache
def _get_clock(service: str) -> ServiceClock:
  """Returns the clock of a service, which all its users share."""
  return ServiceClock()


def _get_monotonic_time() -> float:
  """Returns monotonic seconds, which include the time in which the machine is suspended."""
  return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Disk:
  """Files of a directory. All calls may raise UnknownError.

  `clock` is the clock of the file system, which several machines may share.
  """

  def __init__(self, folder: str) -> None:
    self._folder, self.tries = pathlib.Path(folder).absolute(), 1
    self.clock = _get_clock(str(self._folder))

  def read(self, name: str) -> "StoredFile | None":
    """Returns a file, or None if it does not exist."""
    with _convert_errors(self._folder / name):
      try:
        content, status = read_regular_file(self._folder / name, LARGEST)
      except (FileNotFoundError, NotADirectoryError):
        return None
      if not self.clock.known:
        self._ask_time()
    return StoredFile(content, max(0.0, self.clock.now() - status.st_mtime), status.st_mtime_ns)

  def write(self, name: str, content: bytes, generation: "int | None" = None) -> int:
    """Replaces a file, and returns its generation.

    Args:
      name: name of the file.
      content: its new content.
      generation: required generation of the present file, 0 for no file, or None for no condition.

    Raises:
      FileExistsError: the file has another generation.
    """
    path = self._folder / name
    with _convert_errors(path):
      try:
        path.parent.mkdir(parents=True, exist_ok=True)
      except FileExistsError as error:  # a parent is a file, which is no answer to the condition
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
      with self._turn() if generation is not None else contextlib.nullcontext():
        before = path.stat().st_mtime_ns if path.exists() else 0
        if generation not in (None, before):
          raise FileExistsError(str(path))
        draft = path.with_name(f".{path.name}.{os.getpid()}.{random.getrandbits(32):08x}")
        try:
          with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
          self.clock.show(draft.stat().st_mtime)
          if draft.stat().st_mtime_ns <= before:  # generations grow
            os.utime(draft, ns=(before + 1, before + 1))
          made = draft.stat().st_mtime_ns
          os.replace(draft, path)
        finally:
          draft.unlink(missing_ok=True)
    return made

  def list_names(self, prefix: str = "") -> list[str]:
    """Returns the names of all files that start with a prefix, sorted."""
    with _convert_errors(self._folder):
      found = (str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file())
      return sorted(name for name in found if name.startswith(prefix) and not pathlib.Path(name).name.startswith("."))

  def delete(self, name: str) -> None:
    """Deletes a file if it exists."""
    with _convert_errors(self._folder / name):
      (self._folder / name).unlink(missing_ok=True)

  def _ask_time(self) -> None:
    """Asks the file system for its time by a temporary file. In a read-only directory this machine's clock is used."""
    draft = self._folder / f".time.{os.getpid()}.{random.getrandbits(32):08x}"
    with contextlib.suppress(OSError):
      draft.touch(exist_ok=False)
      self.clock.show(draft.stat().st_mtime)
      draft.unlink()

  @contextlib.contextmanager
  def _turn(self) -> Iterator[None]:
    number = os.open(self._folder / ".turn", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
      fcntl.flock(number, fcntl.LOCK_EX)
      yield
    finally:
      os.close(number)


def _convert_errors(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
  return convert_unexpected(str(path), (FileExistsError,))


class Bucket:
  """Objects below a name. All calls may raise UnknownError, or LaunchError if the bucket refuses.

  `clock` is the clock of the bucket, from the Date header of each answer.
  """

  def __init__(self, folder: str) -> None:
    self.tries = TRIES  # of each request
    bucket, _, prefix = folder.removeprefix("gs://").partition("/")
    self._bucket, self._prefix = bucket, f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    self._server = os.environ.get("STORAGE_EMULATOR_HOST", _SERVER).rstrip("/")
    if "://" not in self._server:
      self._server = f"http://{self._server}"
    self.clock = _get_clock(self._server)
    self._token = Token() if self._server == _SERVER else None

  @guard_function("the bucket", (FileExistsError,))
  def read(self, name: str) -> "StoredFile | None":
    """Returns an object, or None if it does not exist."""
    answer = self._ask("GET", f"/storage/v1/b/{self._bucket}/o/{_quote_name(self._prefix + name)}?alt=media")
    if answer is None:
      return None
    content, headers = answer
    now, changed = (_parse_http_time(headers.get(key, "")) for key in ("Date", "Last-Modified"))
    return StoredFile(content, max(0.0, now - changed), int(headers.get("X-Goog-Generation") or 0), now)

  @guard_function("the bucket", (FileExistsError,))
  def write(self, name: str, content: bytes, generation: "int | None" = None) -> int:
    """Replaces an object, and returns its generation. Raises FileExistsError if it does not have the given one."""
    condition = "" if generation is None else f"&ifGenerationMatch={generation}"
    mark = secrets.token_hex(16)  # identifies this writer, and separates the parts
    about = json.dumps({"name": self._prefix + name, "metadata": {"mark": mark}})
    head = f"--{mark}\r\nContent-Type: application/json\r\n\r\n{about}\r\n--{mark}\r\n"
    head += "Content-Type: application/octet-stream\r\n\r\n"
    body, kind = head.encode() + content + f"\r\n--{mark}--".encode(), f"multipart/related; boundary={mark}"
    path = f"/upload/storage/v1/b/{self._bucket}/o?uploadType=multipart{condition}"
    try:
      return int(_parse_answer(self._ask("POST", path, body, kind))["generation"])
    except FileExistsError:
      # The server may have carried out an earlier try whose answer was lost.
      answer = self._ask("GET", f"/storage/v1/b/{self._bucket}/o/{_quote_name(self._prefix + name)}")
      found = _parse_answer(answer) if answer else {}
      if found.get("metadata", {}).get("mark") != mark:
        raise
      return int(found["generation"])

  @guard_function("the bucket", (FileExistsError,))
  def list_names(self, prefix: str = "") -> list[str]:
    """Returns the names of all objects that start with a prefix, sorted."""
    found, page = [], ""
    while True:
      query = (
        f"prefix={_quote_name(self._prefix + prefix)}&fields=items(name),nextPageToken&pageToken={_quote_name(page)}"
      )
      answer = self._ask("GET", f"/storage/v1/b/{self._bucket}/o?{query}")
      if answer is None:
        raise LaunchError(f"gs://{self._bucket}: there is no such bucket. Create it, or correct --workdir")
      listing = _parse_answer(answer)
      found += [item["name"][len(self._prefix) :] for item in listing.get("items", [])]
      page = listing.get("nextPageToken", "")
      if not page:
        return sorted(found)

  @guard_function("the bucket", (FileExistsError,))
  def delete(self, name: str) -> None:
    """Deletes an object if it exists."""
    self._ask("DELETE", f"/storage/v1/b/{self._bucket}/o/{_quote_name(self._prefix + name)}")

  @guard_function("the bucket", (FileExistsError,))
  def read_region(self) -> str:
    """Returns the region of the bucket in small letters, such as europe-west4 or eu."""
    answer = self._ask("GET", f"/storage/v1/b/{self._bucket}?fields=location")
    if answer is None:
      raise LaunchError(f"gs://{self._bucket}: there is no such bucket. Create it, or correct --workdir")
    return _parse_answer(answer).get("location", "").lower()

  def _ask(
    self, method: str, path: str, content: bytes | None = None, kind: str = "application/octet-stream"
  ) -> tuple[bytes, Message] | None:
    """Returns (body, headers) of an answer, or None for 404. Temporary failures are tried again."""
    reason = ""
    for number in range(self.tries):
      if number:
        time.sleep(min(8.0, 0.25 * 2**number) * random.uniform(0.5, 1))
      headers = {"Content-Type": kind} | (self._token.make_header() if self._token else {})
      request = urllib.request.Request(self._server + path, content, headers, method=method)
      try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
          if seconds := _parse_date(answer.headers):
            self.clock.show(seconds)
          return answer.read(), answer.headers
      except urllib.error.HTTPError as error:
        with error:
          text = " ".join(error.read(2000).decode(errors="replace").split())[:200]
        reason = f"{error.code}: {text}"
        if "bucket does not exist" in text:
          raise LaunchError(f"gs://{self._bucket}: there is no such bucket. Create it, or correct --workdir") from None
        if (
          error.code == 404 and method != "POST" and "<html" not in text.lower()
        ):  # such as the login page of a network
          return None
        if error.code == 412:
          raise FileExistsError(path) from None
        if error.code == 401 and self._token and number == 0:
          self._token.renew()
        elif error.code not in _PASSING:
          name = f"gs://{self._bucket}"
          raise LaunchError(
            f"{name} refuses ({reason}); check that the bucket exists and that you may use it", DENIED
          ) from None
      except (OSError, ValueError, http.client.HTTPException) as error:  # broken connections and answers
        reason = str(getattr(error, "reason", error)) or type(error).__name__
    raise UnknownError(f"gs://{self._bucket} does not answer ({reason})")


Storage = Disk | Bucket


class Token:
  """An access token of Google, which is reused while it is valid."""

  def __init__(self) -> None:
    self._text, self._until = "", 0.0

  def make_header(self) -> dict[str, str]:
    """Returns the header of a request."""
    if time.monotonic() >= self._until:
      self.renew()
    return {"Authorization": f"Bearer {self._text}"}

  def renew(self) -> None:
    """Gets another token: on a VM from the metadata server, else from gcloud."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(_METADATA.format(host), headers={"Metadata-Flavor": "Google"})
    try:
      with urllib.request.urlopen(request, timeout=3) as answer:
        found = json.load(answer)
        self._text, self._until = found["access_token"], time.monotonic() + found["expires_in"] - 120
        return
    except (OSError, ValueError, TypeError, LookupError, http.client.HTTPException):  # not a VM
      pass
    install = "Get it from cloud.google.com/sdk/docs/install"
    code, output, complaint = call(["gcloud", "auth", "print-access-token", "--quiet"], 60, install)
    if code:
      why = re.sub(r"^ERROR: \(\S+\) ", "", (complaint.strip().splitlines() or ["no reason given"])[0])
      raise LaunchError(f"gcloud has no credentials ({why}); run: gcloud auth login", DENIED)
    text = output.decode(errors="replace").strip()
    if not re.fullmatch(r"[!-~]+", text):
      raise UnknownError("gcloud auth print-access-token printed no token")
    self._text, self._until = text, time.monotonic() + 1800


def _parse_date(headers: Message) -> float:
  """Returns the Date of an answer in seconds since the epoch; 0 if it is missing or unreadable."""
  try:
    return email.utils.parsedate_to_datetime(headers.get("Date") or "").timestamp()
  except (ValueError, TypeError, OverflowError):
    return 0.0


def _parse_answer(answer: tuple[bytes, Message] | None) -> dict[str, Any]:
  """Returns the values of an answer. Raises UnknownError for other text, such as the login page of a network."""
  if answer is None:
    raise UnknownError("the answer is not from Cloud Storage: it is missing")
  try:
    values = json.loads(answer[0])
  except (ValueError, RecursionError) as error:
    raise UnknownError(f"the answer is not from Cloud Storage: {answer[0][:80]!r}") from error
  if not isinstance(values, dict):
    raise UnknownError(f"the answer is not from Cloud Storage: {answer[0][:80]!r}")
  return values


def _quote_name(name: str) -> str:
  return urllib.parse.quote(name, safe="")


def _parse_http_time(text: str) -> float:
  """Returns the time of a header in seconds since the epoch; now if it is missing."""
  return email.utils.parsedate_to_datetime(text).timestamp() if text else time.time()
