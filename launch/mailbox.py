"""The files of an attempt in the directory of its run, and how a try is doing by the reports of its workers.

It is the mailbox between the watcher and the workers: reports and logs come out, orders go in.
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
from concurrent.futures import ThreadPoolExecutor

from launch import spec
from launch.assumptions import guarded
from launch.errors import USAGE, LaunchError, UnknownError

TIME_ENDED = "its time has ended"  # of a worker whose machine time is used up
AT_ONCE = 16  # files that are read
# Phases of a worker. In READY it waits for the others, or for an order.
INSTALLING, READY, RUNNING, EXITED, ENDED = PHASES = ("installing", "ready", "running", "exited", "ended")


@dataclasses.dataclass(frozen=True)
class Attempt:
  """What a worker must know.

  Args:
    code: the SHA-256 of the bundle.
    expires: seconds since the epoch at which the attempt ends itself at the latest, even if it waited in the queue for
      as long as allowed.
    seconds: of machine time, counted from when the first worker starts; 0 if only `expires` limits the attempt.
    date: of the packages that workers install, as 2026-11-23T10:00:00Z: none that is newer, so that all workers of all
      attempts have the same; "" for the newest.
  """

  run: spec.Run
  number: int
  code: str
  expires: int
  date: str = ""
  seconds: int = 0

  @property
  def proof(self) -> str:
    """Returns a digest of all that a worker executes: the run, but for the zone, and its code."""
    run = dataclasses.replace(self.run, zones=())
    return hashlib.sha256(f"{self.code}\n{run.dumps()}".encode(errors="surrogateescape")).hexdigest()

  def dumps(self) -> str:
    """As JSON."""
    return json.dumps(dataclasses.asdict(self) | {"run": self.run.dumps()})


@dataclasses.dataclass(frozen=True)
class Order:
  """What all workers of an attempt shall do: run a try, which is numbered from 1, or stop.

  `fresh` is for the one who watches: take other machines.
  """

  try_: int = 1
  stop: bool = False
  fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Report:
  """How a worker is.

  Args:
    try_: that it works on, has ended or is ready for.
    phase: one of PHASES.
    code: the SHA-256 of the code that it has unpacked.
    asked: the worker has asked the try's program to stop: as ordered, or as its machine goes down.
    exit: the exit code of the try's program, in EXITED; "killed for want of memory" and the like are in `detail`.
    step, doing: of the program, as it says them: its progress, and "compile", "step", "save", …
    began: the step from which the program goes on in this try, -1 where it has not said so.
    address: HOST:PORT where its program would be the coordinator.
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


class Garbage(UnknownError):
  """A file that none of `launch` has written."""


class Mailbox:
  """The files of an attempt in a run's folder, which is a `Disk` or `Bucket`. May raise UnknownError.

  `clock` is the bucket's time when it last gave a report, 0 for none. `unreadable` are the workers whose reports were
  none, when all were last read.
  """

  def __init__(self, storage, number: int):
    self.storage, self._here = storage, f"a{number}"
    self.clock, self.unreadable = 0.0, []

  @guarded("the run's directory")
  def publish(self, attempt: Attempt) -> None:
    """For the workers to read."""
    self.storage.write(f"{self._here}/spec.json", attempt.dumps().encode())

  @guarded("the run's directory")
  def attempt(self) -> Attempt:
    """What was published."""
    item = self.storage.read(f"{self._here}/spec.json")
    if item is None:
      raise LaunchError(f"there is no attempt {self._here[1:]} in the run's folder")
    values = _parsed(dict, item)
    found = _parsed(Attempt, item, run=spec.loads(values.get("run", "")))
    if not 0 < found.expires < 1e11 or found.number < 1 or found.seconds < 0:  # seconds, that a calendar has
      raise UnknownError("a file of the run's folder is none of `launch` (its number or its time)")
    return found

  def begin(self, now: float) -> float:
    """Returns when the machine time of the attempt began: `now` for the first worker that asks."""
    name = f"{self._here}/began.json"
    try:
      self.storage.write(name, json.dumps({"began": now}).encode(), 0)
    except FileExistsError:
      item = self.storage.read(name)
      found = _parsed(dict, item).get("began") if item else None
      if not isinstance(found, (int, float)) or not 0 < found < 1e11:
        raise UnknownError(f"{name} has no time") from None
      return min(now, float(found))
    return now

  @guarded("the run's directory")
  def clear(self) -> None:
    """Deletes what an attempt of this number, of a run whose journal is lost, has left."""
    for name in self.storage.names(f"{self._here}/"):
      self.storage.delete(name)

  @guarded("the run's directory")
  def give(self, order: Order) -> None:
    """An order to all workers."""
    self.storage.write(f"{self._here}/order.json", json.dumps(dataclasses.asdict(order)).encode())

  @guarded("the run's directory")
  def order(self) -> Order:
    """The last order; the first try where there is none."""
    item = self.storage.read(f"{self._here}/order.json")
    return _parsed(Order, item) if item else Order()

  @guarded("the run's directory")
  def report(self, report: Report) -> None:
    """Replaces the worker's report."""
    content = json.dumps(dataclasses.asdict(report)).encode()
    self.storage.write(f"{self._here}/w{report.worker:02d}.json", content)

  @guarded("the run's directory")
  def reports(self, workers: int) -> dict:
    """{worker: (report, its age in seconds)} of those that have written one that can be read."""
    with ThreadPoolExecutor(min(AT_ONCE, workers)) as pool:  # of a large slice there are hundreds
      found = dict(enumerate(pool.map(self._read, range(workers))))
    self.unreadable = [worker for worker, pair in found.items() if pair is Garbage]
    return {worker: pair for worker, pair in found.items() if pair and pair is not Garbage}

  def _read(self, worker):
    try:
      return self.seen(worker)
    except Garbage:
      return Garbage

  @guarded("the run's directory")
  def seen(self, worker: int) -> "tuple | None":
    """(report, its age in seconds) of one worker; None where it has written none."""
    item = self.storage.read(f"{self._here}/w{worker:02d}.json")
    if item is None:
      return None
    self.clock = max(self.clock, item.now)
    return _parsed(Report, item, worker=worker), item.age  # whosever it says it is

  @guarded("the run's directory")
  def write_log(self, worker: int, piece: int, content: bytes) -> None:
    """A piece of a worker's log."""
    self.storage.write(f"{self._here}/log/w{worker:02d}.{piece:05d}", content)

  @guarded("the run's directory")
  def pieces(self, worker: int) -> list:
    """Names of the pieces of a worker's log, in their order; whatever else is there is none."""
    names = self.storage.names(prefix := f"{self._here}/log/w{worker:02d}.")
    return sorted(
      (name for name in names if re.fullmatch(r"\d{5,9}", name[len(prefix) :], re.ASCII)),
      key=lambda name: int(name[len(prefix) :]),
    )


def _parsed(kind, item, **changes):
  """What a file says, which anybody who may write to the bucket can have changed."""
  try:
    found = kind(**json.loads(item.content) | changes)
    for field in dataclasses.fields(kind) if kind is not dict else ():
      allowed = {float: (int, float), "int | None": (int, type(None))}.get(field.type, field.type)
      value = getattr(found, field.name)
      if not isinstance(value, allowed) or (isinstance(value, (int, float)) and not abs(value) < 1e15):
        raise TypeError(f"{field.name} is of the wrong kind, or no number that a run could have")
  except (ValueError, TypeError, RecursionError) as error:
    raise Garbage(f"a file of the run's folder is none of `launch` ({error})") from error
  return found


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
