"""The mailbox between the watcher and the workers of an attempt, and the lease of the watcher.

Both consist of files in the directory of the run. Workers write reports and logs, the watcher writes orders.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import socket
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from . import spec
from .errors import USAGE, LaunchError, UnknownError, guard_function, join_lines
from .storage import Storage, StoredFile

T = TypeVar("T")
TIME_ENDED = "its time has ended"  # detail of a worker after the machine time is used up
AT_ONCE = 16  # files that are read in parallel
# Phases of a worker. In READY it waits for the other workers, or for an order.
INSTALLING, READY, RUNNING, EXITED, ENDED = PHASES = ("installing", "ready", "running", "exited", "ended")


@dataclasses.dataclass(frozen=True)
class Attempt:
  """The description of an attempt for its workers.

  Args:
    run: the run.
    number: number of the attempt.
    code: the SHA-256 of the bundle.
    expires: latest end of the attempt in seconds since the epoch, even after the longest wait in the queue.
    date: latest date of the packages that workers install, such as 2026-11-23T10:00:00Z, or "" for no limit. With a
      date, all workers of all attempts have the same packages.
    seconds: machine time from the start of the first worker; 0 if only `expires` limits the attempt.
  """

  run: spec.Run
  number: int
  code: str
  expires: int
  date: str = ""
  seconds: int = 0

  @property
  def proof(self) -> str:
    """Returns a digest of what a worker executes: the code, and the run except its zone."""
    run = dataclasses.replace(self.run, zones=())
    return hashlib.sha256(f"{self.code}\n{run.dumps()}".encode(errors="surrogateescape")).hexdigest()

  def dumps(self) -> str:
    """Returns the attempt as JSON."""
    return json.dumps(dataclasses.asdict(self) | {"run": self.run.dumps()})


@dataclasses.dataclass(frozen=True)
class Order:
  """An order to all workers of an attempt: run a try, numbered from 1, or stop.

  `fresh` orders the watcher to use other machines.
  """

  try_: int = 1
  stop: bool = False
  fresh: bool = False


@dataclasses.dataclass(frozen=True)
class WorkerReport:
  """The report of a worker.

  Args:
    worker: number of the worker.
    try_: the try that it runs, has ended or is ready for.
    phase: one of PHASES.
    code: the SHA-256 of the code that it has unpacked.
    asked: the worker has asked its program to stop, after an order or because its machine ends.
    exit: the exit code of the program in EXITED; `detail` has the cause, such as too little memory.
    step, doing: progress of the program, and its activity, such as "compile", "step" or "save".
    began: the step from which the program started in this try, or -1 if unknown.
    address: HOST:PORT of its program if it is the coordinator.
    clock: seconds since the epoch, by its own clock. started: when the attempt's machine time began.
    tail: the last lines of its log, in EXITED.
  """

  worker: int
  try_: int = 1
  phase: str = INSTALLING
  code: str = ""
  asked: bool = False
  exit: "int | None" = None
  step: int = -1
  began: int = -1
  doing: str = ""
  detail: str = ""
  address: str = ""
  host: str = ""
  clock: float = 0.0
  started: float = 0.0
  tail: str = ""


class FormatError(UnknownError):
  """A file that is not in the format of `launch`."""


Reports = dict[int, tuple[WorkerReport, float]]  # reports of workers by number, with their ages in seconds


class Mailbox:
  """The files of an attempt in the directory of its run, a `Disk` or `Bucket`. All calls may raise UnknownError.

  `clock` is the bucket's time of the newest report; 0 if unknown. `unreadable` are the workers whose last reports were
  not in the format of `launch`.
  """

  def __init__(self, storage: Storage, number: int) -> None:
    self.storage, self._here = storage, f"a{number}"
    self.clock = 0.0
    self.unreadable: list[int] = []

  @guard_function("the run's directory")
  def publish(self, attempt: Attempt) -> None:
    """Writes the description of the attempt."""
    self.storage.write(f"{self._here}/spec.json", attempt.dumps().encode())

  @guard_function("the run's directory")
  def read_attempt(self) -> Attempt:
    """Returns the description of the attempt. Raises LaunchError if it does not exist."""
    name = f"{self._here}/spec.json"
    item = self.storage.read(name)
    if item is None:
      raise LaunchError(f"there is no attempt {self._here[1:]} in the run's directory")
    values: dict[str, Any] = _parse_file(dict, name, item)
    found = _parse_file(Attempt, name, item, run=spec.loads(values.get("run", "")))
    if not 0 < found.expires < 1e11 or found.number < 1 or found.seconds < 0:  # seconds of a calendar
      raise UnknownError(f"{name} in the run's directory is not in the format of `launch` (its number or its time)")
    return found

  def begin(self, now: float) -> float:
    """Returns the start of the attempt's machine time. For the first worker, this is `now`."""
    name = f"{self._here}/began.json"
    try:
      self.storage.write(name, json.dumps({"began": now}).encode(), 0)
    except FileExistsError:
      item = self.storage.read(name)
      values: dict[str, Any] = _parse_file(dict, name, item) if item else {}
      found = values.get("began")
      if not isinstance(found, (int, float)) or not 0 < found < 1e11:
        raise UnknownError(f"{name} contains no time") from None
      return min(now, float(found))
    return now

  @guard_function("the run's directory")
  def clear(self) -> None:
    """Deletes the files of an earlier attempt with this number, after its event log was lost."""
    for name in self.storage.list_names(f"{self._here}/"):
      self.storage.delete(name)

  @guard_function("the run's directory")
  def write_order(self, order: Order) -> None:
    """Gives an order to all workers."""
    self.storage.write(f"{self._here}/order.json", json.dumps(dataclasses.asdict(order)).encode())

  @guard_function("the run's directory")
  def read_order(self) -> Order:
    """Returns the last order; without one, the order to run the first try."""
    name = f"{self._here}/order.json"
    item = self.storage.read(name)
    return _parse_file(Order, name, item) if item else Order()

  @guard_function("the run's directory")
  def write_report(self, report: WorkerReport) -> None:
    """Replaces the worker's report."""
    content = json.dumps(dataclasses.asdict(report)).encode()
    self.storage.write(f"{self._here}/w{report.worker:02d}.json", content)

  @guard_function("the run's directory")
  def read_reports(self, workers: int) -> Reports:
    """Returns {worker: (report, its age in seconds)} of the workers with a readable report."""
    with ThreadPoolExecutor(min(AT_ONCE, workers)) as pool:  # a large slice has hundreds
      found = dict(enumerate(pool.map(self._read, range(workers))))
    self.unreadable = [worker for worker, pair in found.items() if pair is FormatError]
    return {worker: pair for worker, pair in found.items() if isinstance(pair, tuple)}

  def _read(self, worker: int) -> tuple[WorkerReport, float] | type[FormatError] | None:
    try:
      return self.read_report(worker)
    except FormatError:
      return FormatError

  @guard_function("the run's directory")
  def read_report(self, worker: int) -> tuple[WorkerReport, float] | None:
    """Returns (report, its age in seconds) of one worker, or None without a report."""
    name = f"{self._here}/w{worker:02d}.json"
    item = self.storage.read(name)
    if item is None:
      return None
    self.clock = max(self.clock, item.now)
    found = _parse_file(WorkerReport, name, item, worker=worker)
    texts: dict[str, Any] = {
      key: join_lines(value) for key, value in vars(found).items() if isinstance(value, str) and key != "tail"
    }
    return dataclasses.replace(found, **texts), item.age

  @guard_function("the run's directory")
  def write_log(self, worker: int, piece: int, content: bytes) -> None:
    """Writes a piece of a worker's log."""
    self.storage.write(f"{self._here}/log/w{worker:02d}.{piece:05d}", content)

  @guard_function("the run's directory")
  def list_pieces(self, worker: int) -> list[str]:
    """Returns the names of the pieces of a worker's log in their order, without other files."""
    names = self.storage.list_names(prefix := f"{self._here}/log/w{worker:02d}.")
    return sorted(
      (name for name in names if re.fullmatch(r"\d{5,9}", name[len(prefix) :], re.ASCII)),
      key=lambda name: int(name[len(prefix) :]),
    )


def _parse_file(kind: type[T], name: str, item: StoredFile, **changes: object) -> T:
  """Returns the values of a file, which everybody who may write to the bucket can change. Raises FormatError."""
  try:
    found = kind(**json.loads(item.content) | changes)
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
      other: dict[Any, Any] = {float: (int, float), "int | None": (int, type(None))}
      allowed = other.get(field.type, field.type)
      value = getattr(found, field.name)
      wrong = isinstance(value, (int, float)) and (isinstance(value, bool) or not abs(value) < 1e15)
      if not isinstance(value, allowed) or (field.type is not bool and wrong):
        raise TypeError(f"{field.name} has a wrong type, or is too large")
  except (ValueError, TypeError, RecursionError) as error:
    raise FormatError(
      f"{name} in the run's directory is not in the format of `launch` ({join_lines(error)})"
    ) from error
  return found


FILE = "watcher.json"


class LeaseHeldError(LaunchError):
  """Another process watches the run. `holder` describes it."""

  def __init__(self, holder: str, advice: str, code: int = USAGE) -> None:
    super().__init__(f"the run is watched by {holder}{advice}", code)
    self.holder = holder


class Lease:
  """The lease of a run's directory, a Disk or Bucket. It expires `duration` seconds after its last renewal."""

  def __init__(self, storage: Storage, duration: float) -> None:
    self._storage, self._duration = storage, duration
    self._token = {
      "token": uuid.uuid4().hex,
      "host": socket.gethostname(),
      "boot": _get_boot_id(),
      "process": _describe_process(os.getpid()),
    }
    self._generation, self._renewed = 0, 0.0

  def take(self, force: bool = False) -> None:
    """Takes the lease, with `force` also from another holder. Raises LeaseHeldError if another process holds it."""
    for _ in range(5):
      values, generation, age = self._read()
      if values.get("token") == self._token["token"]:  # the answer to our own write was lost
        self._generation, self._renewed = generation, time.monotonic()
        return
      if not force and (holder := self._describe_holder(values, age)):
        raise LeaseHeldError(holder, f"; stop that process, or wait {self._duration:.0f} s after it died")
      try:
        self._generation = self._storage.write(FILE, json.dumps(self._token).encode(), generation)
        self._renewed = time.monotonic()
        return
      except FileExistsError:  # another process was faster
        continue
    raise UnknownError("the run's directory changes faster than it can be read")

  def describe_holder(self) -> str:
    """Returns a description of the holder; "" if the lease is free."""
    values, _, age = self._read()
    return self._describe_holder(values, age)

  def _describe_holder(self, values: Mapping[str, object], age: float) -> str:
    if not values or age > self._duration or _has_holder_ended(values):
      return ""
    return (
      f"process {str(values.get('process', '?')).partition(' ')[0]} on {values.get('host', '?')}, seen {age:.0f} s ago"
    )

  def renew(self) -> bool:
    """Renews the lease, and returns whether it is certainly held. Raises LeaseHeldError if another process took it."""
    start_time = time.monotonic()
    try:
      self._generation = self._storage.write(FILE, json.dumps(self._token).encode(), self._generation)
      self._renewed = start_time
    except FileExistsError:
      return self._held(start_time)
    except (UnknownError, LaunchError):  # may be temporary, such as expired credentials
      return start_time - self._renewed < self._duration / 2
    return True

  def _held(self, start_time: float) -> bool:
    """Returns True if this process wrote the file but lost the answer.

    Raises LeaseHeldError if another process wrote it.
    """
    try:
      values, generation, _ = self._read()
    except (UnknownError, LaunchError):
      return start_time - self._renewed < self._duration / 2
    if values.get("token") != self._token["token"]:
      raise LeaseHeldError(values.get("host", "another"), " now; this one ends")
    self._generation, self._renewed = generation, start_time
    return True

  def give_back(self, tries: int | None = None) -> None:
    """Frees the lease, with a number of tries for each request of a bucket."""
    if tries:
      self._storage.tries = tries
    values, generation, _ = self._read()
    if values.get("token") == self._token["token"]:
      with contextlib.suppress(FileExistsError):  # another process has taken it
        self._storage.write(FILE, b"{}", generation)

  def _read(self) -> tuple[dict[str, Any], int, float]:
    item = self._storage.read(FILE)
    if item is None:
      return {}, 0, 0.0
    try:
      values = json.loads(item.content)
    except (ValueError, RecursionError):
      values = None
    return values if isinstance(values, dict) else {"host": "an unknown process"}, item.generation, item.age


def _get_boot_id() -> str:
  """Returns an identifier of this machine since its boot, because names of hosts are not unique."""
  try:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
  except OSError:
    return ""


def _describe_process(number: int) -> str:
  """Returns the number of a process, with its start time if the system has one."""
  try:
    return f"{number} {pathlib.Path(f'/proc/{number}/stat').read_text().rpartition(')')[2].split()[19]}"
  except OSError:
    return str(number)


def _has_holder_ended(values: Mapping[str, object]) -> bool:
  """Returns whether the holder was a process of this machine that has ended."""
  process = str(values.get("process", ""))
  number, _, start_time = process.partition(" ")
  if not values.get("boot") or values["boot"] != _get_boot_id() or not number.isdigit() or not start_time:
    return False
  return _describe_process(int(number)) != process
