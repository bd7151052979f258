"""Who holds a workdir in a bucket, which has no locks: an object, written on conditions, that its holder renews.

A holder that is killed renews it no longer. Once its age, by the bucket's own clock, is above `duration` it is free; at
once if the holder was a process of this machine, which knows that it has ended.
"""

import contextlib
import datetime
import email.utils
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable

from vit_jax import buckets, disk
from vit_jax.runtime import exits
from vit_jax.schema import ConfigError

BEATS = 6  # renewals in the duration of a lease
_PART = "--==0==\r\nContent-Type: {}\r\n\r\n{}\r\n"


def duration() -> float:
  """Seconds after which a lease that nobody renews is free."""
  return buckets.seconds("VITJAX_LEASE", 60.0)


class Lease:
  """The lease on an object: a resource. Another one who holds it is a ConfigError."""

  def __init__(self, file: pathlib.Path, leave: Callable[[int, str], None]):
    """Takes the lease; one that is neither renewed nor free yet is waited for.

    Args:
      file: the object, gs://...
      leave: ends the program with an exit code and a message, from a thread: the lease is lost, or the bucket.
    """
    self._file, self._leave, self._pause = file, leave, duration() / BEATS
    self._object = _Object(file, skip_instance_cache=True)
    self._mine = {
      "holder": f"{os.getpid()} on {socket.gethostname()}",
      "token": uuid.uuid4().hex,
      "process": _identity(os.getpid()),
    }
    self._generation = self._taken()
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Gives the lease back, where the bucket is there to take it."""
    self._closed.set()
    self._object.file_system.away = True  # all is tried once
    self._thread.join()
    with contextlib.suppress(OSError):
      self._object.remove(self._generation)

  def _taken(self):
    """The generation of the lease, once it is ours."""
    first = None
    while True:
      says, generation, age = self._object.read()
      if says.get("token") == self._mine["token"]:  # the answer to our own write was lost
        return generation
      if not says or age > duration() or _ended(says["process"]):
        with contextlib.suppress(FileExistsError):  # another was faster
          return self._object.write(self._mine, generation)
        continue
      if first is None:
        first = generation
        exits.tell(
          f"{self._file.parent} is held by process {says['holder']}, or was {age:.0f} s ago: to be seen within "
          f"{duration():g} s\n"
        )
      if generation != first:
        raise ConfigError(
          f"{self._file.parent} {exits.IN_USE} {says['holder']}; wait for it, stop it, or take another --workdir "
          f"(that of a run that has died is free after {duration():g} s)"
        )
      time.sleep(min(1.0, duration() / 20))

  def _run(self):
    """Renews the lease, on the thread."""
    while not self._closed.wait(self._pause):
      try:
        self._generation = self._renewed()
      except OSError as error:
        if self._closed.is_set():
          return
        self._leave(exits.EXIT_CONFIG, f"error: {disk.trouble(error)}; the last whole checkpoint stays as it is")
        return

  def _renewed(self):
    """The next generation. Leaves where another one has the lease, as after this program was stopped for long."""
    try:
      return self._object.write(self._mine, self._generation)
    except FileExistsError:
      says, generation, _ = self._object.read()
      if says.get("token") != self._mine["token"]:
        why = f"{self._file} is gone: the workdir was removed or moved"
        if says:
          why = f"{self._file.parent} was taken over by process {says['holder']}, as this one had not renewed its lease"
        self._leave(exits.EXIT_CONFIG, f"error: {why}; this process writes no more")
      return generation


def holder(file: pathlib.Path) -> str | None:
  """The process that holds a lease now, in words; None if it is free."""
  says, _, age = _Object(file).read()
  return says["holder"] if says and age <= duration() and not _ended(says["process"]) else None


class _Object:
  """An object of a bucket with a few words about it, replaced on the condition that it is of a certain generation."""

  def __init__(self, file, **options):
    self.file_system = buckets.FileSystem(**options)
    self._bucket, _, self._name = str(file).removeprefix("gs://").partition("/")

  def read(self):
    """(words, generation, seconds since it was written); {}, "0" and 0 where there is none."""
    try:
      headers, content = self.file_system.call("GET", "b/{}/o/{}", self._bucket, self._name)
    except FileNotFoundError:
      return {}, "0", 0.0
    values = json.loads(content)
    now = email.utils.parsedate_to_datetime(headers["Date"])
    age = (now - datetime.datetime.fromisoformat(values["updated"])).total_seconds()
    age = max(0.0, age)  # the first is in whole seconds
    return {"holder": "unknown", "token": "", "process": ""} | values.get("metadata", {}), values["generation"], age

  def write(self, words, generation):
    """The new generation; FileExistsError where it is not of the one that is given."""
    about = json.dumps({"name": self._name, "metadata": words})
    body = _PART.format("application/json", about) + _PART.format("text/plain", f"{words['holder']}\n") + "--==0==--"
    answer = self.file_system.call(
      "POST",
      f"{self.file_system.base.removesuffix('/storage/v1/')}/upload/storage/v1/b/{self._bucket}/o",
      uploadType="multipart",
      ifGenerationMatch=generation,
      headers={"Content-Type": 'multipart/related; boundary="==0=="'},
      data=body.encode(),
      json_out=True,
    )
    return answer["generation"]

  def remove(self, generation):
    """Unless another has written it."""
    self.file_system.call("DELETE", "b/{}/o/{}", self._bucket, self._name, ifGenerationMatch=generation)


def _identity(process: int) -> str:
  """A process of a running Linux: its boot, its namespace, its number and when it began; "" of one that has ended."""
  try:
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state, *words = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return "" if state == "Z" else f"{boot} {os.readlink('/proc/self/ns/pid')} {process} {words[18]}"
  except (OSError, IndexError):
    return ""


def _ended(identity: str) -> bool:
  """Whether a process was one of this machine, and runs no longer."""
  mine, words = _identity(os.getpid()).split(), identity.split()
  return len(words) == 4 == len(mine) and words[:2] == mine[:2] and _identity(int(words[2])) != identity
