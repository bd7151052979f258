"""Time limits of a run, and durations such as 90s or 6h."""

import dataclasses
import re

from launch.errors import LaunchError


@dataclasses.dataclass(frozen=True)
class Limits:
  """Time limits, in seconds.

  Args:
    beat: between two reports of a worker.
    poll: between two looks of the one who watches, and before a request to no effect is made again: then after twice as
      long each time, up to 20 times.
    silence: without a report, after which a worker is dead.
    queue: to wait for capacity.
    provision: from there to machines that are ready.
    start: from there until all workers report.
    appear: after an answered request, until an answer that there is no such machine is believed.
    install: until they have what the run needs.
    repair: for a node to come back.
    stall: without progress, after which stacks are printed and the try ends; longer than the limits of the run itself.
    grace: between asking a program to stop and killing it.
    delete: until what is deleted is seen to be gone.
    idle: after all work has ended, before a machine ends itself.
    pause: before the next attempt, doubled with each without progress, up to 30 times as long.
  """

  beat: float = 15.0
  poll: float = 15.0
  silence: float = 180.0
  queue: float = 21_600.0
  provision: float = 1200.0
  start: float = 900.0
  appear: float = 60.0
  install: float = 1800.0
  repair: float = 1800.0
  stall: float = 3600.0
  grace: float = 120.0
  delete: float = 900.0
  idle: float = 1200.0
  pause: float = 30.0


def duration(text: str) -> float:
  """Returns the seconds of "90s", "30m", "6h" or "2d". Raises a LaunchError for anything else."""
  match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text, re.ASCII)
  if not match or not float(match[1]):
    raise LaunchError(f"{text[:40]!r} is no duration. Write 90s, 30m, 6h or 2d")
  return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
