"""Leases on workdirs in buckets, which have no locks.

A lease is an object that its holder creates with a conditional write and renews. A holder that was killed no longer
renews its lease. The lease is free when its age, measured by the bucket's own clock, exceeds `lease_duration`. It is
free immediately if the holder was a process of this machine that has ended.
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

from vit_jax.runtime import exits
from vit_jax.schema import ConfigError
from vit_jax.storage import buckets, errors

BEATS = 6  # renewals in the duration of a lease
_PART = "--==0==\r\nContent-Type: {}\r\n\r\n{}\r\n"


def lease_duration() -> float:
  """Returns the number of seconds after which a lease that is not renewed is free."""
  return buckets.read_seconds("VITJAX_LEASE", 60.0)


class Lease:
  """A held lease on an object, renewed by a thread until `close`."""

  def __init__(self, file: pathlib.Path, leave: Callable[[int, str], None]) -> None:
    """Takes the lease. Waits for a lease that is neither renewed nor free yet.

    Args:
      file: the object, gs://...
      leave: ends the program with an exit code and a message. It is called from a thread if the lease or the bucket is
        lost.

    Raises:
      ConfigError: another process holds the lease and renews it.
    """
    self._file, self._leave, self._duration = file, leave, lease_duration()
    self._object = LeaseObject(file, skip_instance_cache=True)
    self._mine = {
      "holder": f"{os.getpid()} on {socket.gethostname()}",
      "token": uuid.uuid4().hex,
      "process": identify_process(os.getpid()),
    }
    self._object.file_system.fenced = False
    self._renewal = _read_clock()  # time in seconds of the last request for a renewal
    self._generation = self._take()
    buckets.FENCES.append(self._is_held)
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Returns the lease, if the bucket is reachable."""
    self._closed.set()
    self._object.file_system.away = True  # a closing lease makes one attempt per request
    self._thread.join()
    buckets.FENCES.remove(self._is_held)
    with contextlib.suppress(OSError):
      self._object.remove(self._generation)

  def _take(self) -> str:
    """Takes the lease and returns its generation."""
    first = None
    while True:
      content, generation, age = self._object.read()
      if content.get("token") == self._mine["token"]:  # the lease is already ours, but the answer to our write was lost
        return generation
      if not content or age > self._duration or has_ended(content["process"]):
        with contextlib.suppress(FileExistsError):  # another process was faster
          self._renewal = _read_clock()
          return self._object.write(self._mine, generation)
        continue
      if first is None:
        first = generation
        exits.print_last_message(
          f"{self._file.parent} may be held by process {content['holder']}, which was active {age:.0f} s ago. Checking "
          f"for up to {self._duration:g} s\n"
        )
      if generation != first:
        raise ConfigError(
          f"{self._file.parent} {exits.IN_USE} {content['holder']}. Wait for it, stop it, or use another --workdir "
          f"(if that run has died, its workdir is free after {self._duration:g} s)"
        )
      time.sleep(min(1.0, self._duration / 20))

  def _run(self) -> None:
    """Renews the lease periodically, on the thread."""
    while not self._closed.wait(self._duration / BEATS if self._is_held() else 0.1):
      start_time = _read_clock()
      try:
        generation = self.renew()
      except (OSError, ValueError, LookupError, TypeError) as error:  # or the answer cannot be parsed
        if self._closed.is_set():
          return
        message = (
          errors.describe_error(error)
          if isinstance(error, OSError)
          else f"{self._file}: {type(error).__name__} {error}"
        )
        self._leave(exits.EXIT_CONFIG, f"error: {message}. The last complete checkpoint is unchanged")
        return
      if generation is None:
        return
      self._generation, self._renewal = generation, start_time

  def _is_held(self) -> bool:
    """Returns true if no other process can have taken the lease yet. Otherwise writes wait for the next renewal.

    This process may have been disconnected or suspended for so long that another run took over. Half of the duration
    remains for writes that are in progress. Arrays of a checkpoint are written without this wait, because a checkpoint
    is not valid without its last object.
    """
    return _read_clock() - self._renewal < self._duration / 2

  def renew(self) -> str | None:
    """Renews the lease once. If another process has the lease, ends the program.

    Returns:
      The new generation of the lease, or None if the program ends.
    """
    try:
      return self._object.write(self._mine, self._generation)
    except FileExistsError:
      content, generation, _ = self._object.read()
      if content.get("token") == self._mine["token"]:
        return generation  # the answer to an earlier write was lost
      why = f"{self._file} no longer exists: another run used the workdir and ended, or the workdir was removed"
      if content:
        why = (
          f"{self._file.parent} was taken over by process {content['holder']}, because this process had not renewed "
          "its lease"
        )
      self._leave(exits.EXIT_CONFIG, f"error: {why}. This process has stopped writing")
      return None


def _read_clock() -> float:
  """Returns seconds that include the time during which the machine was suspended, if the system can measure it."""
  return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def describe_holder(file: pathlib.Path) -> str | None:
  """Returns a phrase that names the process that holds a lease now, or None if the lease is free."""
  content, _, age = LeaseObject(file).read()
  return content["holder"] if content and age <= lease_duration() and not has_ended(content["process"]) else None


class LeaseObject:
  """An object of a bucket with metadata, replaced only if it still has a given generation."""

  def __init__(self, file: pathlib.Path, **options: object) -> None:
    self.file_system = buckets.FileSystem(**options)
    self._bucket, _, self._name = str(file).removeprefix("gs://").partition("/")

  def read(self) -> tuple[dict[str, str], str, float]:
    """Returns (metadata, generation, seconds since it was written), or ({}, "0", 0) if the object does not exist."""
    try:
      headers, content = self.file_system.call("GET", "b/{}/o/{}", self._bucket, self._name)
    except FileNotFoundError:
      return {}, "0", 0.0
    values = json.loads(content)
    now = email.utils.parsedate_to_datetime(headers["Date"])
    age = (now - datetime.datetime.fromisoformat(values["updated"])).total_seconds()
    age = max(0.0, age)  # the header Date has a resolution of one second, so the difference may be negative
    return {"holder": "unknown", "token": "", "process": ""} | values.get("metadata", {}), values["generation"], age

  def write(self, words: dict[str, str], generation: str) -> str:
    """Replaces the object.

    Args:
      words: the new metadata. Its `holder` is also the content of the object.
      generation: generation of the object that is replaced, or "0" for a new object.

    Returns:
      The new generation.

    Raises:
      FileExistsError: the object does not have the given generation.
    """
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

  def remove(self, generation: str) -> None:
    """Removes the object if it has the given generation."""
    self.file_system.call("DELETE", "b/{}/o/{}", self._bucket, self._name, ifGenerationMatch=generation)


def identify_process(process: int | str) -> str:
  """Returns the boot, namespace, number and start time of a Linux process, or "" if it has ended."""
  try:
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state, *words = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return "" if state == "Z" else f"{boot} {os.readlink('/proc/self/ns/pid')} {process} {words[18]}"
  except (OSError, IndexError):
    return ""


def has_ended(identity: str) -> bool:
  """Returns true if the process of an identity ran on this machine and has ended."""
  mine, words = identify_process(os.getpid()).split(), identity.split()
  ours = len(words) == 4 == len(mine) and words[:2] == mine[:2] and words[2].isdecimal()
  return ours and identify_process(words[2]) != identity
