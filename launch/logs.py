"""What a run has left: the output of its programs, and where its time went.

Names of times are those of ml-goodput-measurement's BadputType (github.com/AI-Hypercomputer/ml-goodput-measurement), so
that runs can be compared. What it has no name for has a plain word.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence

from launch import commands, errors, mailbox
from launch.errors import LaunchError
from launch.spec import Run
from launch.storage import storage


def logs(args: argparse.Namespace) -> int:
  """Prints the logs of an attempt, each line with its worker's number; with --follow until the run has ended.

  Pieces are printed in the order in which they were written, so that lines of several workers are in order of time to
  within `limits.beat`.
  """
  book = commands.opened(args.name, args.workdir)
  run = book.run
  attempt = args.attempt or book.state.attempt
  if attempt not in (attempts := book.attempts()):
    if not attempts:
      raise LaunchError(f"{run.name}: there was no attempt yet")
    raise LaunchError(f"--attempt: {attempt}; {run.name} has had {', '.join(map(str, attempts))}")
  workers = _workers(args.worker, run.workers)
  files = mailbox.Mailbox(storage(run.folder), attempt)
  printed, torn = dict.fromkeys(workers, 0), dict.fromkeys(workers, b"")
  while True:
    ended = args.follow and _ended(commands.opened(args.name, args.workdir), attempt)
    batch = []
    for worker in workers:
      names = files.pieces(worker)
      for name in names[printed[worker] :]:
        item = files.storage.read(name)
        if item:
          batch.append((-item.age, worker, item.content))
      printed[worker] = len(names)
    for _, worker, content in sorted(batch, key=lambda each: each[0]):
      *lines, torn[worker] = (torn[worker] + content).split(b"\n")
      for line in lines:
        _print(worker, line, args.grep)
    if not args.follow or ended:
      break
    time.sleep(min(run.limits.beat, 5.0))
  for worker, line in torn.items():
    if line:
      _print(worker, line, args.grep)
  if not any(printed.values()):
    advice = f"python -m launch status {run.name} says how it is"
    print(f"{run.attempt(attempt)}: nothing was printed yet; {advice}", file=sys.stderr)
  return errors.DONE


def _workers(text, count):
  if text == "all":
    return range(count)
  if not re.fullmatch(r"\d{1,4}", text) or int(text) >= count:
    raise LaunchError(f"--worker: {text[:20]!r}; allowed: all, 0 to {count - 1}")
  return [int(text)]


def _ended(book, attempt):
  return not book.open or book.state.attempt > attempt


def _print(worker, line, pattern):
  text = line.decode(errors="replace")
  if pattern in text:
    # What moves the cursor or changes colours is the program's, not this terminal's.
    print(f"[w{worker:02d}] {errors.printable(text.rstrip(chr(13)))}")


QUEUE = "queueing"  # for capacity, of the first attempt
TPU_SETUP, SETUP = "tpu_initialization", "setup"  # of its machines, TPUs or others, until the first program runs
BETWEEN = "infrastructure_recovery_from_disruption"  # the same of all further ones, and what a kill has cut off
CLOSING = "deletion"  # after the last program has ended
STEPS, LOST, OTHER = "steps", "wasted_progress_from_disruption", "other"
# What vit_jax/clock.py calls its phases in goodput.json, and the names of these.
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
_LOST = ("preempted", "failed", "expired", "capacity", "deleting")  # events with which an attempt ends


def goodput(run: Run, events: Sequence[dict]) -> dict:
  """{name: seconds} that add up to `total`, the time from the first event to the last, or now; and `goodput`.

  Args:
    events: of the journal, each with its time, event and attempt. LaunchError for none, UnknownError where the workdir
      does not answer.
  """
  if not events:
    raise LaunchError(f"{run.name}: its journal is empty; see python -m launch ls")
  start, ended = events[0]["time"], events[-1]["event"] == "end"
  end = max(start, events[-1]["time"] if ended else time.time())
  older, programs, lost = _account(run, start, end)
  seconds = dict(older)
  for _, _, each in programs:
    seconds = {name: seconds.get(name, 0.0) + each.get(name, 0.0) for name in {**seconds, **each}}
  seconds[STEPS] = max(0.0, seconds.get(STEPS, 0.0) - lost)
  seconds[LOST] = lost
  if not programs:  # none that keeps an account
    seconds = _by_events(events, start, end)
  else:
    ready = next((event["time"] for event in events if event["event"] == "ready"), start)
    began = programs[0][0] if not older else min(programs[0][0], ready)
    queued = min(max(ready, start), began)
    closing = end - programs[-1][1] if ended else 0.0
    seconds |= {QUEUE: queued - start, TPU_SETUP if run.tpu else SETUP: began - queued, CLOSING: closing}
    rest = end - start - sum(seconds.values())
    if rest < 0:  # programs that overlap, as of clocks that differ
      seconds = {name: value * (end - start) / (end - start - rest) for name, value in seconds.items()}
    seconds[BETWEEN] = max(0.0, rest)
  return {
    "run": run.name,
    "attempts": len({event["attempt"] for event in events if event["attempt"]}),
    "total": end - start,
    "goodput": seconds.get(STEPS, 0.0) / (end - start) if end > start else 0.0,
    "seconds": {name: value for name, value in seconds.items() if value > 0},
  }


def text(table: dict) -> str:
  """The table for the screen."""
  attempts = f" in {table['attempts']} attempts" if table["attempts"] > 1 else ""
  rows = [f"{table['run']}: goodput {table['goodput']:.2%} of {_duration(table['total'])}{attempts}"]
  for name, seconds in sorted(table["seconds"].items(), key=lambda row: -row[1]):
    rows.append(f"  {name:<44}{_duration(seconds):>12}{seconds / max(table['total'], 1e-9):>9.1%}")
  return "\n".join(rows)


def _duration(seconds):
  seconds = round(seconds)
  return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _by_events(events, start, end):
  """What the journal alone says: what is between `ready` and the end of an attempt, nobody has an account of."""
  seconds, phase, since = {QUEUE: 0.0, BETWEEN: 0.0, OTHER: 0.0, CLOSING: 0.0}, QUEUE, start
  for event in events:
    at = min(max(since, event["time"]), end)  # another machine's clock may be behind
    following = OTHER if event["event"] == "ready" else BETWEEN if event["event"] in _LOST else phase
    seconds[phase] += at - since
    phase, since = following, at
  # After the last attempt nothing was waited for but its deletion.
  seconds[CLOSING if phase == BETWEEN and events[-1]["event"] == "end" else phase] += end - since
  return seconds


def _account(run, start, end):
  """({name: seconds} of old programs, [(began, ended, {name: seconds}) of each], seconds of steps that were lost).

  Of what they leave in the workdir the part between start and end: a run may have been trained before by other means.
  """
  files = storage(run.workdir)
  account, result = files.read("goodput.json"), files.read("result.json")
  if account is None:
    return {}, [], 0.0
  try:
    values = json.loads(account.content)
    programs = []
    for each in values["attempts"]:
      seconds = _times(each["seconds"])
      began, whole = float(each["began"]), sum(seconds.values())
      inside = min(began + whole, end) - max(began, start)
      if inside > 0:
        share = inside / whole
        part = {name: value * share for name, value in seconds.items()}
        programs.append((max(began, start), min(began + whole, end), part))
    older = _times(values["older"]["seconds"]) if programs and values["older"]["attempts"] else {}
    lost = _time(json.loads(result.content)["goodput"][LOST]) if result else 0.0
  except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
    raise LaunchError(f"{run.workdir}: goodput.json or result.json is none of vit_jax's ({error!r})") from error
  steps = older.get(STEPS, 0.0) + sum(part.get(STEPS, 0.0) for _, _, part in programs)
  return older, sorted(programs, key=lambda program: program[0]), min(lost, steps)


def _times(seconds):
  """Seconds under our names. ValueError for what is no time."""
  return {PHASES[name]: each for name, value in seconds.items() if (each := _time(value))}


def _time(value):
  if not 0 <= value < 1e11:  # more than a calendar has
    raise ValueError("a time is not a number of seconds")
  return float(value)
