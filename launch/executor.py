"""The executor of an attempt on one worker: it installs, runs the program of each try, obeys orders and reports.

A separate thread exchanges reports, orders and the log with the directory of the run, so that a slow
bucket does not block the worker.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import errors, machine, mailbox, manifests, program, service
from .errors import LaunchError, UnknownError
from .mailbox import EXITED, READY, RUNNING
from .program import WorkerLog

T = TypeVar("T")
TICK = 0.1  # seconds
STACKS = 3.0  # seconds for a program to print its stacks
FATAL = 2  # the exit code after which a JobSet does not restart
PIECES = 8  # files of the log that are sent at a time
TEXTS = {"detail": 2000, "doing": 100, "tail": 10_000}  # fields of a report, and their longest texts


class AttemptEnd(Exception):
  """Ends the attempt on this worker."""


class Reporter:
  """A thread that sends the report and the log, and reads orders.

  The thread does this every `beat` seconds, and at once if the state of the worker changes. If an exchange fails, the
  thread repeats it after `beat` seconds. Call `close` to end the thread.

  Args:
    files: the mailbox of the attempt.
    report: the first report.
    beat: seconds between two exchanges.
    log: the log of the worker.

  Attributes:
    order: the last order.
    report: the last report.
    trouble: reason why the last exchange failed, or "" if it succeeded.
  """

  def __init__(self, files: mailbox.Mailbox, report: mailbox.WorkerReport, beat: float, log: WorkerLog) -> None:
    self.mailbox, self.report, self.order, self.trouble = files, report, mailbox.Order(), ""
    self._beat, self._log = beat, log
    self._piece: int | None = None
    self._turn, self._wanted, self._done, self._closed = threading.Condition(), 1, 0, False
    self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
    self._thread.start()

  def check(self) -> None:
    """Raises a LaunchError if the thread has ended because of a bug."""
    if self._closed:
      raise LaunchError("the thread that sends reports has ended; worker.txt or journalctl shows why", errors.BUG)

  def update(self, **changes: Any) -> None:
    """Changes fields of the report, and removes secrets from their texts.

    A change of `phase`, `try_`, `asked`, `exit` or `detail` is sent at once.
    """
    for key in TEXTS.keys() & changes.keys():
      changes[key] = self._log.redact(changes[key])[: TEXTS[key]]
    with self._turn:
      before, self.report = self.report, dataclasses.replace(self.report, **changes)
      news = ("phase", "try_", "asked", "exit", "detail")
      if any(getattr(before, key) != getattr(self.report, key) for key in news):
        self._wanted += 1
        self._turn.notify_all()

  def flush(self, seconds: float) -> bool:
    """Waits until the report and the log are sent and orders are read.

    Args:
      seconds: the longest time to wait.

    Returns:
      Whether the exchange is complete.
    """
    with self._turn:
      self._wanted += 1
      wanted = self._wanted
      self._turn.notify_all()
      self._turn.wait_for(lambda: self._done >= wanted or self._closed, seconds)
    if self._closed:  # the thread has ended because of a bug, and this is the last report
      with contextlib.suppress(UnknownError, LaunchError):
        self.mailbox.write_report(dataclasses.replace(self.report, clock=time.time()))
    return self._done >= wanted

  def close(self) -> None:
    """Ends the thread. Data that was not sent is lost."""
    with self._turn:
      self._closed = True
      self._turn.notify_all()
    self._thread.join(1.0)

  def _run(self) -> None:
    try:
      while True:
        with self._turn:
          self._turn.wait_for(lambda: self._wanted > self._done or self._closed, self._beat)
          if self._closed:
            return
          wanted, report = self._wanted, self.report
        try:
          self._exchange(wanted, report)
          self.trouble = ""
        except (UnknownError, LaunchError) as error:
          self.trouble = str(error)
          with self._turn:
            self._turn.wait_for(lambda: self._closed, self._beat)
    finally:
      with self._turn:
        self._closed = True
        self._turn.notify_all()

  def _exchange(self, wanted: int, report: mailbox.WorkerReport) -> None:
    try:
      self._send_log(report)  # the log comes first, because the reader of a last report may delete the machine
    finally:
      self.mailbox.write_report(dataclasses.replace(report, clock=time.time()))
    try:
      self.order = self.mailbox.read_order()
    finally:  # an invalid order does not delay reports
      with self._turn:
        self._done = wanted
        self._turn.notify_all()

  def _send_log(self, report: mailbox.WorkerReport) -> None:
    if self._piece is None:
      names = self.mailbox.list_pieces(report.worker)
      self._piece = int(names[-1].rpartition(".")[2]) + 1 if names else 0
    for _ in range(PIECES):
      content, end = self._log.read_piece(last=report.phase != RUNNING)
      if not content:
        return
      self.mailbox.write_log(report.worker, self._piece, content)
      self._piece += 1
      self._log.mark_sent(end)


class Executor:
  """The tries of an attempt on one worker.

  Args:
    attempt: the attempt, as it was published.
    number: number of the worker among all workers of the run.
    engine: name of the backend.
    own: the service of this process.
    reporter: its `Reporter`.
    log: its `WorkerLog`.
    asked: signals that requested a stop of this process. A signal handler appends to this list.
  """

  def __init__(
    self, attempt: mailbox.Attempt, number: int, engine: str, own: service.Service, reporter: Reporter, log: WorkerLog,
    stop_signals: list[int],
  ) -> None:  # fmt: skip
    self.attempt, self.run, self.number, self.engine = attempt, attempt.run, number, engine
    self.limits, self.own, self.reporter, self.log = attempt.run.limits, own, reporter, log
    self.stop_signals = stop_signals  # signals that the worker received
    self.mailbox, self._clock, self._looked = reporter.mailbox, reporter.mailbox.storage.clock, 0.0
    # The end of the attempt in seconds since the epoch, and the seconds to wait until a report is sent.
    self.ends, self._patience = float(attempt.expires), min(20.0, 2 * self.limits.beat + 5)

  def execute(self, first: int, try_: int) -> int:
    """Makes all tries and reports the end.

    Args:
      first: number of the last try that needs no order.
      try_: number of the first try that no earlier process of this worker has started.

    Returns:
      The exit code of the worker.
    """
    try:
      return self._make_tries(first, try_)
    except AttemptEnd as reason:
      self._end(str(reason))
      return FATAL if self.engine == "gke" and not self.stop_signals else errors.DONE
    except (LaunchError, UnknownError) as error:
      self._end(str(error), failed=True)
      return error.code if isinstance(error, LaunchError) else errors.UNKNOWN

  def _make_tries(self, first: int, try_: int) -> int:
    if self.attempt.seconds:
      started = self._retry(lambda: self.mailbox.begin(self._clock.now()))
      self.ends = min(self.ends, started + self.attempt.seconds)
      self.reporter.update(started=started)
    self._install()
    while True:
      try_ = self._wait_for_workers(try_, first)
      code = self._try(try_)
      if self.stop_signals:
        return code
      if self.engine == "gke":  # the JobSet starts the next try, unless this one was stopped
        return FATAL if self.reporter.order.stop or self._find_end_reason() else code
      try_ = self._wait_for_order(try_)

  # Before a program.

  def _install(self) -> None:
    note = machine.raise_limits(self.engine)
    self._check()
    self.reporter.update(phase=mailbox.INSTALLING, detail="fetches the code")
    self.folder = self._retry(lambda: machine.fetch_code(self.mailbox.storage, self.attempt.code, self.own.home))
    detail = "fetches secrets" if self.run.secrets else "installs packages"
    self.reporter.update(code=self.attempt.code, detail=detail)
    self.secrets = self._retry(lambda: program.read_secrets(self.run))
    self.log.hide([*self.secrets.values()])
    self.python = sys.executable
    if self.engine not in ("local", "gke") or self.run.python:  # otherwise use this interpreter, or that of the image
      self.python = machine.install_interpreter(
        self.run, self.folder, self.own.home, self.log.path, self._check_time, self.attempt.date
      )
    self.address = self._retry(lambda: machine.find_address(self.engine))
    self.reporter.update(detail=note)
    self.log.write(f"ready with {self.python}, bundle {self.attempt.code[:12]}{'; ' if note else ''}{note}")

  def _retry(self, ask: Callable[[], T]) -> T:
    def pause(error: UnknownError) -> None:
      self.reporter.update(detail=f"{error}; tries again")
      self._pause(self.limits.beat)

    try:
      return errors.retry_request(ask, self.limits.install, pause)
    except UnknownError as error:
      raise LaunchError(f"{error}, for {self.limits.install:.0f} s (limits.install)") from None

  def _wait_for_workers(self, try_: int, first: int) -> int:
    """Waits until all workers are ready for a try, or for a later ordered try. Returns the number of the try."""
    met: set[int] = set()
    since, ready, limit = time.monotonic(), 0, self.limits.start + self.limits.install
    while True:
      order = self._check()
      if order.try_ > try_ or try_ != ready:
        ready = try_ = max(try_, order.try_)
        since, met = time.monotonic(), set()
        port, note = machine.find_port(self.engine)
        fresh: dict[str, Any] = {"step": -1, "began": -1, "doing": "", "asked": False, "exit": None, "tail": ""}
        self.reporter.update(phase=READY, try_=try_, address=f"{self.address}:{port}", detail=note, **fresh)
      ordered = try_ <= max(order.try_, first) and not order.stop
      complete = ordered and self.reporter.flush(self._patience) and self._all_ready(try_, met)
      if complete and not self.reporter.order.stop:
        return try_
      if time.monotonic() - since > (max(self.limits.idle, limit) if ordered else self.limits.idle):
        waiting = f"for workers {sorted(set(range(self.run.workers)) - met)}" if ordered else "for an order"
        raise AttemptEnd(f"waited {time.monotonic() - since:.0f} s {waiting}")
      self._pause(min(self.limits.beat, 5.0))

  def _all_ready(self, try_: int, met: set[int]) -> bool:
    """Returns whether all workers have reached a try with the same code. Adds the workers that have to `met`."""
    for other in sorted(set(range(self.run.workers)) - met):
      try:
        report, age = self.mailbox.read_report(other) or (mailbox.WorkerReport(other), 0.0)
      except (UnknownError, LaunchError):
        return False
      silent = report.phase == READY and age > self.limits.silence
      if silent or report.try_ != try_ or report.phase not in (READY, RUNNING, EXITED):
        return False
      if report.code != self.attempt.code:
        raise LaunchError(f"worker {other} uses the bundle {report.code[:12]}, this one {self.attempt.code[:12]}")
      if other == 0:
        self.coordinator = report.address
      met.add(other)
    return True

  def _wait_for_order(self, try_: int) -> int:
    """Waits for the next order and returns its try. The report of the last try stays valid until then."""
    since = time.monotonic()
    while (order := self._check()).try_ <= try_ or order.stop:
      if time.monotonic() - since > self.limits.idle:
        raise AttemptEnd(f"waited {self.limits.idle:.0f} s for an order (limits.idle)")
      time.sleep(TICK)
    return order.try_

  # A program.

  def _try(self, try_: int) -> int:
    """Runs the program of a try. Returns its exit code."""
    self._note_try(try_)
    run = self.run
    self.log.write(f"try {try_} of {run.get_attempt_name(self.attempt.number)}, worker {self.number} of {run.workers}")
    start, status = self.log.begin(), self.own.folder / "status.json"
    variables = program.make_environment(
      run, self.number, self.engine, self.coordinator, status, self.folder, self.secrets
    )
    self.reporter.update(phase=RUNNING, try_=try_, detail="")
    child = program.Program([self.python, "-m", run.module, *run.args], self.folder, variables, self.log.path)
    try:
      code, why = self._watch(child, try_)
    finally:
      survivors = child.close()
    tail = self.log.read_tail(start)
    code, meaning = child.explain(code, tail)
    detail = "; ".join(filter(None, (why, meaning, f"processes {survivors} survive SIGKILL" if survivors else "")))
    self.log.write(f"try {try_} ended with {code}{': ' if detail else ''}{detail}")
    asked = bool(child.stop_requested_at or self.stop_signals)
    self.reporter.update(phase=EXITED, asked=asked, exit=code, tail=tail, detail=detail)
    self.reporter.flush(self._patience)
    # A JobSet does not count restarts after these codes. Without a request to stop, they would repeat forever.
    return errors.BUG if self.engine == "gke" and code in manifests.FREE and not self._is_any_asked(try_) else code

  def _is_any_asked(self, try_: int) -> bool:
    """Returns True if the program of any worker was asked to stop, or if this is unknown. All programs then end."""
    try:
      reports = self.mailbox.read_reports(self.run.workers).values()
    except (UnknownError, LaunchError):
      return True
    return bool(self.mailbox.unreadable) or any(report.asked for report, _ in reports if report.try_ == try_)

  def _watch(self, child: program.Program, try_: int) -> tuple[int, str]:
    """Waits for the end of a program. Returns its exit code, and the reason if this worker has ended it."""
    why, stalled = "", None
    while (code := child.poll()) is None:
      now = time.monotonic()
      if now - self._looked >= min(1.0, self.limits.beat):
        self._looked = now
        child.read_progress()
        self.log.trim()
        self.reporter.update(**child.progress)
      self.reporter.check()
      if not why and (why := self._find_reason(try_)):
        child.ask()
        self.reporter.update(asked=True)  # at once, because a machine that is preempted may not report the end
      if child.stop_requested_at and now - child.stop_requested_at > self.limits.grace:
        child.kill()
      elif stalled is None and not why and now - child.moved > self.limits.stall:
        stalled = now
        why = f"no progress for {self.limits.stall:.0f} s (limits.stall); the stacks are in the log"
        child.print_stacks()
      elif stalled and now - stalled > min(STACKS, self.limits.grace):
        child.kill()
      time.sleep(TICK if now - child.moved > 1 else TICK / 5)
    child.read_progress()
    self.reporter.update(**child.progress)
    return (program.HANG if stalled else code), why

  def _find_reason(self, try_: int) -> str:
    """Returns the reason why a program must stop, or "" if it may continue."""
    order = self.reporter.order
    ordered = "stopped on request" if order.stop else f"try {order.try_} is ordered" if order.try_ > try_ else ""
    return self._find_end_reason() or ordered

  def _note_try(self, try_: int) -> None:
    """Writes the number of a try to the disk. The worker reads it after a restart of the machine."""
    try:
      draft = self.own.folder / ".tries"
      draft.write_text(str(try_))
      os.replace(draft, self.own.folder / "tries")
    except OSError as error:  # the report contains the number as well
      self.log.write(f"{self.own.folder}: {error.strerror}")

  # Between programs.

  def _check(self) -> mailbox.Order:
    """Returns the last order. Raises AttemptEnd if the attempt must end."""
    order = self.reporter.order
    self.reporter.check()
    self._check_time()
    if order.stop and self.engine == "gke":  # the JobSet would restart everything
      raise AttemptEnd("stopped on request")
    return order

  def _check_time(self) -> None:
    if why := self._find_end_reason():
      raise AttemptEnd(why)

  def _find_end_reason(self) -> str:
    """Returns the reason why the attempt must end on this worker, or "" if it may continue."""
    if self.stop_signals:
      return f"{signal.Signals(self.stop_signals[0]).name} to the worker"
    return mailbox.TIME_ENDED if self._clock.now() > self.ends else ""

  def _pause(self, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
      self._check()
      time.sleep(min(TICK, max(0.0, deadline - time.monotonic())))

  def _end(self, reason: str, failed: bool = False) -> None:
    """Sends the last report and deletes the machine. After a failure, the machine stays for `limits.idle` seconds."""
    self.log.write(f"ends: {reason}")
    if self.stop_signals:  # the machine or the service is being stopped: the last report stays valid
      self.reporter.flush(self._patience)
      return
    self._report_end(reason)
    deadline = time.monotonic() + (self.limits.idle if failed and self.engine == "qr" else 0.0)
    while time.monotonic() < deadline and self._clock.now() < self.ends and not self.reporter.order.stop:
      if self.stop_signals:
        return
      time.sleep(TICK)
    if self.engine == "qr":
      try:
        machine.delete_own_slice(self.run, self.attempt.number)
        self._report_end(f"{reason}; the machine is deleted")
      except LaunchError as error:
        self._report_end(f"{reason}; {error}")
    self.own.forget()

  def _report_end(self, detail: str) -> None:
    self.reporter.update(phase=mailbox.ENDED, detail=detail)
    self.reporter.flush(self._patience)
