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
    self._file, self._leave, self._duration = file, leave, duration()
    self._object = _Object(file, skip_instance_cache=True)
    self._mine = {
      "holder": f"{os.getpid()} on {socket.gethostname()}",
      "token": uuid.uuid4().hex,
      "process": _identity(os.getpid()),
    }
    self._object.file_system.fenced = False
    self._renewal = _clock()  # seconds at which the last one was asked for
    self._generation = self._taken()
    buckets.FENCES.append(self._holds)
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Gives the lease back, where the bucket is there to take it."""
    self._closed.set()
    self._object.file_system.away = True  # all is tried once
    self._thread.join()
    buckets.FENCES.remove(self._holds)
    with contextlib.suppress(OSError):
      self._object.remove(self._generation)

  def _taken(self):
    """The generation of the lease, once it is ours."""
    first = None
    while True:
      says, generation, age = self._object.read()
      if says.get("token") == self._mine["token"]:  # the answer to our own write was lost
        return generation
      if not says or age > self._duration or _ended(says["process"]):
        with contextlib.suppress(FileExistsError):  # another was faster
          self._renewal = _clock()
          return self._object.write(self._mine, generation)
        continue
      if first is None:
        first = generation
        exits.tell(
          f"{self._file.parent} is held by process {says['holder']}, or was {age:.0f} s ago: to be seen within "
          f"{self._duration:g} s\n"
        )
      if generation != first:
        raise ConfigError(
          f"{self._file.parent} {exits.IN_USE} {says['holder']}; wait for it, stop it, or take another --workdir "
          f"(that of a run that has died is free after {self._duration:g} s)"
        )
      time.sleep(min(1.0, self._duration / 20))

  def _run(self):
    """Renews the lease, on the thread."""
    while not self._closed.wait(self._duration / BEATS if self._holds() else 0.1):
      began = _clock()
      try:
        generation = self._renewed()
      except (OSError, ValueError, LookupError, TypeError) as error:  # or what the bucket answers cannot be understood
        if self._closed.is_set():
          return
        said = disk.trouble(error) if isinstance(error, OSError) else f"{self._file}: {type(error).__name__} {error}"
        self._leave(exits.EXIT_CONFIG, f"error: {said}; the last whole checkpoint stays as it is")
        return
      if generation is None:
        return
      self._generation, self._renewal = generation, began

  def _holds(self):
    """Whether nobody else can have the lease yet. What this process writes later waits for the next renewal.

    It may have been cut off, or stopped, for so long that another run went on; half of the duration is left for writes
    that are under way. Only the arrays of a checkpoint do not wait: without their last object they are none.
    """
    return _clock() - self._renewal < self._duration / 2

  def _renewed(self):
    """The next generation. Leaves, with None, where another one has the lease, as after a stop of this program."""
    try:
      return self._object.write(self._mine, self._generation)
    except FileExistsError:
      says, generation, _ = self._object.read()
      if says.get("token") == self._mine["token"]:
        return generation  # the answer to a write before was lost
      why = f"{self._file} is gone: another run had taken it over, and is done, or the workdir was removed"
      if says:
        why = f"{self._file.parent} was taken over by process {says['holder']}, as this one had not renewed its lease"
      self._leave(exits.EXIT_CONFIG, f"error: {why}; this process writes no more")
      return None


def _clock():
  """Seconds, also of the time that the machine was asleep, where the system says that."""
  return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


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


def _identity(process: int | str) -> str:
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
  ours = len(words) == 4 == len(mine) and words[:2] == mine[:2] and words[2].isdecimal()
  return ours and _identity(words[2]) != identity
