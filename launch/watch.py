"""Watches a run to its end: looks, decides by `supervise`, acts, and writes down what it does before it does it."""

import dataclasses
import os
import random
import statistics
import sys
import time

from launch import board, bundle, engine, errors, supervise
from launch.backends import engine as engine_of
from launch.errors import LaunchError, UnknownError
from launch.journal import Journal
from launch.lease import Lease
from launch.spec import Run
from launch.state import DELETING, IDLE, OVER, WATCHING, Seen, State
from launch.storage import storage

BEATS = 6.0  # looks in the duration of the lease
SKEW = 60.0  # seconds by which a worker's clock may be wrong
NEWS = 60.0  # seconds between two lines of progress


class Watch:
  """The one who watches a run; holds the run's lease, and gives it back: a context."""

  def __init__(self, run: Run, journal: Journal, engine_: engine.Engine | None = None, force: bool = False):
    """Watches by an engine, by default that of the run's backend; with `force` also where another seems to watch."""
    self._run, self._journal, self._storage = run, journal, storage(run.folder)
    self.engine = engine_ or engine_of(run)
    self.state = State()
    self._lease = Lease(self._storage, BEATS * run.limits.poll)
    self._code = (journal.last("run") or {}).get("sha", "")
    self._force = force
    self._said, self._warned, self._news, self._refusal = {}, set(), 0.0, None

  def __enter__(self):
    self._lease.take(self._force)
    self._journal.read()  # another may have watched until now
    self.state = self._journal.state
    self._intended = set(self._journal.remaining())
    return self

  def __exit__(self, *_):
    try:
      self._lease.give_back()
    except (UnknownError, LaunchError) as error:
      say(f"the lease is not given back, and free in {BEATS * self._run.limits.poll:.0f} s: {error}")

  def begin(self, code: bundle.Bundle | None) -> None:
    """Writes down what is asked for, with the code that it runs; None for that of before."""
    before = self.state
    if before.stage == OVER:  # what was kept goes before anything new comes
      stage = DELETING if before.kept else IDLE
      gone = tuple(number for number in before.unverified if not (before.kept and number == before.attempt))
      self.state = State(before.attempt, stage=stage, since=time.time(), unverified=gone)
    if code:
      bundle.upload(self._storage, code)
      self._code = code.sha
    self._journal.append("run", self.state, run=self._run.dumps(), sha=self._code)

  def resume(self, try_: int) -> None:
    """Goes on with machines that were kept, by another try."""
    kept = {key: getattr(self.state, key) for key in ("attempt", "expires", "used", "continued")}
    gone = tuple(number for number in self.state.unverified if number != self.state.attempt)
    self.state = State(**kept, try_=try_, stage=WATCHING, since=time.time(), look_since=time.time(), unverified=gone)
    self._journal.append("resumed", self.state)

  def leave(self) -> None:
    """Writes down that nobody watches."""
    self._journal.append("detached", self.state)

  def to_end(self) -> int:
    """Watches until the run is over; the exit code."""
    while self.state.stage != OVER:
      if self._lease.renew():
        acted = self.step()
      else:
        acted = False
        self._trouble("lease", "the run's folder does not answer: nothing is done until it does")
      if self.state.stage != OVER:
        time.sleep(min(self._run.limits.poll, 1.0 if acted else 1e9) * random.uniform(0.8, 1.2))
    return self._close()

  def step(self) -> bool:
    """Looks and acts once; whether there was something to do."""
    seen = self._look()
    state, actions = supervise.decide(self._run, self.engine.restarts, self.state, seen)
    try:
      for action in actions:
        self._act(action, state)
    except UnknownError as error:
      self._trouble("acting", f"no answer: {error}; it is tried again")
      return False
    notes = [action for action in actions if action.verb == "note"]
    if state.continued != self.state.continued and not notes:
      self._journal.append("progress", state)
    changed = state.stage != self.state.stage
    self.state = state
    for note in notes:
      self._note(note)
    self._describe(seen)
    return bool(actions) or changed

  def _look(self):
    """What is known now."""
    now, attempt = time.time(), self.state.attempt
    refusal, self._refusal = self._refusal, None
    if self.state.stage == IDLE:
      return Seen(now, None)
    look = reports = order = None
    try:
      look = self.engine.look(attempt)
      self._said.pop("look", None)
    except (UnknownError, LaunchError) as error:
      self._trouble("look", f"{self._run.attempt(attempt)}: {error}; what runs goes on")
    try:
      files = board.Board(self._storage, attempt)
      reports, order = files.reports(self._run.workers), files.order()
      self._said.pop("reports", None)
    except (UnknownError, LaunchError) as error:
      self._trouble("reports", f"the workers' reports: {error}; what runs goes on")
    self._check_clocks(now, reports or {})
    return Seen(now, look, reports, order, refusal)

  def _act(self, action, state):
    if not self._lease.renew():  # a call of the cloud's may have taken longer than the lease lasts
      raise UnknownError("the run's folder, whose lease is not surely held")
    files = board.Board(self._storage, state.attempt)
    if action.verb == "create":
      # Written before it is asked for: what is made can be found.
      if state.attempt not in self._intended:
        if state.attempt not in self._journal.remaining():
          self._journal.append("intent", state, location=self.engine.location(state.attempt))
        self._journal.copy()  # whoever ends the run from elsewhere must know of it
        if not self._lease.renew():  # who took it meanwhile has not read of this
          raise UnknownError("the run's folder, whose lease is not surely held")
        files.clear()
        self._intended.add(state.attempt)
        say(f"{self._run.attempt(state.attempt)}: asking for it in {self.engine.location(state.attempt)}")
      run = self._run
      if run.zones:  # so that a machine knows its own
        run = dataclasses.replace(run, zones=(self.engine.location(state.attempt),))
      attempt = board.Attempt(run, state.attempt, self._code, int(state.expires), self._date())
      files.publish(attempt)
      try:
        self.engine.create(state.attempt, int(state.expires))
        self._journal.append("created", state)
      except LaunchError as error:
        self._refusal = error
      except UnknownError as error:  # it may be there: the next looks say
        self._trouble("create", f"no answer: {error}; it is tried again")
    elif action.verb == "delete":
      try:
        self.engine.delete(state.attempt)
      except (UnknownError, LaunchError) as error:  # the next looks say: what is not deleted is named at the end
        self._trouble("delete", f"{self._run.attempt(state.attempt)} is not deleted: {error}")
    elif action.verb == "order":
      files.give(action.order)

  def _date(self):
    """When the run was first asked for with this code: of the packages of all its attempts."""
    first = next(event for event in self._journal.events if event.get("sha") == self._code)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first["time"]))

  def _note(self, note):
    if note.tail:
      say("\n".join(f"    {line}" for line in note.tail.splitlines()[-40:]))
    if note.text:
      say(f"{self._run.attempt(self.state.attempt)}: {note.text}")
    if note.event == "again":
      say(f"{self._run.attempt(self.state.attempt)}: try {self.state.try_} on the same machines")
    self._journal.append(note.event, self.state, text=note.text)

  def _close(self):
    """The last look at what may still be there; the exit code."""
    state = self.state
    code, text = state.end
    remaining = []
    for attempt in state.unverified:
      try:
        if self.engine.look(attempt).state != engine.ABSENT:
          remaining.append(attempt)
        else:
          self._journal.append("deleted", dataclasses.replace(state, attempt=attempt))
      except (UnknownError, LaunchError) as error:
        say(f"{self._run.attempt(attempt)}: {error}")
        remaining.append(attempt)
    self._journal.append("end", state, code=code, text=text)
    say(f"{self._run.name}: {text}")
    for attempt in remaining:
      kept = attempt == state.attempt and state.kept
      what = "is kept and goes on being billed" if kept else "may still be billed"
      say(f"{self._run.attempt(attempt)} {what}; delete it with\n  python -m launch down {self._run.name}\nor with\n"
          f"  {self.engine.deletion(attempt)}")  # fmt: skip
    if [attempt for attempt in remaining if not (attempt == state.attempt and state.kept)]:
      return errors.BILLING
    return code

  def _check_clocks(self, now, reports):
    """Says which worker's clock is wrong beside the others'."""
    skews = {w: report.clock - (now - age) for w, (report, age) in reports.items() if report.clock}
    middle = statistics.median(skews.values()) if len(skews) > 2 else 0.0
    for worker, skew in skews.items():
      if abs(skew - middle) > SKEW and worker not in self._warned:
        self._warned.add(worker)
        say(f"w{worker:02d}: its clock is wrong by {skew - middle:.0f} s beside the others'")

  def _describe(self, seen):
    """A line where something changed, or a minute has passed."""
    if self.state.stage != WATCHING or not seen.look:
      return
    name, detail = self._run.attempt(self.state.attempt), f", {seen.look.detail}" if seen.look.detail else ""
    if self._said.get("state") != (text := f"{name}: {seen.look.state}{detail}"):
      self._said["state"] = text
      say(text)
    running = [report for report, _ in (seen.reports or {}).values() if report.phase == board.RUNNING]
    if running and time.monotonic() - self._news > NEWS:
      self._news = time.monotonic()
      slowest = min(running, key=lambda report: report.step)
      step = f"step {slowest.step}, " if slowest.step >= 0 else ""
      say(f"{name}: {len(running)} of {self._run.workers} workers run, {step}{slowest.doing}")

  def _trouble(self, about, text):
    """Says what is wrong about a thing, once a minute."""
    if time.monotonic() - self._said.get(about, -NEWS) >= NEWS:
      self._said[about] = time.monotonic()
      say(text)


def say(text: str) -> None:
  """A line with the time, at once."""
  now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
  try:
    print(f"{now} {text}", flush=True)
  except OSError:  # nobody reads any longer: that ends no run
    sys.stdout = open(os.devnull, "w")
