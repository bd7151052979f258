"""How a try stands, by what its workers report: a function of the reports."""

import dataclasses
from collections.abc import Iterable, Mapping

from launch import board
from launch.screen import amount
from launch.spec import Run

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


def judge(run: Run, try_: int, reports: Mapping, order: board.Order | None, waited: float, hangs: int) -> Verdict:
  """The verdict on a try.

  Args:
    reports: {worker: (report, its age in seconds)}.
    order: the last that the workers were given.
    waited: seconds since the first sign of trouble, as a worker whose report is gone; 0 without one.
    hangs: earlier tries on these machines that ended with HANG.
  """
  current = {w: r for w, (r, _) in reports.items() if r.try_ == try_}
  exits = {w: r.exit for w, r in current.items() if r.phase == board.EXITED and r.exit is not None}
  if len(exits) == run.workers and not any(exits.values()):
    return Verdict(DONE, "all processes have ended with 0")
  if order and order.stop:
    return Verdict(STOPPED if len(exits) == run.workers else GOING, "stopped as ordered")
  ended = [r for r in current.values() if r.phase == board.ENDED]
  gone = [w for w in range(run.workers) if w not in reports] if begun(current.values(), try_) else []
  silent = [w for w, (r, age) in reports.items() if age > run.limits.silence and r.phase != board.ENDED]
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
  return any(report.try_ == try_ and report.phase in (board.RUNNING, board.EXITED) for report in reports)


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
  running = [report for report, _ in reports.values() if report.phase == board.RUNNING]
  others = [report.phase for report, _ in reports.values() if report.phase != board.RUNNING]
  words = [f"{len(running)} of {amount(run.workers, 'worker')} running"] * bool(running)
  words += [f"{others.count(phase)} {phase}" for phase in sorted({*others})]
  if running:
    slowest = min(running, key=lambda report: report.step)
    words += [f"step {slowest.step}"] * (slowest.step >= 0) + [slowest.doing or "starting"]
  return ", ".join(words)


def first_failure(reports: Mapping) -> board.Report | None:
  """The report of the worker that failed first, whatever its try; None where none did."""
  failed = [r for r, _ in reports.values() if r.exit not in (None, 0, PEER, TERMINATED)]
  return min(failed, key=lambda r: (r.exit not in FATAL, r.clock)) if failed else None
