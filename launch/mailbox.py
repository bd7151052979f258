"""The files of an attempt in the directory of its run, and how a try is doing by the reports of its workers.

It is the mailbox between the watcher and the workers: reports and logs come out, orders go in.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from launch import spec
from launch.assumptions import guarded
from launch.errors import LaunchError, UnknownError
from launch.screen import amount
from launch.spec import Run

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


HANG = 43
PEER, TERMINATED = 134, 143  # ends that follow from another process's, see docs/runs.md
STOPS = {42, 130, TERMINATED}  # of a program that was asked to stop
FATAL = (2, 44, 45)  # no further try would end otherwise

# What a verdict may be. TROUBLE: something has ended or is silent, and the others are waited for. FRESH: failed, and
# the machines are to blame, or gone.
GOING, TROUBLE, DONE, STOPPED, SAVED, FAILED, FRESH, FINAL = (
  "going", "trouble", "done", "stopped", "saved", "failed", "fresh", "final",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Verdict:
  """One of the above, and why. `code`: the exit code of a FINAL one; `tail`: the last lines of a log that says more."""

  kind: str
  text: str = ""
  tail: str = ""
  code: int = 0


def judge(run: Run, try_: int, reports: Mapping, order: Order | None, waited: float, hangs: int) -> Verdict:
  """The verdict on a try.

  Args:
    reports: {worker: (report, its age in seconds)}.
    order: the last that the workers were given.
    waited: seconds since the first sign of trouble, as a worker whose report is gone; 0 without one.
    hangs: earlier tries on these machines that ended with HANG.
  """
  current = {w: r for w, (r, _) in reports.items() if r.try_ == try_}
  exits = {w: r.exit for w, r in current.items() if r.phase == EXITED and r.exit is not None}
  if len(exits) == run.workers and not any(exits.values()):
    return Verdict(DONE, "all processes have ended with 0")
  if order and order.stop:
    return Verdict(STOPPED if len(exits) == run.workers else GOING, "stopped as ordered")
  ended = [r for r in current.values() if r.phase == ENDED]
  gone = [w for w in range(run.workers) if w not in reports] if begun(current.values(), try_) else []
  silent = [w for w, (r, age) in reports.items() if age > run.limits.silence and r.phase != ENDED]
  silent = sorted(silent + gone * (waited > run.limits.silence))
  if not (exits or ended or silent or gone):
    return Verdict(GOING)
  if gone and not (exits or ended or silent):
    return Verdict(TROUBLE)
  # The others follow within JAX's heartbeat; only then is known whose end was the first.
  complete = len(exits) + len(ended) == run.workers
  if not complete and not silent and waited < run.limits.grace:
    return Verdict(TROUBLE)
  if ended:
    return Verdict(FRESH, f"w{ended[0].worker:02d} has given up: {ended[0].detail}", ended[0].tail)
  return _by_codes(current, exits, silent, hangs) or _by_silence(run, exits, silent, waited, current)


def begun(reports: Iterable, try_: int) -> bool:
  """Whether a try has begun, before which all workers have reported."""
  return any(report.try_ == try_ and report.phase in (RUNNING, EXITED) for report in reports)


def _by_codes(current, exits, silent, hangs):
  """Of the ends that do not follow from another's; None where there is none."""
  culprits = {w: code for w, code in exits.items() if code not in (0, PEER, TERMINATED)}
  for worker, code in sorted(culprits.items()):
    if code in FATAL:
      return Verdict(FINAL, f"w{worker:02d} ended with {code}; another try would too", current[worker].tail, code)
  # Who is silent may have been asked. What ends so by itself has failed, or it would be tried again for ever.
  asked = bool(silent) or any(report.asked for report in current.values())
  if asked and not STOPS.isdisjoint(exits.values()):
    return Verdict(SAVED, "the processes were asked to stop")
  if not culprits:
    return None
  worker = min(culprits, key=lambda w: (culprits[w] == HANG, current[w].clock, w))
  report = current[worker]
  text = f"w{worker:02d} ({report.host}) ended with {report.exit}" + (f": {report.detail}" if report.detail else "")
  if report.exit in STOPS:
    text += ", as if asked to stop, which nobody did; a program must end so only where it was asked"
  return Verdict(FRESH if report.exit == HANG and hangs else FAILED, text, report.tail, report.exit)


def _by_silence(run, exits, silent, waited, current):
  if silent:
    names = ", ".join(f"w{worker:02d}" for worker in silent[:8])
    if len(silent) < run.workers:
      return Verdict(FAILED, f"nothing was heard of {names} for {run.limits.silence:g} s")
    if waited < run.limits.silence:
      return Verdict(TROUBLE)  # the bucket, or what reads it, may be what stands still
    return Verdict(FRESH, f"nothing was heard of any worker for {2 * run.limits.silence:.0f} s")
  aborted = sorted(w for w, code in exits.items() if code)
  if not aborted:
    return Verdict(TROUBLE if waited < 2 * run.limits.grace else FAILED, "some processes ended with 0, others go on")
  first = current[aborted[0]]
  return Verdict(FAILED, f"w{first.worker:02d} ended with {first.exit}, as if another had died", first.tail)


def progress(run: Run, reports: Mapping) -> str:
  """What the workers do, for people: how many run, and how far the slowest is. "" where none of them says anything."""
  running = [report for report, _ in reports.values() if report.phase == RUNNING]
  others = [report.phase for report, _ in reports.values() if report.phase != RUNNING]
  words = [f"{len(running)} of {amount(run.workers, 'worker')} running"] * bool(running)
  words += [f"{others.count(phase)} {phase}" for phase in sorted({*others})]
  if running:
    slowest = min(running, key=lambda report: report.step)
    words += [f"step {slowest.step}"] * (slowest.step >= 0) + [slowest.doing or "starting"]
  return ", ".join(words)


def first_failure(reports: Mapping) -> Report | None:
  """The report of the worker that failed first, whatever its try; None where none did."""
  failed = [r for r, _ in reports.values() if r.exit not in (None, 0, PEER, TERMINATED)]
  return min(failed, key=lambda r: (r.exit not in FATAL, r.clock)) if failed else None
