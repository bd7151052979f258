"""Watches a run to its end: looks, decides by `supervise`, acts, and writes down what it does before it does it."""

import dataclasses
import random
import statistics
import time

from launch import assumptions, bundle, decisions, engine, errors, mailbox, removal, states
from launch.backends import engine as engine_of
from launch.errors import LaunchError, UnknownError, say, utc
from launch.event_log import EventLog
from launch.mailbox import Held, Lease
from launch.spec import Run
from launch.states import IDLE, OVER, WATCHING, Observation, State
from launch.storage import storage

BEATS = 6.0  # looks in the duration of the lease
NEWS = 60.0  # seconds between two lines of progress


class Watch:
  """The one who watches a run; holds the run's lease, and gives it back: a context."""

  def __init__(self, run: Run, events: EventLog, engine_: engine.Engine | None = None, force: bool = False):
    """Watches by an engine, by default that of the run's backend; with `force` also where another seems to watch."""
    self._run, self._event_log, self._storage = run, events, storage(run.folder)
    self.engine = engine_ or engine_of(run)
    self.state = State()
    self._lease = Lease(self._storage, BEATS * run.limits.poll)
    self._code = events.code
    self._force = force
    self._said, self._warned, self._garbled = {}, set(), set()
    self._news, self._refusal = 0.0, None

  def __enter__(self):
    self._lease.take(self._force)
    self._event_log.read()  # another may have watched until now
    self._event_log.taken()
    self.state = self._event_log.state
    self._check_own_clock()
    self._intended = set(self._event_log.remaining())
    return self

  def __exit__(self, *_):
    try:
      self._lease.give_back()
    except (UnknownError, LaunchError) as error:
      say(f"the lease is not given back, and free in {BEATS * self._run.limits.poll:.0f} s: {error}")

  def _now(self):
    """The service's time."""
    return self._storage.clock.now()

  def begin(self, code: bundle.Bundle | None) -> None:
    """Writes down what is asked for, with the code that it runs; None for that of before."""
    before = self.state
    if before.stage == OVER:
      self._clear(before)
      self.state = State(before.attempt, since=self._now())
    if code:
      bundle.upload(self._storage, code)
      self._code = code.sha
    self._event_log.append("run", self.state, run=self._run.dumps(), sha=self._code)

  def _clear(self, before):
    """Deletes what was kept, or was not seen to be gone, before anything new comes. LaunchError where it stays."""
    attempts = self._event_log.remaining()
    if attempts:
      say(f"{', '.join(map(self._run.attempt, attempts))}: of before, and deleted first")
    if left := removal.deleted(self.engine, self._run, attempts, self._event_log, self._wait, self._held):
      names, commands = ", ".join(map(self._run.attempt, left)), "\n  ".join(map(self.engine.deletion, left))
      text = f"{names} could not be deleted, and no other is made beside it"
      state = dataclasses.replace(before, end=(errors.BILLING, text), unverified=tuple(left), kept=False)
      self._event_log.append("end", state, code=errors.BILLING, text=text)
      raise LaunchError(f"{text}; delete it with\n  {commands}", errors.BILLING)

  def resume(self, try_: int) -> None:
    """Goes on with machines that were kept, by another try."""
    kept = {key: getattr(self.state, key) for key in ("attempt", "expires", "used", "best_start")}
    gone = tuple(number for number in self.state.unverified if number != self.state.attempt)
    self.state = State(**kept, try_=try_, stage=WATCHING, since=self._now(), look_since=self._now(), unverified=gone)
    self._event_log.append("resumed", self.state)

  def to_end(self) -> int:
    """Watches until the run is over; the exit code. LaunchError for a run that nobody here has confirmed."""
    if self._event_log.unconfirmed:
      raise LaunchError(
        f"{self._run.name}: its directory describes another run than this machine started; "
        f"python -m launch adopt {self._run.name} shows the difference"
      )
    while self.state.stage != OVER:
      try:
        acted = self.turn()
      except UnknownError as error:
        acted = False
        self._trouble("turn", f"no answer: {error}; it is tried again")
      if self.state.stage != OVER:
        time.sleep(min(self._run.limits.poll, 1.0 if acted else 1e9) * random.uniform(0.8, 1.2))
    return self.close()

  def turn(self) -> bool:
    """Looks and acts once if the lease is surely held; whether there was something to do."""
    if self._lease.renew():
      return self.step()
    self._trouble("lease", "the run's folder does not answer: nothing is done until it does")
    return False

  def step(self) -> bool:
    """Looks and acts once; whether there was something to do."""
    if self._event_log.settle():
      self._strays()
    if self.state.stage == IDLE and not self.state.end and (open_ := self._event_log.settles()):
      self._trouble("late", f"{self._run.name}: a request that had no answer may still make an attempt; the next one "
                            f"waits until that is settled, {open_:.0f} s at most")  # fmt: skip
      return False
    seen = self._look()
    state, actions = decisions.decide(self._run, self.state, seen)
    try:
      for action in actions:
        state = self._act(action, state)
    except Held:
      raise
    except (UnknownError, LaunchError) as error:
      if isinstance(error, LaunchError) and not self._intended:  # nothing was made yet, and nothing can be
        raise
      self._trouble("acting", f"not done: {error}; it is tried again")
      return False
    notes = [action for action in actions if action.verb == "note"]
    if state.best_start != self.state.best_start and not notes:
      self._event_log.append("progress", state)
    changed = state.stage != self.state.stage
    self.state = state
    for note in notes:
      self._note(note)
    self._describe(seen)
    return bool(actions) or changed

  def _strays(self):
    """Deletes what came of requests without an answer, of which no attempt goes on; the end looks once more."""
    alive = [self.state.attempt] if self.state.stage != IDLE else []
    found, troubles = removal.strays(self.engine, self._run, alive)
    for location, why in troubles.items():
      self._trouble("strays", f"{location} could not be asked for machines that came late: {why}")
    for resource in found:
      say(f"{resource.name} has come late in {resource.location}, and is deleted")
      if (
        not removal.removed(self.engine, self._run, resource, self._wait, self._held)
        and not alive
        and not self.state.end
      ):
        text = f"{resource.name} could not be deleted, and no other is made beside it"
        self.state = dataclasses.replace(self.state, end=(errors.BILLING, text))

  def _look(self):
    """What is known now."""
    now, attempt = self._now(), self.state.attempt
    refusal, self._refusal = self._refusal, None
    if self.state.stage == IDLE:
      return Observation(now, None)
    look = reports = order = None
    files = mailbox.Mailbox(self._storage, attempt)
    try:
      look = self.engine.look(attempt)
      self._said.pop("look", None)
      if look.state != engine.ABSENT:
        if self._event_log.asked(attempt):  # the answer that was lost
          self._event_log.append("created", self.state)
        self._event_log.appeared(attempt)
    except (UnknownError, LaunchError) as error:
      self._trouble("look", f"{self._run.attempt(attempt)}: {error}; what runs goes on")
    try:
      reports, order = files.reports(self._run.workers), files.order()
      self._said.pop("reports", None)
    except (UnknownError, LaunchError) as error:
      self._trouble("reports", f"the workers' reports: {error}; what runs goes on")
    for worker in {*files.unreadable} - {*self._garbled}:
      self._garbled.add(worker)
      say(f"w{worker:02d}: its report is none that `launch` writes, as if it had not reported")
    self._check_clocks(now, reports or {})
    self._check_own_clock()
    return Observation(now, look, reports, order, refusal, files.clock)

  def _act(self, action, state):
    if not self._lease.renew():  # a call of the cloud's may have taken longer than the lease lasts
      raise UnknownError("the run's folder, whose lease is not surely held")
    files = mailbox.Mailbox(self._storage, state.attempt)
    if action.verb == "create":
      return self._create(state, files)
    if action.verb == "delete":
      try:
        self.engine.delete(state.attempt)
      except (UnknownError, LaunchError) as error:  # the next looks say: what is not deleted is named at the end
        self._trouble("delete", f"{self._run.attempt(state.attempt)} is not deleted: {error}")
    elif action.verb == "order":
      files.give(action.order)
    return state

  def _create(self, state, files):
    """Asks for an attempt, each time written down before: what is made can be found, and when it was asked for last."""
    run, location = self._run, self.engine.location(state.attempt)
    first = state.attempt not in self._intended
    if first:
      files.clear()
    if run.zones:  # so that a machine knows its own
      run = dataclasses.replace(run, zones=(location,))
    files.publish(
      mailbox.Attempt(run, state.attempt, self._code, int(state.expires), self._date(), self._seconds(state))
    )
    self._event_log.append("intent", state, location=location)
    self.state = state  # an interruption from here on must leave what is written down
    self._intended.add(state.attempt)
    if not self._lease.renew():  # who took it meanwhile has not read of this
      raise UnknownError("the run's folder, whose lease is not surely held")
    if first:
      say(f"{self._run.attempt(state.attempt)}: asking for it in {location}")
    unanswered = None
    try:
      self.engine.create(state.attempt, int(state.expires))
    except LaunchError as error:
      self._refusal = error
    except UnknownError as error:  # it may be there: the next looks say
      unanswered = error
    try:
      self._lease.renew()
    except Held as error:  # as of a laptop that slept
      self._undo(state.attempt, unanswered, error)
      raise
    if unanswered:
      self._trouble("create", f"no answer: {unanswered}; it is tried again")
    else:
      state = dataclasses.replace(state, answered=self._now())
      self._event_log.append("refused" if self._refusal else "created", state)
    return state

  def _seconds(self, state):
    """The machine time of an attempt; at least a second, for 0 is none."""
    return max(1, int(self._run.seconds - state.used))

  def _undo(self, attempt, unanswered, held):
    """Deletes what was made after another had taken over, unless that one knows of it, and goes on with it."""
    self._event_log.read()
    if self._refusal or (self._event_log.open and attempt in self._event_log.remaining()):
      return
    name, command = self._run.attempt(attempt), self.engine.deletion(attempt)
    say(f"{name} was asked for after another had ended the run, and is deleted")
    gone = not removal.deleted(self.engine, self._run, [attempt])
    if unanswered or not gone:
      raise Held(held.holder, f" now, and {name} {self._run.left}; delete it with\n  {command}", errors.BILLING)

  def _date(self):
    """When the run was first asked for with this code: of the packages of all its attempts."""
    times = (event["time"] for event in self._event_log.events if event.get("sha") == self._code)
    return utc(next(times, self._now()))

  def _note(self, note):
    if note.tail:
      say("\n".join(f"    {line}" for line in note.tail.splitlines()[-40:]))
    if note.text:
      say(f"{self._run.attempt(self.state.attempt)}: {note.text}")
    if note.event == "again":
      say(f"{self._run.attempt(self.state.attempt)}: try {self.state.try_} on the same machines")
    self._event_log.append(note.event, self.state, text=note.text)

  def close(self) -> int:
    """The last look at what may still be there; the exit code."""
    state = self.state
    code, text = state.end
    remaining = []
    for attempt in state.unverified:
      try:
        if removal.present(self.engine, attempt, self._wait, self._run):
          remaining.append(attempt)
        else:
          self._event_log.append("deleted", state, attempt=attempt)
      except (UnknownError, LaunchError) as error:
        say(f"{self._run.attempt(attempt)}: {error}")
        remaining.append(attempt)
    clean = removal.swept(self.engine, self._run, self._event_log, remaining, self._wait, self._held)
    self._event_log.append("end", state, code=code, text=text)
    say(f"{self._run.name}: {text}")
    for attempt in remaining:
      kept = attempt == state.attempt and state.kept
      what = f"is kept{' and goes on being billed' * self._run.billed}" if kept else self._run.left
      say(f"{self._run.attempt(attempt)} {what}; delete it with\n  python -m launch down {self._run.name}\nor with\n"
          f"  {self.engine.deletion(attempt)}")  # fmt: skip
    if not clean or [attempt for attempt in remaining if not (attempt == state.attempt and state.kept)]:
      return errors.BILLING
    return code

  def _held(self):
    """Raises UnknownError before a removal if the lease is not surely held, Held if another has it."""
    if not self._lease.renew():
      raise UnknownError("the run's directory, whose lease is not surely held")

  def _wait(self, seconds):
    """Between two looks at what goes, or may come late."""
    self._lease.renew()
    time.sleep(seconds)

  def _check_own_clock(self):
    """Reports a difference between this machine's clock and the service's, once until it is gone."""
    skew = time.time() - self._now()
    if abs(skew) <= assumptions.SKEW:
      self._warned.discard("here")
    elif "here" not in self._warned:
      self._warned.add("here")
      say(f"this machine's clock differs by {skew:.0f} s from that of the run's directory; deadlines use the latter")

  def _check_clocks(self, now, reports):
    """Says which worker's clock is wrong beside the others'."""
    skews = {w: report.clock - (now - age) for w, (report, age) in reports.items() if report.clock}
    middle = statistics.median(skews.values()) if len(skews) > 2 else 0.0
    for worker, skew in skews.items():
      if abs(skew - middle) > assumptions.SKEW and worker not in self._warned:
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
    text = states.progress(self._run, seen.reports or {})
    at_once = text.partition(", step ")[0]  # steps are said once a minute
    if text and (self._said.get("progress") != at_once or time.monotonic() - self._news > NEWS):
      hint = f" (what they print: python -m launch logs {self._run.name} -f)" * ("progress" not in self._said)
      self._news, self._said["progress"] = time.monotonic(), at_once
      say(f"{name}: {text}{hint}")

  def _trouble(self, about, text):
    """Says what is wrong about a thing, once a minute."""
    if time.monotonic() - self._said.get(about, -NEWS) >= NEWS:
      self._said[about] = time.monotonic()
      say(text)
