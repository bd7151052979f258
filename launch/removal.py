"""Deletes machines until they are seen to be gone, and decides which machines others may delete.

`gc` and `down` read the journal and the lease of a run again immediately before each removal. A machine whose run's
directory gives no answer is ELSEWHERE: it may be in use, and only --force deletes it.
"""

import dataclasses
import time
from collections.abc import Callable

from launch import assumptions, engine
from launch.errors import LaunchError, UnknownError, say
from launch.event_log import EventLog
from launch.mailbox import Held
from launch.spec import Run
from launch.states import OVER, State

# States of a machine that ends nothing by itself, and holds quota or continues to cost.
DEAD = (engine.LOST, engine.FAILED, engine.DONE)
ELSEWHERE = "ELSEWHERE"  # the run's directory gives no answer, or names a watcher
EXPIRED, ORPHAN = "EXPIRED", "ORPHAN"
CONFIRMING = 2.0  # seconds beyond limits.delete in which an absence is confirmed


@dataclasses.dataclass(frozen=True)
class Facts:
  """What is known of a run when one of its machines is judged.

  Args:
    state: of the journal, in the run's directory and on this machine.
    open: the run has not ended.
    watched: a watcher holds the lease.
    now: the service's time, in seconds since the epoch; 0 if the service has shown none.
    settled: no request of the run can still be on its way.
  """

  state: State
  open: bool
  watched: bool
  now: float
  settled: bool = True


def judge(resource: engine.Resource, facts: "Facts | None") -> str:
  """Returns why a machine may be deleted by others: EXPIRED, ORPHAN or its dead state; "" or ELSEWHERE if it may not.

  Args:
    resource: as the cloud lists it.
    facts: None if the run's directory gave no answer.
  """
  if facts is None:
    return ELSEWHERE
  state = facts.state
  current = state.attempt == resource.attempt
  live = facts.open and state.stage != OVER and (current or not facts.settled)
  if facts.watched:  # who watches may make the next attempt at any time, and deletes what is left
    return "" if current or resource.attempt > state.attempt else ELSEWHERE
  if resource.expires and facts.now and resource.expires < facts.now:
    return EXPIRED
  if resource.state in DEAD:
    return resource.detail.upper() or resource.state.upper()
  if resource.attempt > state.attempt and facts.open:
    return ELSEWHERE  # newer than what the journal shows
  kept = state.kept and current
  return "" if live or kept else ORPHAN


def deleted(
  engine_: engine.Engine,
  run: Run,
  attempts: list[int],
  book: EventLog | None = None,
  wait: Callable[[float], None] = time.sleep,
  before: Callable[[], None] = lambda: None,
) -> list[int]:
  """Deletes attempts until they are seen to be gone; those that are not within `limits.delete`.

  That begins when no request of the journal can be on its way: what is not there yet may come, and is deleted then.
  Without a journal what is absent is gone, and nothing is written down.

  Args:
    before: called immediately before each removal; what it raises prevents the removal. UnknownError is tried again.
  """
  late = max([book.settles(), *map(book.appears, attempts)]) if book else 0.0
  remaining, deadline, pause = dict.fromkeys(attempts, 0), time.monotonic() + late + run.limits.delete, 0.5
  while remaining and time.monotonic() < deadline + CONFIRMING * any(remaining.values()):
    for attempt in list(remaining):
      try:
        settled = not book or book.settled(attempt)  # before the look, which takes a while
        found = engine_.look(attempt)
        remaining[attempt] = remaining[attempt] + 1 if found.state == engine.ABSENT else 0
        if book and found.state != engine.ABSENT:
          book.appeared(attempt)
        if remaining[attempt] >= assumptions.LOOKS and settled:
          del remaining[attempt]
          if book:
            book.append("deleted", _readable(book), attempt=attempt)
        elif found.state not in (engine.ABSENT, engine.DELETING):
          before()
          engine_.delete(attempt)
      except Held:  # another watches now, and decides
        raise
      except (UnknownError, LaunchError) as error:
        say(f"{run.attempt(attempt)}: {error}")
    if remaining:
      wait(min(pause, run.limits.poll, max(0.1, deadline - time.monotonic())))
      pause = min(2 * pause, 15.0)
  return list(remaining)


def present(engine_: engine.Engine, attempt: int, wait: Callable[[float], None], run: Run) -> bool:
  """Returns whether an attempt is there; absence counts after several answers in turn."""
  for number in range(assumptions.LOOKS):
    if number:
      wait(min(0.5, run.limits.poll))
    if engine_.look(attempt).state != engine.ABSENT:
      return True
  return False


def removed(
  engine_: engine.Engine,
  run: Run,
  resource: engine.Resource,
  wait: Callable[[float], None] = time.sleep,
  before: Callable[[], None] = lambda: None,
) -> bool:
  """Deletes something of the inventory; whether it was seen to be gone, or to be going."""
  deadline, pause = time.monotonic() + run.limits.delete, 0.5
  while time.monotonic() < deadline:
    try:
      before()
      engine_.remove(resource)
      resources, silent = engine_.inventory((resource.location,))
      now = [each.state for each in resources if each.name == resource.name and each.location == resource.location]
      if not silent and all(state == engine.DELETING for state in now):
        say(f"{resource.name}: {'is being ' if now else ''}deleted")
        return True
    except Held:
      raise
    except (UnknownError, LaunchError) as error:
      say(f"{resource.name}: {error}")
    wait(min(pause, run.limits.poll))
    pause = min(2 * pause, 15.0)
  say(f"{resource.name}: its deletion was not seen; delete it with\n  {engine_.deletion(resource.attempt)}")
  return False


def strays(engine_: engine.Engine, run: Run, spared: list[int]) -> tuple[list[engine.Resource], dict]:
  """(what is there of the run beside the `spared` attempts, {location: why it could not be asked})."""
  try:
    resources, troubles = engine_.inventory(run.zones)
  except (UnknownError, LaunchError) as error:
    resources, troubles = (), {", ".join(run.zones) or run.backend: str(error)}
  mine = [each for each in resources if (each.run, each.owner, each.mark) == (run.name, run.owner, run.mark)]
  return [each for each in mine if each.attempt not in spared and each.state != engine.DELETING], troubles


def swept(
  engine_: engine.Engine,
  run: Run,
  book: EventLog,
  spared: list[int],
  wait: Callable[[float], None],
  before: Callable[[], None] = lambda: None,
) -> bool:
  """Deletes what is there of the run beside the `spared` attempts, at its end; whether nothing can be left.

  Machines may come late: of a request that had no answer, as of one who watched before, and was killed. Where the
  journal knows of such a request, that is waited for.

  Args:
    wait: sleeps so many seconds, between two questions.
    before: called immediately before each removal.
  """
  if open_ := book.settles():
    say(f"{run.name}: a request that had no answer may still be on its way; it is waited for, {open_:.0f} s at most")
  while book.settles():
    wait(run.limits.poll)
  book.settle()
  late = book.last("settled") is not None
  found, troubles = strays(engine_, run, spared)
  deadline = time.monotonic() + run.limits.delete
  while late and troubles and time.monotonic() < deadline:
    wait(run.limits.poll)
    found, troubles = strays(engine_, run, spared)
  for location, why in troubles.items():
    command = f"; look with\n  {engine_.deletion(max(1, _readable(book).attempt))}" if late else ""
    say(f"{location} could not be asked whether anything else of {run.name} is there: {why}{command}")
  for resource in found:
    say(f"{resource.name} is there in {resource.location}, and is no attempt that this run goes on with")
  left = [resource for resource in found if not removed(engine_, run, resource, wait, before)]
  return not left and not (late and troubles)


def _readable(book):
  """The state of a journal; of one whose last line is of another version what its events show."""
  try:
    return book.state
  except LaunchError:
    return State(attempt=max(book.attempts(), default=0))
