"""Who watches a run: one at a time, by a file that it renews in the run's folder.

Two who watch would make two attempts. One that is killed renews it no longer; it is free then after `duration`, or at
once on the same machine, which knows that the process has ended.
"""

import contextlib
import json
import os
import pathlib
import socket
import time
import uuid

from launch.errors import USAGE, LaunchError, UnknownError

FILE = "watcher.json"


class Held(LaunchError):
  """Another watches the run: `holder`, in words."""

  def __init__(self, holder: str, advice: str, code: int = USAGE):
    super().__init__(f"the run is watched by {holder}{advice}", code)
    self.holder = holder


class Lease:
  """On a run's folder, a Disk or Bucket. `duration`: seconds after which one that is not renewed is free."""

  def __init__(self, storage, duration: float):
    self._storage, self._duration = storage, duration
    self._token = {
      "token": uuid.uuid4().hex,
      "host": socket.gethostname(),
      "boot": _boot(),
      "process": _process(os.getpid()),
    }
    self._generation, self._renewed = 0, 0.0

  def take(self, force: bool = False) -> None:
    """Takes it, also from another with `force`. LaunchError where another holds it."""
    for _ in range(5):
      says, generation, age = self._read()
      if says.get("token") == self._token["token"]:  # the answer to our own write was lost
        self._generation, self._renewed = generation, time.monotonic()
        return
      if not force and (holder := self._holder(says, age)):
        raise Held(holder, f"; stop that one, or wait {self._duration:.0f} s after it has died")
      try:
        self._generation = self._storage.write(FILE, json.dumps(self._token).encode(), generation)
        self._renewed = time.monotonic()
        return
      except FileExistsError:  # another was faster
        continue
    raise UnknownError("the run's folder changes faster than it can be read")

  def holder(self) -> str:
    """Who watches, in words; "" for nobody."""
    says, _, age = self._read()
    return self._holder(says, age)

  def _holder(self, says, age):
    if not says or age > self._duration or _gone(says):
      return ""
    return f"process {str(says.get('process', '?')).partition(' ')[0]} on {says.get('host', '?')}, seen {age:.0f} s ago"

  def renew(self) -> bool:
    """Renews it; whether it is surely held now. LaunchError where another has taken it."""
    began = time.monotonic()
    try:
      self._generation = self._storage.write(FILE, json.dumps(self._token).encode(), self._generation)
      self._renewed = began
    except FileExistsError:
      return self._held(began)
    except (UnknownError, LaunchError):  # away, or refused, as of credentials that are renewed: it may pass
      return began - self._renewed < self._duration / 2
    return True

  def _held(self, began):
    """Whether what is there is ours, of a write whose answer was lost. Held where it is another's."""
    try:
      says, generation, _ = self._read()
    except (UnknownError, LaunchError):
      return began - self._renewed < self._duration / 2
    if says.get("token") != self._token["token"]:
      raise Held(says.get("host", "another"), " now; this one ends")
    self._generation, self._renewed = generation, began
    return True

  def give_back(self) -> None:
    """For the next one to take at once."""
    says, generation, _ = self._read()
    if says.get("token") == self._token["token"]:
      with contextlib.suppress(FileExistsError):  # it is another's already
        self._storage.write(FILE, b"{}", generation)

  def _read(self):
    item = self._storage.read(FILE)
    if item is None:
      return {}, 0, 0.0
    try:
      says = json.loads(item.content)
    except (ValueError, RecursionError):
      says = None
    return says if isinstance(says, dict) else {"host": "nobody knows whom"}, item.generation, item.age


def _boot():
  """Of this machine since it was started: names of hosts are not unique."""
  try:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
  except OSError:
    return ""


def _process(number):
  """A process, with the time of its start where the system tells that."""
  try:
    return f"{number} {pathlib.Path(f'/proc/{number}/stat').read_text().rpartition(')')[2].split()[19]}"
  except OSError:
    return str(number)


def _gone(says):
  """Whether the holder was a process of this machine that has ended."""
  process = str(says.get("process", ""))
  number, _, began = process.partition(" ")
  if not says.get("boot") or says["boot"] != _boot() or not number.isdigit() or not began:
    return False
  return _process(int(number)) != process
