"""The watcher of a run: it observes, decides by `decisions`, and acts. Each request is recorded before it is made."""

import dataclasses
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from . import bundle, decisions, errors, mailbox, removal, states
from .errors import LaunchError, UnknownError, format_utc, print_line
from .event_log import EventLog
from .mailbox import Lease, LeaseHeldError
from .spec import Run
from .states import IDLE, OVER, WATCHING, Action, Observation, State, make_engine
from .storage import open_storage

BEATS = 6.0  # polls in the duration of the lease
NEWS = 60.0  # seconds between two lines about the same subject
TAIL = 40  # lines of a log that are printed after a failure


def make_lease(run: Run) -> Lease:
  """Returns the lease of a run, which is not taken yet."""
  return Lease(open_storage(run.folder), BEATS * run.limits.poll)


class Watcher:
  """The watcher of a run, as a context that holds the lease of the run."""

  def __init__(self, run: Run, event_log: EventLog, engine_: states.Engine | None = None, force: bool = False) -> None:
    """Prepares to watch a run.

    Args:
      run: the run.
      event_log: of the run.
      engine_: by default the engine of the run's backend.
      force: take the lease although another watcher seems to hold it.
    """
    self._run, self._event_log, self._storage = run, event_log, open_storage(run.folder)
    self.engine = engine_ or make_engine(run)
    self.state = State()
    self._lease = make_lease(run)
    self._code = event_log.code
    self._force = force
    self._reported: dict[str, Any] = {}  # {subject: time.monotonic() of its last line, or its text}
    self._warned: set[str | int] = set()  # subjects of warnings that were printed
    self._refusal: LaunchError | None = None
    self.interrupted = False  # the process ends at once, and tries each request of the bucket only once

  def __enter__(self) -> "Watcher":
    self._lease.take(self._force)
    self._event_log.read()  # another watcher may have written until now
    self._event_log.take_over()
    self.state = self._event_log.state
    self._check_own_clock()
    self._intended = set(self._event_log.list_remaining())
    return self

  def __exit__(self, *_: object) -> None:
    try:
      self._lease.give_back(tries=1 if self.interrupted else None)
    except (UnknownError, LaunchError) as error:
      print_line(f"the lease could not be released, and expires in {BEATS * self._run.limits.poll:.0f} s: {error}")

  def _now(self) -> float:
    """Returns the service's time."""
    return self._storage.clock.now()

  def begin(self, code: bundle.Bundle | None) -> None:
    """Records a new run, after the machines of an earlier one are deleted.

    Args:
      code: the code of the run, or None for the earlier code.
    """
    before = self.state
    if before.stage == OVER:
      self._delete_earlier_attempts(before)
      self.state = State(before.attempt, since=self._now())
    if code:
      bundle.upload(self._storage, code)
      self._code = code.sha
    self._event_log.append("run", self.state, run=self._run.dumps(), sha=self._code)

  def _delete_earlier_attempts(self, before: State) -> None:
    """Deletes machines that were kept, or that had no confirmed deletion. Raises LaunchError if that fails."""
    if attempts := self._event_log.list_remaining():
      print_line(f"{self._names(attempts)}: deleting the machines of the earlier run first")
    if undeleted := removal.delete(self.engine, self._run, attempts, self._event_log, self._wait, self._renew):
      text = f"{self._names(undeleted)} could not be deleted, and no other attempt is created"
      state = dataclasses.replace(before, end=(errors.BILLING, text), unverified=tuple(undeleted), kept=False)
      self._event_log.append("end", state, code=errors.BILLING, text=text)
      advice = "\n".join(removal.advise(self.engine, self._run, attempt) for attempt in undeleted)
      raise LaunchError(f"{text}. {advice}", errors.BILLING)

  def _names(self, attempts: Sequence[int]) -> str:
    return ", ".join(map(self._run.get_attempt_name, attempts))

  def resume(self, try_: int) -> None:
    """Continues with another try on machines that were kept."""
    kept = {key: getattr(self.state, key) for key in ("attempt", "expires", "used", "best_start")}
    others = tuple(number for number in self.state.unverified if number != self.state.attempt)
    self.state = State(**kept, try_=try_, stage=WATCHING, since=self._now(), look_since=self._now(), unverified=others)
    self._event_log.append("resumed", self.state)

  def watch_to_end(self) -> int:
    """Watches until the run is over, and returns its exit code. Raises LaunchError if the run is not confirmed."""
    if self._event_log.unconfirmed:
      raise LaunchError(
        f"{self._run.name}: the run in its directory differs from the run that this machine started; "
        f"python -m launch adopt {self._run.name} shows the difference"
      )
    while self.state.stage != OVER:
      try:
        acted = self.turn()
      except UnknownError as error:
        acted = False
        self._report("turn", f"no answer: {error}; trying again")
      if self.state.stage != OVER:
        time.sleep(min(self._run.limits.poll, 1.0 if acted else 1e9) * random.uniform(0.8, 1.2))
    return self.close()

  def turn(self) -> bool:
    """Observes and acts once if the lease is certainly held. Returns True if an action was necessary."""
    if self._lease.renew():
      return self.step()
    self._report("lease", "the run's directory does not answer; the watcher waits")
    return False

  def step(self) -> bool:
    """Observes and acts once. Returns True if an action was necessary."""
    if self._event_log.settle():
      self._delete_late_machines()
    if self.state.stage == IDLE and not self.state.end and (seconds := self._event_log.get_settling_seconds()):
      self._report("late", f"{self._run.name}: the next attempt waits at most {seconds:.0f} s for an earlier request, "
                           "which may still take effect")  # fmt: skip
      return False
    observation = self._observe()
    state, actions = decisions.decide(self._run, self.state, observation)
    try:
      for action in actions:
        state = self._act(action, state)
    except LeaseHeldError:
      raise
    except (UnknownError, LaunchError) as error:
      if isinstance(error, LaunchError) and not self._intended:  # no machine was requested yet, and none can be
        raise
      self._report("acting", f"not done: {error}; trying again")
      return False
    notes = [action for action in actions if action.verb == "note"]
    if state.best_start != self.state.best_start and not notes:
      self._event_log.append("progress", state)
    changed = state.stage != self.state.stage
    self.state = state
    for note in notes:
      self._record(note)
    self._describe(observation)
    return bool(actions) or changed

  def _delete_late_machines(self) -> None:
    """Deletes machines of requests without an answer. The end of the run repeats this."""
    alive = [self.state.attempt] if self.state.stage != IDLE else []
    found, troubles = removal.list_strays(self.engine, self._run, alive)
    for location, why in troubles.items():
      self._report("strays", f"{location} did not report machines that appeared late: {why}")
    for resource in found:
      print_line(f"{resource.name} appeared late in {resource.location}, and is deleted")
    for target in removal.delete(self.engine, self._run, found, None, self._wait, self._renew):
      print_line(removal.advise(self.engine, self._run, target))
      if not alive and not self.state.end:
        text = f"{target.name} could not be deleted, and no other attempt is created"
        self.state = dataclasses.replace(self.state, end=(errors.BILLING, text))

  def _observe(self) -> Observation:
    """Asks the cloud and the run's directory about the current attempt."""
    now, attempt = self._now(), self.state.attempt
    refusal, self._refusal = self._refusal, None
    if self.state.stage == IDLE:
      return Observation(now, None)
    look = reports = order = None
    files = mailbox.Mailbox(self._storage, attempt)
    try:
      look = self.engine.look(attempt)
      self._reported.pop("look", None)
      if look.state != states.ABSENT:
        if self._event_log.is_unanswered(attempt):  # the look replaces the answer
          self._event_log.append("created", self.state)
        self._event_log.record_appearance(attempt)
    except (UnknownError, LaunchError) as error:
      self._report("look", f"{self._run.get_attempt_name(attempt)}: {error}; the machines continue")
    try:
      reports, order = files.read_reports(self._run.workers), self._read_order(files)
      self._reported.pop("reports", None)
    except (UnknownError, LaunchError) as error:
      self._report("reports", f"reports of the workers: {error}; the machines continue")
    for worker in files.unreadable:
      self._warn_once(f"report {worker}", f"w{worker:02d}: its report is not in the format of `launch`, and is ignored")
    self._check_clocks(now, reports or {})
    self._check_own_clock()
    return Observation(now, look, reports, order, refusal, files.clock)

  def _read_order(self, files: mailbox.Mailbox) -> mailbox.Order | None:
    """Returns the order to the workers, or None if its file is damaged."""
    try:
      return files.read_order()
    except mailbox.FormatError as error:
      name = self._run.name
      advice = f"`python -m launch restart {name}` continues the run, and `python -m launch stop {name}` stops it"
      self._warn_once("order", f"{error}. {advice}")
      return None

  def _act(self, action: Action, state: State) -> State:
    """Carries out an action, and returns the state after it."""
    self._renew()  # an earlier call of the cloud may have taken longer than the lease lasts
    files = mailbox.Mailbox(self._storage, state.attempt)
    if action.verb == "create":
      return self._create(state, files)
    if action.verb == "delete":
      try:
        self.engine.delete(state.attempt)
      except (UnknownError, LaunchError) as error:  # the next looks show the result
        self._report("delete", f"{self._run.get_attempt_name(state.attempt)} could not be deleted: {error}")
    elif action.verb == "order" and action.order:
      files.write_order(action.order)
    return state

  def _create(self, state: State, files: mailbox.Mailbox) -> State:
    """Requests the machines of an attempt. Each request is recorded before it is made."""
    run, attempt = self._run, state.attempt
    location = run.get_location(attempt)
    first = attempt not in self._intended
    if first:
      files.clear()
    if run.zones:  # a machine must know its own zone
      run = dataclasses.replace(run, zones=(location,))
    seconds = max(1, int(run.seconds - state.used))  # 0 would mean no limit
    files.publish(mailbox.Attempt(run, attempt, self._code, int(state.expires), self._package_date(), seconds))
    self._event_log.append("intent", state, location=location)
    self.state = state  # an interruption must leave what is recorded
    self._intended.add(attempt)
    self._renew()  # a watcher that took the lease meanwhile has not read the intent
    if first:
      print_line(f"{run.get_attempt_name(attempt)}: requesting machines in {location}")
    unanswered: UnknownError | None = None
    try:
      self.engine.create(attempt, int(state.expires))
    except LaunchError as error:
      self._refusal = error
    except UnknownError as error:  # the next looks show whether it exists
      unanswered = error
    try:
      self._lease.renew()
    except LeaseHeldError as error:  # this laptop may have slept
      self._undo(attempt, unanswered, error)
      raise
    if unanswered:
      self._report("create", f"no answer: {unanswered}; trying again")
    else:
      state = dataclasses.replace(state, answered=self._now())
      self._event_log.append("refused" if self._refusal else "created", state)
    return state

  def _undo(self, attempt: int, unanswered: Exception | None, held: LeaseHeldError) -> None:
    """Deletes machines that were created after another watcher took over, unless that watcher knows them."""
    self._event_log.read()
    if self._refusal or (self._event_log.open and attempt in self._event_log.list_remaining()):
      return
    print_line(
      f"{self._run.get_attempt_name(attempt)} was requested after another process ended the run, and is deleted"
    )
    if removal.delete(self.engine, self._run, [attempt]) or unanswered:
      advice = removal.advise(self.engine, self._run, attempt)
      raise LeaseHeldError(held.holder, f" now, and {advice}", errors.BILLING)

  def _package_date(self) -> str:
    """Returns the time of the first run with this code, which selects the packages of all its attempts."""
    times = (event["time"] for event in self._event_log.events if event.get("sha") == self._code)
    return format_utc(next(times, self._now()))

  def _record(self, note: Action) -> None:
    """Prints and records a note."""
    name = self._run.get_attempt_name(self.state.attempt)
    if note.tail:
      print_line("\n".join(f"    {line}" for line in note.tail.splitlines()[-TAIL:]))
    if note.text:
      print_line(f"{name}: {note.text}")
    if note.event == "again":
      print_line(f"{name}: try {self.state.try_} on the same machines")
    self._event_log.append(note.event, self.state, text=note.text)

  def close(self) -> int:
    """Verifies that no machines exist after the end of the run, and returns the exit code."""
    state = self.state
    assert state.end
    code, text = state.end
    remaining = [attempt for attempt in state.unverified if self._may_exist(attempt)]
    clean = removal.delete_strays(self.engine, self._run, self._event_log, remaining, self._wait, self._renew)
    unwanted = [attempt for attempt in remaining if not state.kept or attempt != state.attempt]
    code = code if clean and not unwanted else errors.BILLING  # the log contains the exit code
    self._event_log.append("end", state, code=code, text=text)
    print_line(f"{self._run.name}: {text}")
    for attempt in remaining:
      fate = "" if attempt in unwanted else f"is kept{' and continues to be billed' * self._run.billed}"
      advice = removal.advise(self.engine, self._run, attempt, fate)
      print_line(f"{advice}\nor with\n  python -m launch down {self._run.name}")
    return code

  def _may_exist(self, attempt: int) -> bool:
    """Returns True if an unverified attempt may still exist. Otherwise records its deletion."""
    try:
      if removal.attempt_exists(self.engine, self._run, attempt, self._wait):
        return True
      self._event_log.append("deleted", self.state, attempt=attempt)
      return False
    except (UnknownError, LaunchError) as error:
      print_line(f"{self._run.get_attempt_name(attempt)}: {error}")
      return True

  def _renew(self) -> None:
    """Raises UnknownError if the lease may have been lost, and LeaseHeldError if another watcher has it."""
    if not self._lease.renew():
      raise UnknownError("the lease in the run's directory may have been lost")

  def _wait(self, seconds: float) -> None:
    """Sleeps between two looks at a deletion, and keeps the lease."""
    self._lease.renew()
    time.sleep(seconds)

  def _check_own_clock(self) -> None:
    """Reports a wrong clock of this machine, once until the clock is correct."""
    skew = time.time() - self._now()
    if abs(skew) <= errors.SKEW:
      self._warned.discard("clock")
    else:
      text = f"this machine's clock differs by {skew:.0f} s from that of the run's directory; deadlines use the latter"
      self._warn_once("clock", text)

  def _check_clocks(self, now: float, reports: mailbox.Reports) -> None:
    """Reports workers with clocks that differ from those of the others."""
    skews = {w: report.clock - (now - age) for w, (report, age) in reports.items() if report.clock}
    middle = statistics.median(skews.values()) if len(skews) > 2 else 0.0
    for worker, skew in skews.items():
      if abs(skew - middle) > errors.SKEW:
        self._warn_once(worker, f"w{worker:02d}: its clock differs from the others by {skew - middle:.0f} s")

  def _describe(self, observation: Observation) -> None:
    """Prints a line if something changed, or once a minute."""
    if self.state.stage != WATCHING or not observation.look:
      return
    name, look = self._run.get_attempt_name(self.state.attempt), observation.look
    text = f"{name}: {look.state}" + (f", {look.detail}" if look.detail else "")
    if self._reported.get("state") != text:
      self._reported["state"] = text
      print_line(text)
    text = states.summarise_progress(self._run, observation.reports or {})
    summary = text.partition(", step ")[0]  # a new step alone is printed once a minute
    if text and (self._reported.get("progress") != summary or self._is_due("news")):
      hint = f" (output: python -m launch logs {self._run.name} -f)" * ("progress" not in self._reported)
      self._reported |= {"news": time.monotonic(), "progress": summary}
      print_line(f"{name}: {text}{hint}")

  def _is_due(self, subject: str) -> bool:
    return time.monotonic() - self._reported.get(subject, -NEWS) >= NEWS

  def _report(self, subject: str, text: str) -> None:
    """Reports a problem, at most once a minute per subject."""
    if self._is_due(subject):
      self._reported[subject] = time.monotonic()
      print_line(text)

  def _warn_once(self, subject: str | int, text: str) -> None:
    if subject not in self._warned:
      self._warned.add(subject)
      print_line(text)
