"""The state of a run, what is observed of it, the actions that follow, and the verdict on a try by its reports."""

import dataclasses
from collections.abc import Iterable, Mapping

from launch.engine import DELETING, Look
from launch.errors import LaunchError, amount
from launch.mailbox import ENDED, EXITED, RUNNING, Order, Report
from launch.spec import Run

# Stages of a run. In IDLE nothing is alive; in DELETING what was the live attempt is being removed; OVER is the end.
IDLE, WATCHING, OVER = "idle", "watching", "over"


@dataclasses.dataclass(frozen=True)
class State:
  """Where a run stands. Times are in seconds.

  Args:
    attempt, try_: the numbers of the current ones, 0 before the first.
    expires: when the attempt ends itself; before it is ready, the latest time at which it may.
    answered: when the last request for it was answered. absent: answers in turn that it is not there.
    stage: one of the stages above; `since` when it began.
    look: the last known state of what the attempt runs on, and `look_since` when it became that.
    seen: it has been there. `ready`: when it was first ready, 0 before.
    trouble: when the first process of the try ended or fell silent, 0 if none.
    starting: when the try was ordered.
    continued: the latest step at which a try went on; `begun` whether the current one's is known.
    reached: the same, of the attempt's first try, -1 before it is known.
    failures: tries that failed since then; `lost`: attempts.
    hangs: of this attempt; `anew` how often one of its workers was started anew; `asked` how often its deletion was
      looked at.
    retries: how often its creation, or its deletion, was asked for; `retry` when it is to be asked for again.
    zone: how many zones in turn have had no capacity.
    used: seconds for which earlier attempts had machines.
    pause: until when nothing is made.
    end: (exit code, message) once it is known.
    unverified: attempts whose deletion was asked for and not seen, and one that is `kept`.
  """

  attempt: int = 0
  try_: int = 0
  expires: float = 0.0
  stage: str = IDLE
  since: float = 0.0
  look: str = ""
  look_since: float = 0.0
  seen: bool = False
  ready: float = 0.0
  answered: float = 0.0
  absent: int = 0
  trouble: float = 0.0
  starting: float = 0.0
  continued: int = 0
  begun: bool = False
  reached: int = -1
  failures: int = 0
  lost: int = 0
  hangs: int = 0
  anew: int = 0
  asked: int = 0
  retries: int = 0
  retry: float = 0.0
  zone: int = 0
  used: float = 0.0
  pause: float = 0.0
  end: tuple | None = None
  unverified: tuple = ()
  kept: bool = False

  def spent(self, now: float) -> float:
    """Returns the seconds for which all attempts have had machines."""
    live = (self.ready and self.stage in (WATCHING, DELETING)) or self.kept
    return self.used + (max(0.0, now - self.ready) if live and self.ready else 0.0)


def loads(values: Mapping) -> State:
  """Returns the state of an event in a journal. LaunchError for a field of another type.

  Fields that this version does not know are ignored, for a newer version may have written them.
  """
  fields = {field.name: field for field in dataclasses.fields(State)}
  known = {key: value for key, value in values.items() if key in fields}
  for key, value in known.items():
    kind = type(fields[key].default)
    if key in ("end", "unverified"):
      known[key] = tuple(value) if isinstance(value, list) else value
      fine = value is None if key == "end" and value is None else isinstance(known[key], tuple)
      fine = fine and (key != "unverified" or all(isinstance(each, int) for each in known[key]))
      fine = fine and (key != "end" or value is None or [type(each) for each in value] == [int, str])
    elif kind is float:
      fine = isinstance(value, (int, float)) and abs(value) < 1e12
    else:
      fine = isinstance(value, kind) and (kind is not int or abs(value) < 1e12)
    if not fine:
      raise LaunchError(f"its last line has {key}={str(value)[:40]!r}, which this version cannot use")
  return State(**known)


@dataclasses.dataclass(frozen=True)
class Seen:
  """What is known at a time, in seconds since the epoch; None for what gave no answer.

  Args:
    reports: {worker: (report, its age)}.
    order: the last that was given to the workers, perhaps by `launch stop`.
    refusal: with which the attempt could not be made.
    clock: the bucket's time, 0 where none answers.
  """

  now: float
  look: Look | None
  reports: Mapping | None = None
  order: Order | None = None
  refusal: LaunchError | None = None
  clock: float = 0.0


@dataclasses.dataclass(frozen=True)
class Action:
  """One thing to do: "create" or "delete" the attempt, "order" its workers, or "note" an event in the journal."""

  verb: str
  order: Order | None = None
  event: str = ""
  text: str = ""
  tail: str = ""  # of a log, to be shown


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
