"""Deletion of machines with verification, and the rules for machines that other processes may delete.

`gc` and `down` read the event log and the lease of a run again immediately before each removal. If the directory of a
run does not answer, its machines are marked ELSEWHERE. They may be in use, so only --force deletes them.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from . import errors, states
from .errors import LaunchError, UnknownError, print_line
from .event_log import EventLog
from .mailbox import LeaseHeldError
from .spec import Run
from .states import OVER, State

# States of machines that do not end by themselves, and still use quota or cost.
DEAD = (states.LOST, states.FAILED, states.DONE)
Target = TypeVar("Target", bound=int | states.Resource)
ELSEWHERE = "ELSEWHERE"  # the run's directory does not answer, or names a watcher
EXPIRED, ORPHAN = "EXPIRED", "ORPHAN"
CONFIRMING = 2.0  # seconds beyond limits.delete in which an absence is confirmed
LONGEST_WAIT = 15.0  # seconds between two looks at a deletion


def do_nothing() -> None:
  """Allows every removal."""


@dataclasses.dataclass(frozen=True)
class RunFacts:
  """Facts about a run that decide whether its machines may be deleted.

  Args:
    state: state of the run, from the event log in the run's directory or on this machine.
    open: the run has not ended.
    watched: a watcher holds the lease.
    now: the service's time, in seconds since the epoch; 0 if unknown.
    settled: no request of the run can create machines any more.
  """

  state: State
  open: bool
  watched: bool
  now: float
  settled: bool = True


def find_removal_reason(resource: states.Resource, facts: "RunFacts | None") -> str:
  """Returns the reason why other processes may delete a machine: EXPIRED, ORPHAN or its dead state.

  Returns "" if they must not delete it, and ELSEWHERE if only --force may delete it.

  Args:
    resource: the machine as the cloud lists it.
    facts: the facts about its run, or None if the run's directory does not answer.
  """
  if facts is None or not resource.is_consistent:
    return ELSEWHERE
  state = facts.state
  current = state.attempt == resource.attempt
  if facts.watched:  # the watcher may create the next attempt at any time, and deletes the others itself
    return "" if current or resource.attempt > state.attempt else ELSEWHERE
  if resource.expires and facts.now and resource.expires < facts.now:
    return EXPIRED
  if resource.state in DEAD:
    return resource.detail.upper() or resource.state.upper()
  if resource.attempt > state.attempt and facts.open:
    return ELSEWHERE  # newer than the event log
  live = facts.open and state.stage != OVER and (current or not facts.settled)
  kept = state.kept and current
  return "" if live or kept else ORPHAN


def delete(
  engine_: states.Engine,
  run: Run,
  targets: Sequence[Target],
  event_log: EventLog | None = None,
  wait: Callable[[float], None] = time.sleep,
  before: Callable[[], None] = do_nothing,
) -> list[Target]:
  """Deletes attempts and resources. Returns those whose deletion was not confirmed within `limits.delete`.

  An attempt counts as deleted if it is absent in consecutive observations. With an event log, the function also waits
  until no request can create machines any more. It deletes attempts that appear late, and records each deletion. For
  a listed resource, the start of the deletion is sufficient.

  Args:
    engine_: the engine of the run.
    run: the run.
    targets: numbers of attempts, or resources.
    event_log: of the run, or None if no request can still take effect.
    wait: sleeps for a number of seconds.
    before: called immediately before each removal. An exception prevents the removal. After UnknownError the removal
      is tried again.

  Raises:
    LeaseHeldError: `before` found another watcher.
  """
  absent = dict.fromkeys(targets, 0)  # consecutive looks without the target
  pause, deadline = 0.5, time.monotonic() + run.limits.delete + (event_log.get_settling_seconds() if event_log else 0.0)
  while absent and time.monotonic() < deadline + CONFIRMING * any(absent.values()):
    for target in list(absent):
      try:
        attempt = target if isinstance(target, int) else None
        settled = not event_log or not event_log.get_settling_seconds(attempt)  # before the look, which takes a while
        found = _observe_target(engine_, target)
        absent[target] = absent[target] + 1 if found == states.ABSENT else 0
        if event_log and attempt is not None and found != states.ABSENT:
          event_log.record_appearance(attempt)
        if found not in (states.ABSENT, states.DELETING):
          before()
          found = _request_removal(engine_, target)
          absent[target] = int(found == states.ABSENT)
        if _is_gone(target, found, absent[target] >= errors.LOOKS and settled):
          del absent[target]
          if event_log:
            event_log.append("deleted", read_state(event_log), attempt=target)
      except LeaseHeldError:  # another watcher decides now
        raise
      except (UnknownError, LaunchError) as error:
        print_line(f"{_name_target(run, target)}: {error}")
    if absent:
      wait(min(pause, run.limits.poll, max(0.1, deadline - time.monotonic())))
      pause = min(2 * pause, LONGEST_WAIT)
  return list(absent)


def _is_gone(target: int | states.Resource, found: str, confirmed: bool) -> bool:
  """Returns whether a deletion is complete, or has started in the case of a resource."""
  if not isinstance(target, states.Resource):
    return confirmed
  if confirmed or found == states.DELETING:
    print_line(f"{target.name}: {'is being ' * (found == states.DELETING)}deleted")
  return confirmed or found == states.DELETING


def _observe_target(engine_: states.Engine, target: int | states.Resource) -> str:
  """Returns the state of an attempt, or of a resource by the list of resources of its location."""
  if not isinstance(target, states.Resource):
    return engine_.look(target).state
  resources, silent = engine_.list_resources((target.location,))
  if silent:
    raise UnknownError("; ".join(f"{location}: {why}" for location, why in silent.items()))
  found = [each.state for each in resources if (each.name, each.location) == (target.name, target.location)]
  return next((state for state in found if state != states.DELETING), found[0] if found else states.ABSENT)


def _request_removal(engine_: states.Engine, target: int | states.Resource) -> str:
  """Requests a deletion, and returns the state after it if the start of the deletion is enough, else ""."""
  engine_.delete(target)
  return _observe_target(engine_, target) if isinstance(target, states.Resource) else ""


def _name_target(run: Run, target: int | states.Resource) -> str:
  return target.name if isinstance(target, states.Resource) else run.get_attempt_name(target)


def attempt_exists(engine_: states.Engine, run: Run, attempt: int, wait: Callable[[float], None]) -> bool:
  """Returns True if an attempt exists. Absence must be observed several times in a row."""
  for number in range(errors.LOOKS):
    if number:
      wait(min(0.5, run.limits.poll))
    if engine_.look(attempt).state != states.ABSENT:
      return True
  return False


def advise(engine_: states.Engine, run: Run, target: int | states.Resource, fate: str = "") -> str:
  """Returns a message about a machine that was not deleted, with the command that deletes it.

  Args:
    engine_: the engine of the run.
    run: the run.
    target: the number of an attempt, or a resource.
    fate: the state of the machine in words. By default, its deletion was not confirmed.
  """
  return f"{_name_target(run, target)} {fate or run.left}; delete it with\n  {engine_.build_commands(target).delete}"


def list_machines(engine_: states.Engine, run: Run) -> tuple[list[states.Resource], dict[str, str]]:
  """Returns (the resources of a run, {location: why it did not answer})."""
  try:
    resources, troubles = engine_.list_resources(run.zones)
  except (UnknownError, LaunchError) as error:
    resources, troubles = [], {", ".join(run.zones) or run.backend: str(error)}
  key = run.name, run.owner, run.mark
  return [each for each in resources if (each.run, each.owner, each.mark) == key], troubles


def list_strays(
  engine_: states.Engine, run: Run, spared: Sequence[int]
) -> tuple[list[states.Resource], dict[str, str]]:
  """Returns the result of `list_machines` without `spared` attempts and without machines that are being deleted."""
  found, troubles = list_machines(engine_, run)
  return [each for each in found if each.attempt not in spared and each.state != states.DELETING], troubles


def delete_strays(
  engine_: states.Engine,
  run: Run,
  event_log: EventLog,
  spared: Sequence[int],
  wait: Callable[[float], None],
  before: Callable[[], None] = do_nothing,
) -> bool:
  """Deletes the resources of a run except the `spared` attempts at its end. Returns whether all are gone.

  A request without an answer, such as one of a watcher that was killed, may create machines late. If the event log
  contains such a request, the function waits for it.

  Args:
    engine_: the engine of the run.
    run: the run.
    event_log: of the run.
    spared: attempts that are not deleted.
    wait: sleeps for a number of seconds.
    before: called immediately before each removal.
  """
  if seconds := event_log.get_settling_seconds():
    print_line(
      f"{run.name}: waiting at most {seconds:.0f} s for a request without an answer, which may still take effect"
    )
  while event_log.get_settling_seconds():
    wait(run.limits.poll)
  event_log.settle()
  late = event_log.find_last_event("settled") is not None
  found, troubles = list_strays(engine_, run, spared)
  deadline = time.monotonic() + run.limits.delete
  while late and troubles and time.monotonic() < deadline:
    wait(run.limits.poll)
    found, troubles = list_strays(engine_, run, spared)
  for location, why in troubles.items():
    command = engine_.build_commands(max(1, read_state(event_log).attempt)).delete
    advice = f"; look with\n  {command}" if late else ""
    print_line(f"{location} did not report other machines of {run.name}: {why}{advice}")
  for resource in found:
    print_line(f"{resource.name} exists in {resource.location}, but is not the current attempt of this run")
  undeleted = delete(engine_, run, found, None, wait, before)
  for target in undeleted:
    print_line(advise(engine_, run, target))
  return not undeleted and not (late and troubles)


def read_state(event_log: EventLog) -> State:
  """Returns the state of an event log. If another version wrote the last line, only the attempt is known."""
  try:
    return event_log.state
  except LaunchError:
    return State(attempt=max(event_log.list_attempts(), default=0))
