"""Starts each trial of a sweep as a run of its own, several at once.

`vit_jax.sweep` lists the trials and selects the best setting. This module starts them with `python -m launch run`. Its
processes may end at any time: the runs continue, and the same command watches them again.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import checks, errors, event_log, spec, storage
from .errors import LaunchError, UnknownError
from .mailbox import Lease
from .spec import Run
from .watch import BEATS

MODULE = "vit_jax.sweep"
REQUIRED = ("vit_jax", "jax")  # packages that list the trials and select the best setting
TEMPORARY = (
  errors.UNKNOWN,
  errors.NO_CAPACITY,
  errors.DENIED,
  errors.DETACHED,
)  # exit codes after which a trial continues
EMULATOR = ("TENSORSTORE_GCS_HTTP_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT")  # variables for an emulator of buckets
PAUSE = 60.0  # seconds before the next start of a trial that could not be started
LOOK = 5.0  # seconds between two looks at a trial that another process watches
DETACHING = 60.0  # seconds in which a watcher must end after Ctrl-C
DONE, FAILED, OPEN = "done", "failed", "open"
PROGRESS = {
  "run": "started",
  "adopt": "running already, and watched again",
  "down": "done; its remaining machines are deleted",
}


@dataclasses.dataclass
class TrialRun:
  """A trial of the sweep.

  Args:
    run: its run.
    process: the process that watches the run, or None without one.
    watcher: a description of another process that watches the run, or "".
    ready: the monotonic time at which the run may be looked at or started again.
    ended: DONE, FAILED, or "" before the end.
    billed: the run has ended, and machines that --keep-on-fail does not keep may still exist.
  """

  run: Run
  process: "subprocess.Popen[bytes] | None" = None
  watcher: str = ""
  ready: float = 0.0
  ended: str = ""
  billed: bool = False


def sweep(run: Run, args: argparse.Namespace, command: Callable[[Run], list[str]] | None = None) -> int:
  """Runs a sweep to its end.

  Args:
    run: a run with the module vit_jax.sweep. Its other fields apply to each trial.
    args: the flags, with `parallel`, `retry` and `force`.
    command: returns the argument list of the process that watches the run of a trial; by default `launch run`.

  Returns:
    The exit code.

  Raises:
    LaunchError: the sweep cannot be started.
  """
  if run.module != MODULE:
    raise LaunchError(
      f"sweep: expected the module {MODULE}, got {run.module}. Write -- {MODULE} --config=… --workdir=… after the flags"
    )
  if args.parallel < 1:
    raise LaunchError(f"--parallel: {args.parallel}; allowed: 1 and more")
  missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
  if missing:
    raise LaunchError(
      f"sweep: this Python lacks {', '.join(missing)}, which the list of trials requires: "
      f"{errors.INSTALL.format('gcs')}"
    )
  failed: list[TrialRun] = []
  retried: set[str] = set()
  seen: dict[str, TrialRun] = {}
  print(f"{MODULE} lists the trials", flush=True)
  for flags in ((), ("--decide",)):
    trials = list_trials(run, *flags)
    if not flags and not args.force and not all(get_state(trial.run) == DONE for trial in trials):
      _check_trials(trials[0].run)
    try:
      failed = run_trials(trials, args, command or build_command, retried)
    except KeyboardInterrupt:
      return end_watchers(run, trials)
    seen |= {trial.run.name: trial for trial in trials if trial.billed or trial.ended == DONE}
  _call_sweep(run, "--collect", "--decide", show=True)
  for trial in failed:
    print(f"{trial.run.name}: {trial.ended}. See python -m launch logs {trial.run.name}; --retry starts it again")
  billed = [trial.run for trial in seen.values() if trial.billed]
  for each in billed:
    down = shlex.join(["python", "-m", "launch", "down", each.name, f"--workdir={each.workdir}"])
    print(f"{each.name} {each.left}; delete it with\n  {down}\nor with the command at the end of {_open_log(each)}")
  return errors.BILLING if billed else errors.GAVE_UP if failed else errors.DONE


def list_trials(run: Run, *flags: str) -> list[TrialRun]:
  """Returns the trials of a sweep as runs: NAME-t00, … After the selection, also the final trials NAME-f00, …

  Args:
    run: the run of the sweep.
    flags: further flags for vit_jax.sweep.

  Raises:
    LaunchError: there is no trial.
  """
  trials, counts = [], {"t": 0, "f": 0}
  for line in _call_sweep(run, "--render", *flags).splitlines():
    if not line.startswith("python -m vit_jax."):
      print(line)
      continue
    module, *words = shlex.split(line)[2:]
    if module != "vit_jax.train":
      print(f"this command measures the best setting on the test split:\n  {line}")
      continue
    workdir = spec.find_flag_value(words, "--workdir")
    letter = "f" if workdir.rstrip("/").split("/")[-2] == "final" else "t"
    name = f"{run.name}-{letter}{counts[letter]:02d}"
    counts[letter] += 1
    values: dict[str, Any] = {"name": name, "module": module, "args": tuple(words), "workdir": workdir}
    trials.append(TrialRun(spec.check_and_complete(dataclasses.replace(run, **values))))
  if not trials:
    raise LaunchError(f"sweep: {MODULE} lists no valid trial. Correct the settings that it reports above")
  return trials


def _select_verb(run: Run) -> str:
  """Returns the verb of `launch` for a trial: adopt if it is running, down if it is done but not deleted, else run."""
  with contextlib.suppress(UnknownError):
    last = _read_last_event(run)
    if last.get("event", "end") != "end":
      return "adopt"
    return "down" if _has_machines(last) and _has_result(run) else "run"
  return "run"


def build_command(run: Run) -> list[str]:
  """Returns the argument list of the process that works on a trial."""
  verb, words = _select_verb(run), [sys.executable, "-m", __package__]
  if verb != "run":
    return [*words, verb, run.name, f"--workdir={run.workdir}", *["--yes"] * (verb == "down")]
  # A file describes the run, because other users of this machine see the arguments of a command.
  file = _open_log(run).with_suffix(".json")
  with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
    opened.write(run.dumps())
  return [*words, "run", run.name, f"--spec={file}", "--force"]


def _check_trials(run: Run) -> None:
  """Raises a LaunchError if a trial would be refused. One trial is checked, because trials differ in few values."""
  if refused := checks.get_refusal_code(checks.check_run(run)):
    raise LaunchError("not started, because of the refusals above", refused)


def run_trials(
  trials: list[TrialRun], args: argparse.Namespace, command: Callable[[Run], list[str]], retried: set[str]
) -> list[TrialRun]:
  """Runs trials until each is done or has failed.

  Args:
    trials: the trials. Their fields are updated.
    args: flags of the command: `parallel` and `retry`.
    command: returns the argument list of the process that works on a run.
    retried: names of runs that are not retried again. Retried runs are added.

  Returns:
    The failed trials.
  """
  for trial in trials:
    trial.ended = get_state(trial.run)
    if trial.ended == OPEN or (trial.ended == FAILED and args.retry and trial.run.name not in retried):
      trial.ended = ""
      retried.add(trial.run.name)
    if trial.ended == FAILED:
      with contextlib.suppress(UnknownError):
        last = _read_last_event(trial.run)
        trial.billed = _has_machines(last) and not last["state"].get("kept")
  _print_counts(trials)
  while waiting := [trial for trial in trials if not trial.ended]:
    for trial in waiting:
      if trial.process and trial.process.poll() is not None:
        _record_result(trial)
      elif not trial.process and time.monotonic() >= trial.ready:
        _find_watcher(trial)
    watched = sum(bool(trial.process or trial.watcher) for trial in waiting)
    for trial in [each for each in waiting if not each.process and not each.ended and time.monotonic() >= each.ready]:
      if watched < args.parallel:
        progress = PROGRESS[_select_verb(trial.run)]
        with open(_open_log(trial.run), "ab") as log:
          # In its own session, Ctrl-C does not reach the process. `end_watchers` ends it.
          trial.process = subprocess.Popen(
            command(trial.run), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
          )
        watched += 1
        print(f"{trial.run.name}: {progress}; the output is in {log.name}", flush=True)
    time.sleep(0.2)
  return [trial for trial in trials if trial.ended == FAILED]


def _find_watcher(trial: TrialRun) -> None:
  """Looks for another watcher of a trial, for example of an earlier sweep that was killed. It counts for --parallel."""
  before = trial.watcher
  with contextlib.suppress(UnknownError):
    trial.watcher = Lease(storage.open_storage(trial.run.folder), BEATS * trial.run.limits.poll).describe_holder()
  if trial.watcher:
    trial.ready = time.monotonic() + LOOK
  if trial.watcher and not before:
    print(f"{trial.run.name}: running, and watched by {trial.watcher}", flush=True)
  if before and not trial.watcher and (state := get_state(trial.run)) != OPEN:
    trial.ended = state
    print(f"{trial.run.name}: {state}", flush=True)


def _record_result(trial: TrialRun) -> None:
  """Records and prints the result of a trial after the end of its process."""
  assert trial.process
  code, trial.process = trial.process.returncode, None
  state = get_state(trial.run)
  if state == OPEN:
    with contextlib.suppress(UnknownError):
      refused = code in (errors.USAGE, errors.BUG, errors.GAVE_UP) and not _read_last_event(trial.run)
      if refused or code == errors.BILLING:  # refused before the first event, or machines are left
        state = FAILED
  if state == OPEN:
    trial.ready = time.monotonic() + PAUSE  # another process watches it, or there was no capacity
    print(f"{trial.run.name}: the watcher ended with {code}; next try in {PAUSE:.0f} s", flush=True)
    return
  trial.ended, trial.billed = state, code == errors.BILLING
  last = _open_log(trial.run).read_text(errors="replace").strip().splitlines()[-1:]
  why = f" with {code}: {last[0] if last else 'no output'}" if state == FAILED else ""
  print(f"{trial.run.name}: {state}{why}", flush=True)


def get_state(run: Run) -> str:
  """Returns DONE, FAILED or OPEN.

  A run is DONE if its workdir has a result and its machines are deleted. It is FAILED if its event log ends with an
  exit code after which it does not continue.
  """
  with contextlib.suppress(UnknownError):
    last = _read_last_event(run)
    if _has_result(run):
      return OPEN if _has_machines(last) else DONE
    if last.get("event") == "end" and last.get("code") not in (errors.DONE, *TEMPORARY):
      return FAILED
  return OPEN


def _has_result(run: Run) -> bool:
  return storage.open_storage(run.workdir).read("result.json") is not None


def _has_machines(last: Mapping[str, object]) -> bool:
  """Returns whether machines of a run may exist, by the last event of its event log."""
  if last.get("event", "end") != "end":
    return True
  state = last.get("state")
  return isinstance(state, dict) and bool(state.get("unverified"))


def _read_last_event(run: Run) -> dict[str, Any]:
  """Returns the last event in the directory of a run, or {}. Raises UnknownError if the directory does not answer."""
  item = storage.open_storage(run.folder).read(event_log.COPY)
  return (event_log.parse_events(item.content) or [{}])[-1] if item else {}


def end_watchers(run: Run, trials: list[TrialRun]) -> int:
  """Ends the watchers after Ctrl-C, and prints which runs continue.

  Args:
    run: the run of the sweep itself.
    trials: the trials of the sweep.

  Returns:
    The exit code DETACHED.
  """
  going = [(trial, trial.process) for trial in trials if trial.process]
  for _, process in going:
    process.send_signal(signal.SIGINT)
  deadline = time.monotonic() + DETACHING
  for trial, process in going:
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(max(0.1, deadline - time.monotonic()))
    name = trial.run.name
    print(f"{name} continues. Watch it: python -m launch adopt {name}. Delete it: python -m launch down {name}")
  for trial in trials:
    if trial.watcher:
      print(f"{trial.run.name} continues, watched by {trial.watcher}")
  print(f"the same command continues the sweep {run.name}", flush=True)
  return errors.DETACHED


def _print_counts(trials: Sequence[TrialRun]) -> None:
  counts = {state: sum((trial.ended or OPEN) == state for trial in trials) for state in (DONE, FAILED, OPEN)}
  print(", ".join(f"{count} {state}" for state, count in counts.items() if count), flush=True)


def _open_log(run: Run) -> pathlib.Path:
  """Returns the file for the output of the process that watches a run."""
  folder = event_log.get_log_directory()
  folder.mkdir(parents=True, exist_ok=True)
  return folder / f"{run.name}.sweep.log"


def _call_sweep(run: Run, *flags: str, show: bool = False) -> str:
  """Returns the output of `vit_jax.sweep`. Raises a LaunchError with its last line if it fails."""
  words = [sys.executable, "-m", MODULE, *run.args, *flags]
  result = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  if result.returncode:
    last = re.sub("^error: ", "", (result.stderr.strip().splitlines() or ["no output"])[-1])
    if "STORAGE_EMULATOR_HOST" in os.environ and (unset := [name for name in EMULATOR if name not in os.environ]):
      last += (
        f" (STORAGE_EMULATOR_HOST is set, but vit_jax also needs {', '.join(unset)} to read buckets of an emulator)"
      )
    raise LaunchError(f"{MODULE}: {last}", result.returncode if result.returncode > 0 else errors.BUG)
  if show:
    print(result.stdout, end="", flush=True)
  return result.stdout
