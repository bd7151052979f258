"""Deletes what was made, until it is seen to be gone; also what nobody has known of."""

import time
from collections.abc import Callable

from launch import engine
from launch.errors import LaunchError, UnknownError
from launch.journal import Journal
from launch.screen import say
from launch.spec import Run


def deleted(
  engine_: engine.Engine,
  run: Run,
  attempts: list[int],
  book: Journal | None = None,
  wait: Callable[[float], None] = time.sleep,
) -> list[int]:
  """Deletes attempts until they are seen to be gone; those that are not within `limits.delete`.

  That begins when no request of the journal can be on its way: what is not there yet may come, and is deleted then.
  Without a journal what is absent is gone, and nothing is written down.
  """
  late = book.settles() if book else 0.0
  remaining, deadline, pause = list(attempts), time.monotonic() + late + run.limits.delete, 0.5
  while remaining and time.monotonic() < deadline:
    for attempt in list(remaining):
      try:
        settled = not book or book.settled(attempt)  # before the look, which takes a while
        found = engine_.look(attempt)
        if found.state == engine.ABSENT and settled:
          remaining.remove(attempt)
          if book:
            book.append("deleted", book.state, attempt=attempt)
        elif found.state not in (engine.ABSENT, engine.DELETING):
          engine_.delete(attempt)
      except (UnknownError, LaunchError) as error:
        say(f"{run.attempt(attempt)}: {error}")
    if remaining:
      wait(min(pause, run.limits.poll, max(0.0, deadline - time.monotonic())))
      pause = min(2 * pause, 15.0)
  return remaining


def removed(
  engine_: engine.Engine, run: Run, resource: engine.Resource, wait: Callable[[float], None] = time.sleep
) -> bool:
  """Deletes something of the inventory; whether it was seen to be gone, or to be going."""
  deadline, pause = time.monotonic() + run.limits.delete, 0.5
  while time.monotonic() < deadline:
    try:
      engine_.remove(resource)
      resources, silent = engine_.inventory((resource.location,))
      now = [each.state for each in resources if each.name == resource.name and each.location == resource.location]
      if not silent and all(state == engine.DELETING for state in now):
        say(f"{resource.name}: {'is being ' if now else ''}deleted")
        return True
    except (UnknownError, LaunchError) as error:
      say(f"{resource.name}: {error}")
    wait(min(pause, run.limits.poll))
    pause = min(2 * pause, 15.0)
  say(f"{resource.name}: its deletion was not seen; delete it with\n  {engine_.deletion(resource.attempt)}")
  return False


def strays(engine_: engine.Engine, run: Run, spared: list[int]) -> tuple[list[engine.Resource], dict]:
  """(what is there of the run beside the `spared` attempts, {location: why it could not be asked})."""
  resources, troubles = engine_.inventory(run.zones)
  mine = [each for each in resources if (each.run, each.owner, each.mark) == (run.name, run.owner, run.mark)]
  return [each for each in mine if each.attempt not in spared and each.state != engine.DELETING], troubles


def swept(engine_: engine.Engine, run: Run, book: Journal, spared: list[int], wait: Callable[[float], None]) -> bool:
  """Deletes what is there of the run beside the `spared` attempts, at its end; whether nothing can be left.

  Machines may come late: of a request that had no answer, as of one who watched before, and was killed. Where the
  journal knows of such a request, that is waited for.

  Args:
    wait: sleeps so many seconds, between two questions.
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
    command = f"; look with\n  {engine_.deletion(max(1, book.state.attempt))}" if late else ""
    say(f"{location} could not be asked whether anything else of {run.name} is there: {why}{command}")
  for resource in found:
    say(f"{resource.name} is there in {resource.location}, and is no attempt that this run goes on with")
  left = [resource for resource in found if not removed(engine_, run, resource, wait)]
  return not left and not (late and troubles)
