"""The output of the programs of a run, and how its time was spent.

The names of times are those of ml-goodput-measurement's BadputType
(github.com/AI-Hypercomputer/ml-goodput-measurement), so that runs can be compared. Other times have plain names.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import commands, errors, mailbox
from .errors import LaunchError
from .event_log import Event, EventLog
from .spec import Run
from .storage import open_storage


def logs(args: argparse.Namespace) -> int:
  """Prints the logs of an attempt, each line with its worker number. --follow continues until the run ends.

  Pieces are printed in the order in which they were written: lines of several workers are in order to within
  `limits.beat`.
  """
  event_log = commands.open_event_log(args.name, args.workdir)
  run = event_log.run
  attempt = args.attempt or event_log.state.attempt
  if attempt not in (attempts := event_log.list_attempts()):
    if not attempts:
      raise LaunchError(f"{run.name}: there is no attempt yet")
    raise LaunchError(f"--attempt: {attempt}; allowed: {', '.join(map(str, attempts))}")
  workers = _parse_workers(args.worker, run.workers)
  files = mailbox.Mailbox(open_storage(run.folder), attempt)
  printed, torn = dict.fromkeys(workers, 0), dict.fromkeys(workers, b"")
  while True:
    ended = args.follow and _has_ended(commands.open_event_log(args.name, args.workdir), attempt)
    batch = []
    for worker in workers:
      names = files.list_pieces(worker)
      for name in names[printed[worker] :]:
        item = files.storage.read(name)
        if item:
          batch.append((-item.age, worker, item.content))
      printed[worker] = len(names)
    for _, worker, content in sorted(batch, key=lambda each: each[0]):
      *lines, torn[worker] = (torn[worker] + content).split(b"\n")
      for line in lines:
        _print_log_line(worker, line, args.grep)
    if not args.follow or ended:
      break
    time.sleep(min(run.limits.beat, 5.0))
  for worker, line in torn.items():
    if line:
      _print_log_line(worker, line, args.grep)
  if not any(printed.values()):
    advice = f"python -m launch status {run.name} shows its state"
    print(f"{run.get_attempt_name(attempt)}: no output yet; {advice}", file=sys.stderr)
  return errors.DONE


def _parse_workers(text: str, count: int) -> Sequence[int]:
  if text == "all":
    return range(count)
  if not re.fullmatch(r"\d{1,4}", text) or int(text) >= count:
    raise LaunchError(f"--worker: {text[:20]!r}; allowed: all, 0 to {count - 1}")
  return [int(text)]


def _has_ended(event_log: EventLog, attempt: int) -> bool:
  return not event_log.open or event_log.state.attempt > attempt


def _print_log_line(worker: int, line: bytes, pattern: str) -> None:
  text = line.decode(errors="replace")
  if pattern in text:
    # Control characters are for the program's terminal, not for this one.
    print(f"[w{worker:02d}] {errors.replace_unprintable(text.rstrip(chr(13)))}")


QUEUE = "queueing"  # wait for capacity before the first attempt
TPU_SETUP, SETUP = "tpu_initialization", "setup"  # from machines, TPUs or others, to the first program
BETWEEN = "infrastructure_recovery_from_disruption"  # the same for further attempts, and time lost by a kill
CLOSING = "deletion"  # after the last program has ended
STEPS, LOST, OTHER = "steps", "wasted_progress_from_disruption", "other"
# The phases of vit_jax/training/goodput.py in goodput.json, with their names here.
PHASES = {
  "start": "training_prep",
  "compile": "program_startup",
  "restore": "unproductive_checkpoint_restore_time",
  "step": STEPS,
  "data": "data_loading_sync",
  "evaluation": "custom_badput_events",
  "save": "unproductive_checkpoint_save_time",
  "other": OTHER,
}
_LOST = ("preempted", "failed", "expired", "capacity", "deleting")  # events that end an attempt


def compute_goodput(run: Run, events: Sequence[Event]) -> dict[str, Any]:
  """Returns the run, its number of attempts, `total` and `compute_goodput`, and {name: seconds} that add up to `total`.

  Args:
    run: the run.
    events: events of the run. `total` is the time from the first event to the last event, or to now.

  Raises:
    LaunchError: events are missing, or a file of the workdir is damaged.
    UnknownError: the workdir does not answer.
  """
  if not events:
    raise LaunchError(f"{run.name}: its event log is empty; see python -m launch ls")
  start, ended = events[0]["time"], events[-1]["event"] == "end"
  end = max(start, events[-1]["time"] if ended else time.time())
  older, programs, lost = _read_account(run, start, end)
  seconds = dict(older)
  for _, _, each in programs:
    seconds = {name: seconds.get(name, 0.0) + each.get(name, 0.0) for name in {**seconds, **each}}
  seconds[STEPS] = max(0.0, seconds.get(STEPS, 0.0) - lost)
  seconds[LOST] = lost
  if not programs:  # no program wrote goodput.json
    seconds = _sum_by_events(events, start, end)
  else:
    ready = next((event["time"] for event in events if event["event"] == "ready"), start)
    program_start = programs[0][0] if not older else min(programs[0][0], ready)
    queued = min(max(ready, start), program_start)
    closing = end - programs[-1][1] if ended else 0.0
    seconds |= {QUEUE: queued - start, TPU_SETUP if run.tpu else SETUP: program_start - queued, CLOSING: closing}
    rest = end - start - sum(seconds.values())
    if rest < 0:  # programs overlap if clocks differ
      seconds = {name: value * (end - start) / (end - start - rest) for name, value in seconds.items()}
    seconds[BETWEEN] = max(0.0, rest)
  return {
    "run": run.name,
    "attempts": len({event["attempt"] for event in events if event["attempt"]}),
    "total": end - start,
    "goodput": seconds.get(STEPS, 0.0) / (end - start) if end > start else 0.0,
    "seconds": {name: value for name, value in seconds.items() if value > 0},
  }


def format_goodput(table: Mapping[str, Any]) -> str:
  """Formats the table for the terminal."""
  attempts = f" in {table['attempts']} attempts" if table["attempts"] > 1 else ""
  rows = [f"{table['run']}: goodput {table['goodput']:.2%} of {_format_duration(table['total'])}{attempts}"]
  for name, seconds in sorted(table["seconds"].items(), key=lambda row: -row[1]):
    rows.append(f"  {name:<44}{_format_duration(seconds):>12}{seconds / max(table['total'], 1e-9):>9.1%}")
  return "\n".join(rows)


def _format_duration(seconds: float) -> str:
  seconds = round(seconds)
  return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _sum_by_events(events: Sequence[Event], start: float, end: float) -> dict[str, float]:
  """Returns the seconds from the event log alone. The time from `ready` to the end of an attempt counts as OTHER."""
  seconds, phase, since = {QUEUE: 0.0, BETWEEN: 0.0, OTHER: 0.0, CLOSING: 0.0}, QUEUE, start
  for event in events:
    at = min(max(since, event["time"]), end)  # another machine's clock may be behind
    following = OTHER if event["event"] == "ready" else BETWEEN if event["event"] in _LOST else phase
    seconds[phase] += at - since
    phase, since = following, at
  # After the last attempt only its deletion remains.
  seconds[CLOSING if phase == BETWEEN and events[-1]["event"] == "end" else phase] += end - since
  return seconds


def _read_account(
  run: Run, start: float, end: float
) -> tuple[dict[str, float], list[tuple[float, float, dict[str, float]]], float]:
  """Reads the times of the programs between `start` and `end`, because the workdir may be older than the run.

  Returns:
    ({name: seconds} of old programs, [(start, end, {name: seconds}) of each program], seconds of lost steps).
  """
  files = open_storage(run.workdir)
  account, result = files.read("goodput.json"), files.read("result.json")
  if account is None:
    return {}, [], 0.0
  try:
    values = json.loads(account.content)
    programs = []
    for each in values["attempts"]:
      seconds = _parse_times(each["seconds"])
      program_start, length = float(each["began"]), sum(seconds.values())
      inside = min(program_start + length, end) - max(program_start, start)
      if inside > 0:
        share = inside / length
        part = {name: value * share for name, value in seconds.items()}
        programs.append((max(program_start, start), min(program_start + length, end), part))
    older = _parse_times(values["older"]["seconds"]) if programs and values["older"]["attempts"] else {}
    lost = _parse_time(json.loads(result.content)["goodput"][LOST]) if result else 0.0
  except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
    raise LaunchError(
      f"{run.workdir}: goodput.json or result.json is not in the format of vit_jax ({error!r})"
    ) from error
  steps = older.get(STEPS, 0.0) + sum(part.get(STEPS, 0.0) for _, _, part in programs)
  return older, sorted(programs, key=lambda program: program[0]), min(lost, steps)


def _parse_times(seconds: Mapping[str, object]) -> dict[str, float]:
  """Returns seconds with the names of PHASES. Raises ValueError for a value that is not a time."""
  return {PHASES[name]: each for name, value in seconds.items() if (each := _parse_time(value))}


def _parse_time(value: Any) -> float:
  if not 0 <= value < 1e11:  # seconds of a calendar
    raise ValueError("a time is not a number of seconds")
  return float(value)
