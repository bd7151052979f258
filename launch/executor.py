"""The work of a worker: makes ready, starts the program of each try, says how it is, obeys orders, ends itself."""

import os
import shlex
import signal
import sys
import time

from launch import errors, install, machine, mailbox, manifests, program
from launch.errors import LaunchError, UnknownError

TICK = 0.1  # seconds
STACKS = 3.0  # seconds for a program to print its stacks
FATAL = 2  # the exit code after which a JobSet starts nothing again


class End(Exception):
  """The worker ends itself: its work is done, or cannot be."""


class Executor:
  """The tries of an attempt, as one worker makes them.

  Args:
    attempt: as it was published.
    number: among all workers.
    engine: local, hosts, qr or gke.
    home: where code and interpreters are. unit: its own, with the lock.
    reporter: its `Reporter`. log: its `Log`.
    asked: the signals that have asked this process to stop, to which a handler adds.
  """

  def __init__(self, attempt, number, engine, home, unit, reporter, log, asked):
    self.attempt, self.run, self.number, self.engine = attempt, attempt.run, number, engine
    self.limits, self.home, self.unit, self.reporter, self.log = attempt.run.limits, home, unit, reporter, log
    self.asked, self._looked = asked, 0.0
    self._clock, self.ends = reporter.mailbox.storage.clock, float(attempt.expires)

  def work(self, first: int, try_: int) -> int:
    """All tries; the exit code of the worker. Raises End, and LaunchError for what cannot be.

    Args:
      first: the last that needs no order.
      try_: the first that this worker has not started, in a life before.
    """
    if self.attempt.seconds:
      started = self._known(lambda: self.reporter.mailbox.begin(self._clock.now()))
      self.ends = min(self.ends, started + self.attempt.seconds)
      self.reporter.say(started=started)
    self._install()
    while True:
      try_ = self._meet(try_, first)
      code = self._try(try_)
      if self.asked:
        return code
      if self.engine == "gke":  # a JobSet starts the next try, unless this one was stopped
        return FATAL if self.reporter.order.stop or self._clock.now() > self.ends else code
      try_ = self._next(try_)

  # What comes before a program.

  def _install(self):
    note = machine.widen(self.engine)
    self._say(phase=mailbox.INSTALLING, detail="fetches the code")
    self.folder = self._known(lambda: install.code(self.reporter.mailbox.storage, self.attempt.code, self.home))
    self._say(code=self.attempt.code, detail="fetches secrets" if self.run.secrets else "installs packages")
    self.secrets = self._known(lambda: program.secrets(self.run))
    self.log.hide(self.secrets.values())
    if self.engine in ("local", "gke") and not self.run.python:  # here, or in the image
      self.python = sys.executable
    else:
      self.python = install.interpreter(self.run, self.folder, self.home, self.log.path, self._tick, self.attempt.date)
    self.address = self._known(lambda: machine.address(self.engine))
    self._say(detail=note)
    self.log.say(f"ready with {self.python}, bundle {self.attempt.code[:12]}{'; ' if note else ''}{note}")

  def _known(self, ask):
    """What `ask` gives, again and again while nobody answers."""
    deadline = time.monotonic() + self.limits.install
    while True:
      try:
        return ask()
      except UnknownError as error:
        if time.monotonic() > deadline:
          raise LaunchError(f"{error}, for {self.limits.install:.0f} s (limits.install)") from None
        self._pause(f"{error}; tries again")

  def _meet(self, try_, first):
    """Waits until all are ready for the try, or for a higher one that is ordered, and returns which. Raises End."""
    since, told, met, limit = time.monotonic(), 0, set(), self.limits.start + self.limits.install
    while True:
      order = self._order()
      if order.try_ > try_ or try_ != told:
        try_ = max(try_, order.try_)
        told, since, met = try_, time.monotonic(), set()
        port, note = machine.port(self.engine)
        fresh = {"step": -1, "began": -1, "doing": "", "asked": False, "exit": None, "tail": ""}
        address = f"{self.address}:{port}"
        self.reporter.say(phase=mailbox.READY, try_=try_, address=address, detail=note, **fresh)
      ordered = try_ <= max(order.try_, first) and not order.stop
      ready = ordered and self.reporter.settle(self._patience()) and self._all_ready(try_, met)
      if ready and not self.reporter.order.stop:
        return try_
      if time.monotonic() - since > (max(self.limits.idle, limit) if ordered else self.limits.idle):
        waiting = f"for workers {sorted(set(range(self.run.workers)) - met)}" if ordered else "for an order"
        raise End(f"waited {time.monotonic() - since:.0f} s {waiting}")
      self._pause("", min(self.limits.beat, 5.0))

  def _next(self, try_):
    """The next try that is ordered; what was said of this one stays until then. Raises End."""
    since = time.monotonic()
    while (order := self._order()).try_ <= try_ or order.stop:
      if time.monotonic() - since > self.limits.idle:
        raise End(f"waited {self.limits.idle:.0f} s for an order (limits.idle)")
      time.sleep(TICK)
    return order.try_

  def _all_ready(self, try_, met):
    """Whether all workers are ready for the try, or further on, with the same code; those that are get into `met`."""
    for other in sorted(set(range(self.run.workers)) - met):
      try:
        found = self.reporter.mailbox.seen(other)
      except (UnknownError, LaunchError):
        return False
      report, age = found or (mailbox.Report(other), 0.0)
      if report.try_ != try_ or report.phase not in (mailbox.READY, mailbox.RUNNING, mailbox.EXITED):
        return False
      if report.phase == mailbox.READY and age > self.limits.silence:
        return False
      if report.code != self.attempt.code:
        raise LaunchError(f"worker {other} has the bundle {report.code[:12]}, this one {self.attempt.code[:12]}")
      if other == 0:
        self.coordinator = report.address
      met.add(other)
    return True

  # A program.

  def _try(self, try_):
    """One try, reported; the exit code of its program."""
    self._note(try_)
    run = self.run
    self.log.say(f"try {try_} of {run.attempt(self.attempt.number)}, worker {self.number} of {run.workers}")
    here = self.log.begin()
    status = self.unit.folder / "status.json"
    variables = program.environment(run, self.number, self.engine, self.coordinator, status, self.folder, self.secrets)
    words = [self.python, "-m", run.module, *run.args]
    self.reporter.say(phase=mailbox.RUNNING, try_=try_, detail="")
    child = program.Program(words, self.folder, variables, self.log.path)
    try:
      code, why = self._watch(child, try_)
    finally:
      left = child.close()
    tail = self.log.tail(here)
    code, meaning = child.meaning(code, tail)
    whole = "; ".join(filter(None, (why, meaning, f"processes {left} do not die" if left else "")))
    self.log.say(f"try {try_} ended with {code}{': ' if whole else ''}{whole}")
    asked = child.asked is not None or bool(self.asked)
    self.reporter.say(phase=mailbox.EXITED, asked=asked, exit=code, tail=tail, detail=whole)
    self.reporter.settle(self._patience())
    return errors.BUG if self.engine == "gke" and code in manifests.FREE and not self._any_asked(try_) else code

  def _any_asked(self, try_):
    """Whether any worker's program was asked to stop, after which those of all end; True where nobody knows."""
    try:
      reports = self.reporter.mailbox.reports(self.run.workers).values()
    except (UnknownError, LaunchError):
      return True
    unknown = bool(self.reporter.mailbox.unreadable)
    return unknown or any(report.asked for report, _ in reports if report.try_ == try_)

  def _watch(self, child, try_):
    """(its exit code, why it was ended by this worker), when it has ended."""
    why, stalled = "", None
    while (code := child.poll()) is None:
      now = time.monotonic()
      if now - self._looked >= min(1.0, self.limits.beat):
        self._looked = now
        child.look()
        self.log.trim()
        self.reporter.say(**child.progress)
      order, past = self._order(False), self._clock.now() > self.ends
      if not why and (self.asked or past or order.stop or order.try_ > try_):
        why = (signal.Signals(self.asked[0]).name + " to the worker" if self.asked else
               mailbox.TIME_ENDED if past else
               "stopped as ordered" if order.stop else f"try {order.try_} is ordered")  # fmt: skip
        child.ask()
        self.reporter.say(asked=True)  # at once: a machine that goes down may not say how it ended
      if child.asked and now - child.asked > self.limits.grace:
        child.kill()
      elif stalled is None and not why and now - child.moved > self.limits.stall:
        stalled = now
        why = f"no progress for {self.limits.stall:.0f} s (limits.stall); the stacks are in the log"
        child.print_stacks()
      elif stalled and now - stalled > min(STACKS, self.limits.grace):
        child.kill()
      time.sleep(TICK if now - child.moved > 1 else TICK / 5)
    child.look()
    self.reporter.say(**child.progress)
    return (program.HANG if stalled else code), why

  # Between.

  def _order(self, ends=True):
    """The last order. Raises End where the attempt's time has ended, and for a signal; LaunchError for a mistake."""
    order = self.reporter.order
    self.reporter.check()
    if ends:
      self._tick()
      if order.stop and self.engine == "gke":  # whose JobSet would start all again
        raise End("stopped as ordered")
    return order

  def _tick(self):
    if self.asked:
      raise End(f"{signal.Signals(self.asked[0]).name} to the worker")
    if self._clock.now() > self.ends:
      raise End(mailbox.TIME_ENDED)

  def _pause(self, detail, seconds=None):
    if detail:
      self.reporter.say(detail=detail)
    deadline = time.monotonic() + (self.limits.beat if seconds is None else seconds)
    while time.monotonic() < deadline:
      self._order()
      time.sleep(min(TICK, max(0.0, deadline - time.monotonic())))

  def _patience(self):
    """Seconds to wait until a report has arrived."""
    return min(20.0, 2 * self.limits.beat + 5)

  def _say(self, **changes):
    self._order()
    self.reporter.say(**changes)

  def _note(self, try_):
    """That a try is started, where a start after the machine's sees it."""
    try:
      draft = self.unit.folder / ".tries"
      draft.write_text(str(try_))
      os.replace(draft, self.unit.folder / "tries")
    except OSError as error:  # the report in the folder says it too
      self.log.say(f"{self.unit.folder}: {error.strerror}")

  def end(self, reason: str, failed: bool = False) -> None:
    """The last report; and the engine's own end.

    Args:
      failed: a machine that costs stays for `limits.idle`, so that somebody can look at it.
    """
    self.log.say(f"ends: {reason}")
    if self.asked:  # the machine goes down, or somebody stops the unit: what was last said holds
      self.reporter.settle(self._patience())
      return
    self.reporter.say(phase=mailbox.ENDED, detail=reason)
    self.reporter.settle(self._patience())
    deadline = time.monotonic() + (self.limits.idle if failed and self.engine == "qr" else 0.0)
    while time.monotonic() < deadline and self._clock.now() < self.ends and not self.reporter.order.stop:
      if self.asked:
        return
      time.sleep(TICK)
    if self.engine == "qr":
      trouble = give_back(self.run, self.attempt.number)
      self.reporter.say(detail=f"{reason}; {trouble or 'the machine is given back'}")
      self.reporter.settle(self._patience())
    self.unit.forget()


def give_back(run, attempt: int) -> str:
  """Deletes the queued resource of an attempt, from one of its machines; says why it cannot, and what to do."""
  name, zone = run.attempt(attempt), run.zones[0] if run.zones else ""
  try:
    machine.give_back(name, run.project, zone, run.limits.beat)
    return ""
  except (LaunchError, UnknownError) as error:
    words = ["gcloud", "compute", "tpus", "queued-resources", "delete", name, "--force"]
    command = shlex.join([*words, f"--project={run.project}", f"--zone={zone}"])
    return f"the machine could not be given back and costs ({error}); run: {command}"
