"""Accounting of the time of a run over all its attempts, and throughput of its steady steps."""

import contextlib
import json
import logging
import math
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.storage import errors, files, paths

# Phases of an attempt. All but the steps have the names of ml-goodput-measurement's BadputType. The library has no name
# for evaluation, which it counts as a custom event.
PHASES = {
  "start": "training_prep",  # imports, devices, data, model, initial weights, drawing of the first batch
  "compile": "program_startup",
  "restore": "unproductive_checkpoint_restore_time",
  "step": "steps",
  "data": "data_loading_sync",
  "evaluation": "custom_badput_events",
  "save": "unproductive_checkpoint_save_time",
  "other": "other",
}
LOST, BETWEEN = "wasted_progress_from_disruption", "infrastructure_recovery_from_disruption"
TRAINING = ("compile", "step", "data", "evaluation", "save")  # phases that count as `train_seconds`
KEPT = 50  # attempts in the file; older attempts are summed up
Account = dict[str, Any]  # times of an attempt, or of several: a number, or {phase: seconds} for "seconds"
LATEST = 4_102_444_800.0  # 1 January 2100, in seconds since the epoch. A larger time means that the file is damaged
PAUSE = 10.0  # seconds between two writes to a bucket, which accepts one write per second


class GoodputTracker:
  """A clock that knows the current phase of an attempt and sums up the seconds of each phase.

  A file in the workdir stores the account of all attempts. The file is replaced at each line of the log, and before and
  after each phase except steps and data. After a kill, the account therefore lacks at most the time of one log line, or
  in a bucket at most `PAUSE` seconds.

  Args:
    file: file that stores the account. If None, the account is not stored.
    start_time: start of the process in seconds since the epoch. The default is the current time.

  Attributes:
    images: images of the steady steps.
    seconds: seconds of the steady steps.

  Example:
    clock = GoodputTracker()
    with clock.phase("step"):
      time.sleep(1)
    print(clock.goodput()["steps"])  # 1.0
  """

  def __init__(self, file: pathlib.Path | None = None, start_time: float | None = None) -> None:
    now = time.time()
    self._file, self._start_time = file, now if start_time is None else min(start_time, now)
    self._older, self._attempts = (
      _read_account(file, "The time accounting of the run restarts") if file else _make_empty_account()
    )
    if file:
      file.parent.mkdir(parents=True, exist_ok=True)
      self._folder = errors.open_directory(file.parent)
    ended = max(
      (each["began"] + sum(each["seconds"].values()) for each in self._attempts[-1:]), default=self._start_time
    )
    self._waited = max(0.0, self._start_time - ended)
    self._seconds = dict.fromkeys(PHASES, 0.0)
    self._seconds["start"] = now - self._start_time
    self._phase, self._since = "start", time.perf_counter()
    self._written = -math.inf
    self.images: float = 0  # of steady steps
    self.seconds = 0.0
    self._carried = self._lost = 0.0  # seconds of steps that the restored state contains, and of steps that are lost
    self._train_seconds = 0.0
    self._stopped: float | None = None
    self._lap_start: dict[str, float] | None = None
    self.resume({})

  def resume(self, counts: dict[str, float], running: bool = True) -> None:
    """Continues from the counts of a restored checkpoint.

    Args:
      counts: result of `counts` at the time of the checkpoint.
      running: whether the run has further steps to train.
    """
    self.images, self.seconds = counts.get("images", 0), counts.get("seconds", 0.0)
    self._carried = counts.get("step_seconds", 0.0)
    before = [self._older["seconds"], *(each["seconds"] for each in self._attempts)]
    self._lost = max(0.0, sum(seconds["step"] for seconds in before) - self._carried)
    self._train_seconds = counts.get("train_seconds", 0.0)
    self._stopped = None if running else self._train_seconds

  def get_counts(self) -> dict[str, float]:
    """Returns the counts from which `resume` continues after a restart from the current state."""
    return {
      "images": self.images,
      "seconds": self.seconds,
      "train_seconds": self.train_seconds,
      "step_seconds": self._carried + self._now()["step"],
    }

  # Phases.

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Counts the time inside the context for a phase, except the time of nested phases.

    Args:
      name: a key of `PHASES`.
    """
    before = self._enter(name)
    try:
      if name not in ("step", "data"):
        self.write()
      yield
    finally:
      self._enter(before)
    if name not in ("step", "data"):
      self.write()

  def _enter(self, name: str) -> str:
    """Adds the time since the last call to the current phase, enters another phase, and returns the previous phase."""
    now = time.perf_counter()
    self._seconds[self._phase] += now - self._since
    before, self._phase, self._since = self._phase, name, now
    return before

  def _now(self) -> dict[str, float]:
    """Returns the seconds of each phase until now."""
    return self._seconds | {self._phase: self._seconds[self._phase] + time.perf_counter() - self._since}

  def stop(self) -> None:
    """Ends the count of `train_seconds` after the last step."""
    self._stopped = self.train_seconds
    self._enter("other")

  # Rates.

  def measure_lap(self, images: int) -> dict[str, float]:
    """Returns the throughput and the share of time spent waiting for data since the last lap.

    Args:
      images: number of training images since the last lap.

    Returns:
      A dict with `images_per_second`, and `data_wait` between 0 and 1. The first lap only starts the clock and returns
      an empty dict.
    """
    now, start = self._now(), self._lap_start
    self._lap_start = now
    if start is None:
      return {}
    waited = now["data"] - start["data"]
    seconds = max(now["step"] - start["step"] + waited, 1e-9)
    self.images += images
    self.seconds += seconds
    return {"images_per_second": images / seconds, "data_wait": waited / seconds}

  @property
  def train_seconds(self) -> float:
    """Seconds of compilation, steps, waiting for data, evaluations and saves, without the start of the process."""
    if self._stopped is not None:
      return self._stopped
    now = self._now()
    return self._train_seconds + sum(now[name] for name in TRAINING)

  @property
  def rate(self) -> float | None:
    """Images per second of all laps, or None before the first complete lap.

    Only the time of steps and of waiting for data is counted.
    """
    return self.images / self.seconds if self.images and self.seconds else None

  # The account.

  def goodput(self) -> dict[str, float]:
    """Returns the seconds of the whole run by purpose. `goodput` is the share of the steps in their sum.

    Steps that were lost by a kill and must be repeated count as lost, not as steps. The time between attempts is
    reported separately, and is not part of the sum, because its cause is unknown.
    """
    attempts = [self._older, *self._attempts, self._attempt()]
    seconds = {title: sum(each["seconds"][name] for each in attempts) for name, title in PHASES.items()}
    seconds["steps"] -= self._lost
    seconds[LOST] = self._lost
    share = seconds["steps"] / sum(seconds.values())
    number = self._older["attempts"] + len(self._attempts) + 1
    return {"goodput": share, "attempts": number, **seconds, BETWEEN: sum(each["waited"] for each in attempts)}

  def write(self, pause: float = PAUSE) -> None:
    """Replaces the file.

    Args:
      pause: minimum number of seconds between two writes to a bucket. A disk is written at each call.

    Raises:
      FileNotFoundError: the directory of the file was removed or replaced.
    """
    if self._file and not (paths.is_in_bucket(self._file) and time.perf_counter() - self._written < pause):
      self._written = time.perf_counter()
      errors.check_there(self._file.parent, self._folder)
      older, attempts = _merge_old_attempts(self._older, [*self._attempts, self._attempt()])
      files.write_text(self._file, json.dumps({"older": older, "attempts": attempts}) + "\n")

  def close(self) -> None:
    """Writes the file if possible.

    Errors are suppressed, because the error that ended the run is reported elsewhere.
    """
    with contextlib.suppress(OSError):
      self.write(pause=0.0)
    if self._file:
      errors.close_directory(self._folder)

  def _attempt(self) -> Account:
    return {"began": self._start_time, "waited": self._waited, "seconds": self._now()}


class AccountSummary(NamedTuple):
  """The sum of the account of all attempts.

  Attributes:
    attempts: number of attempts.
    seconds: {phase: seconds}.
    waited: seconds between attempts.
    start_time: start of the oldest stored attempt in seconds since the epoch, or None without attempts. An account
      stores the last `KEPT` attempts.
  """

  attempts: int
  seconds: dict[str, float]
  waited: float
  start_time: float | None


def read_account(file: pathlib.Path) -> AccountSummary:
  """Adds up the account in a file. Prints a warning if the file is damaged.

  Args:
    file: the file of a `GoodputTracker`.
  """
  older, attempts = _read_account(file, "The report lacks the times of this run")
  every = [older, *attempts]
  seconds = {name: sum(each["seconds"][name] for each in every) for name in PHASES}
  start_time = attempts[0]["began"] if attempts else None
  return AccountSummary(older["attempts"] + len(attempts), seconds, sum(each["waited"] for each in every), start_time)


def format_summary(seconds: float, rate: float | None) -> list[str]:
  """Returns lines for the screen with the training time and the throughput of a run, and an explanation of each.

  Args:
    seconds: value of `GoodputTracker.train_seconds`.
    rate: value of `GoodputTracker.rate`.
  """
  lines = [f"  {'training':<24}{seconds:>10,.1f} s   compilation, steps, evaluations and saves"]
  if rate is not None:
    steps = "steps and waiting for data, without the first step"
    lines.append(f"  {'images a second':<24}{rate:>10,.{0 if rate >= 10 else 1}f}     {steps}")
  return lines


def format_goodput(goodput: dict[str, float]) -> list[str]:
  """Returns the table of the goodput for the screen.

  Args:
    goodput: result of `GoodputTracker.goodput`.
  """
  titles = {title: name for name, title in PHASES.items()} | {LOST: "lost steps"}
  seconds = {name: goodput.get(title, 0.0) for title, name in titles.items()}
  total, number, between = sum(seconds.values()), goodput["attempts"], goodput.get(BETWEEN, 0.0)
  attempts = f" in {number} attempts, {between:,.1f} s between them" if number > 1 else ""
  rows = [f"  {'goodput':<24}{goodput['goodput']:>10.2%}   of {total:,.1f} s{attempts}"]
  return rows + [f"    {name:<22}{value:>8,.1f} s" for name, value in seconds.items() if value >= 0.05]


def get_program_start() -> float:
  """Returns the start of this process in seconds since the epoch.

  The result is the current time if the system does not report the start.
  """
  try:
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
  except (OSError, ValueError, IndexError, AttributeError):
    age = 0.0
  return time.time() - max(age, 0.0)


def _make_empty_account() -> tuple[Account, list[Account]]:
  return {"attempts": 0, "waited": 0.0, "seconds": dict.fromkeys(PHASES, 0.0)}, []


def _read_account(file: pathlib.Path, consequence: str) -> tuple[Account, list[Account]]:
  """Reads (sum of older attempts, stored attempts).

  Returns a new account if the file is missing or damaged. The warning about damage ends with the consequence.
  """
  text = files.read_if_exists(file)
  if text is None:
    return _make_empty_account()
  try:
    account = json.loads(text)
  except (ValueError, RecursionError):
    reason = "it is not valid JSON"
  else:
    try:
      older = {"attempts": _parse_count(account["older"]["attempts"])} | _parse_times(account["older"], "waited")
      attempts = [_parse_times(each, "began", "waited") for each in account["attempts"]]
      return _merge_old_attempts(older, attempts)
    except ValueError as error:
      reason = str(error)
    except (LookupError, TypeError):
      reason = "a key is missing or has a value of another type"
  logging.warning("%s is damaged: %s. %s", file, reason, consequence)
  return _make_empty_account()


def _parse_count(value: object) -> int:
  """Returns a number of attempts, or raises ValueError."""
  if type(value) is not int or not 0 <= value < 2**31:
    raise ValueError("a number of attempts is invalid")
  return value


def _parse_times(record: Account, *names: str) -> Account:
  """Returns the named times and the seconds of a record, or raises ValueError if one is not a valid time."""
  times = {name: record[name] for name in names}
  seconds = {name: record["seconds"][name] for name in PHASES}
  for value in (*times.values(), *seconds.values()):
    if type(value) not in (int, float) or not 0 <= value < LATEST:
      raise ValueError("a time is not a number of seconds before the year 2100")
  return times | {"seconds": seconds}


def _merge_old_attempts(older: Account, attempts: list[Account]) -> tuple[Account, list[Account]]:
  """Moves all but the newest KEPT attempts into the sum of older attempts."""
  for each in attempts[:-KEPT]:
    seconds = {name: older["seconds"][name] + each["seconds"][name] for name in PHASES}
    older = {"attempts": older["attempts"] + 1, "waited": older["waited"] + each["waited"], "seconds": seconds}
  return older, attempts[-KEPT:]
