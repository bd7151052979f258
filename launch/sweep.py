"""Runs the trials of a sweep as runs of their own, so many at once, and what they lead to; the same command continues.

`vit_jax.sweep` says which trials there are and chooses among them; here they are started by `python -m launch run`, in
processes that may end at any time without harm: what runs goes on, and is watched again by the same command.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from launch import checks, errors, event_log, spec, storage
from launch.errors import LaunchError, UnknownError
from launch.mailbox import Lease
from launch.spec import Run
from launch.watch import BEATS

MODULE = "vit_jax.sweep"
NEEDED = ("vit_jax", "jax")  # here, to list trials and to choose
PASSING = (errors.UNKNOWN, errors.NO_CAPACITY, errors.DENIED, errors.DETACHED)  # of a trial's end: it may go on
LOOPBACK = ("TENSORSTORE_GCS_HTTP_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT")  # of a bucket server on this machine
PAUSE = 60.0  # seconds before a trial that could not be started is tried again
LOOK = 5.0  # seconds between looks at a trial that another process watches
LEAVING = 60.0  # seconds for a watching process to leave its run alone
DONE, FAILED, OPEN = "done", "failed", "open"
DOING = {"run": "started", "adopt": "under way already, and watched again", "down": "done; what is left is deleted"}


@dataclasses.dataclass
class Trial:
  """A run of the sweep, and its process where one watches it, or `watcher`, another one in words.

  Args:
    ready: when it may be looked at or started again.
    billed: it has ended, and machines of it may be there that nobody wanted to keep.
  """

  run: Run
  process: "subprocess.Popen | None" = None
  watcher: str = ""
  ready: float = 0.0
  ended: str = ""
  billed: bool = False


def sweep(run: Run, args, command: "Callable | None" = None) -> int:
  """Runs a sweep to its end; an exit code. LaunchError for what cannot be.

  Args:
    run: its module is vit_jax.sweep; all else of it holds for each trial.
    args: with `parallel`, `retry` and `force`.
    command: of a trial's run the words of the process that watches it; by default `launch run`.
  """
  if run.module != MODULE:
    raise LaunchError(f"sweep: write -- {MODULE} --config=… --workdir=… behind the flags, not {run.module}")
  if args.parallel < 1:
    raise LaunchError(f"--parallel: {args.parallel}; allowed: 1 and more")
  missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
  if missing:
    raise LaunchError(f"sweep: this Python has no {', '.join(missing)}, which list the trials: pip install -e '.[gcs]'")
  failed, retried, billed = [], set(), {}
  print(f"asking {MODULE} for the trials", flush=True)
  for flags in ((), ("--decide",)):
    trials = listed(run, *flags)
    if not flags and not args.force and not all(_state(trial.run) == DONE for trial in trials):
      _check(trials[0].run)
    try:
      failed = _work(trials, args, command or _command, retried)
    except KeyboardInterrupt:
      return _left(run, trials)
    billed |= {trial.run.name: trial for trial in trials if trial.billed or trial.ended == DONE}
  _vit_jax(run, "--collect", "--decide", show=True)
  for trial in failed:
    print(f"{trial.run.name} is {trial.ended}; see python -m launch logs {trial.run.name}, and --retry")
  billed = [trial.run for trial in billed.values() if trial.billed]
  for each in billed:
    down = shlex.join(["python", "-m", "launch", "down", each.name, f"--workdir={each.workdir}"])
    print(f"{each.name} {each.left}; delete it with\n  {down}\nor with the command at the end of {_log(each)}")
  return errors.BILLING if billed else errors.GAVE_UP if failed else errors.DONE


def listed(run: Run, *flags: str) -> list:
  """The trials of a sweep as runs: NAME-t00, …; once these are decided, NAME-f00, … too. LaunchError for none."""
  trials, counts = [], {"t": 0, "f": 0}
  for line in _vit_jax(run, "--render", *flags).splitlines():
    if not line.startswith("python -m vit_jax."):
      print(line)
      continue
    module, *words = shlex.split(line)[2:]
    if module != "vit_jax.train":
      print(f"on test the best setting is measured by\n  {line}")
      continue
    workdir = spec.flag_value(words, "--workdir")
    letter = "f" if workdir.rstrip("/").split("/")[-2] == "final" else "t"
    name = f"{run.name}-{letter}{counts[letter]:02d}"
    counts[letter] += 1
    values = {"name": name, "module": module, "args": tuple(words), "workdir": workdir}
    trials.append(Trial(spec.checked(dataclasses.replace(run, **values))))
  if not trials:
    raise LaunchError(f"sweep: {MODULE} lists no trial that is possible; see above")
  return trials


def _verb(run):
  """What is to be done with a trial: one that is under way is watched, and what is left of one that is done deleted."""
  with contextlib.suppress(UnknownError):
    last = _last_event(run)
    if last.get("event", "end") != "end":
      return "adopt"
    return "down" if _left_over(last) and _has_result(run) else "run"
  return "run"


def _command(run):
  """What does that, by the code that this one has."""
  verb, words = _verb(run), [sys.executable, "-m", "launch"]
  if verb != "run":
    return [*words, verb, run.name, f"--workdir={run.workdir}", *["--yes"] * (verb == "down")]
  # All that a run is, its variables among it, by a file: whoever is on this machine sees the words of a command.
  file = _log(run).with_suffix(".json")
  with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
    opened.write(run.dumps())
  return [*words, "run", run.name, f"--spec={file}", "--force"]


def _check(run):
  """One trial stands for all: the others differ in a few values."""
  if refused := checks.refusal(checks.check(run)):
    raise LaunchError("not started, as of what is refused above", refused)


def _work(trials, args, command, retried):
  """Runs trials until each is done or has failed; those that have failed. `retried` are not tried once more."""
  for trial in trials:
    trial.ended = _state(trial.run)
    if trial.ended == OPEN or (trial.ended == FAILED and args.retry and trial.run.name not in retried):
      trial.ended = ""
      retried.add(trial.run.name)
    if trial.ended == FAILED:
      with contextlib.suppress(UnknownError):
        last = _last_event(trial.run)
        trial.billed = _left_over(last) and not last["state"].get("kept")
  _tell(trials)
  while waiting := [trial for trial in trials if not trial.ended]:
    for trial in waiting:
      if trial.process and trial.process.poll() is not None:
        _settle(trial)
      elif not trial.process and time.monotonic() >= trial.ready:
        _look(trial)
    watched = sum(bool(trial.process or trial.watcher) for trial in waiting)
    for trial in [each for each in waiting if not each.process and not each.ended and time.monotonic() >= each.ready]:
      if watched < args.parallel:
        doing = DOING[_verb(trial.run)]
        with open(_log(trial.run), "ab") as log:
          # A session of its own: Ctrl-C is for us, who let each process leave its run alone.
          trial.process = subprocess.Popen(
            command(trial.run), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
          )
        watched += 1
        print(f"{trial.run.name}: {doing}; the output is in {log.name}", flush=True)
    time.sleep(0.2)
  return [trial for trial in trials if trial.ended == FAILED]


def _look(trial):
  """Sees whether another process watches a trial, as after this one was killed: then it is one of so many at once."""
  before = trial.watcher
  with contextlib.suppress(UnknownError):
    trial.watcher = Lease(storage.storage(trial.run.folder), BEATS * trial.run.limits.poll).holder()
  if trial.watcher:
    trial.ready = time.monotonic() + LOOK
  if trial.watcher and not before:
    print(f"{trial.run.name}: under way, and watched by {trial.watcher}", flush=True)
  if before and not trial.watcher and (state := _state(trial.run)) != OPEN:
    trial.ended = state
    print(f"{trial.run.name}: {state}", flush=True)


def _settle(trial):
  """What became of a trial whose process has ended."""
  code, trial.process = trial.process.returncode, None
  state = _state(trial.run)
  if state == OPEN:
    with contextlib.suppress(UnknownError):
      refused = code in (errors.USAGE, errors.BUG, errors.GAVE_UP) and not _last_event(trial.run)
      if refused or code == errors.BILLING:  # before anything was written down; or what is left is not deleted
        state = FAILED
  if state == OPEN:
    trial.ready = time.monotonic() + PAUSE  # somebody else watches it, or there was no capacity
    print(f"{trial.run.name}: ended with {code}, and goes on later", flush=True)
    return
  trial.ended, trial.billed = state, code == errors.BILLING
  last = _log(trial.run).read_text(errors="replace").strip().splitlines()[-1:]
  why = f" with {code}: {last[0] if last else 'it said nothing'}" if state == FAILED else ""
  print(f"{trial.run.name}: {state}{why}", flush=True)


def _state(run):
  """DONE where its workdir has a result, and nothing is left of its machines; FAILED where its journal ends with a code
  for which it is not begun again."""
  with contextlib.suppress(UnknownError):
    last = _last_event(run)
    if _has_result(run):
      return OPEN if _left_over(last) else DONE
    if last.get("event") == "end" and last.get("code") not in (errors.DONE, *PASSING):
      return FAILED
  return OPEN


def _has_result(run):
  return storage.storage(run.workdir).read("result.json") is not None


def _left_over(last):
  """Whether machines of a run may be there, by the last event of its journal."""
  if last.get("event", "end") != "end":
    return True
  state = last.get("state")
  return isinstance(state, dict) and bool(state.get("unverified"))


def _last_event(run):
  """The last event of the journal in its folder; {} for none. UnknownError."""
  item = storage.storage(run.folder).read(event_log.COPY)
  return (event_log.parsed(item.content) or [{}])[-1] if item else {}


def _left(run, trials):
  """Ctrl-C: lets every process leave its run alone, and says what goes on."""
  going = [trial for trial in trials if trial.process]
  for trial in going:
    trial.process.send_signal(signal.SIGINT)
  deadline = time.monotonic() + LEAVING
  for trial in going:
    with contextlib.suppress(subprocess.TimeoutExpired):
      trial.process.wait(max(0.1, deadline - time.monotonic()))
    name = trial.run.name
    print(f"{name} goes on: python -m launch adopt {name}, or python -m launch down {name}")
  for trial in trials:
    if trial.watcher:
      print(f"{trial.run.name} goes on, watched by {trial.watcher}")
  print(f"the same command continues the sweep {run.name}", flush=True)
  return errors.DETACHED


def _tell(trials):
  counts = {state: sum((trial.ended or OPEN) == state for trial in trials) for state in (DONE, FAILED, OPEN)}
  print(", ".join(f"{count} {state}" for state, count in counts.items() if count), flush=True)


def _log(run):
  """A file for the output of the process that watches a run."""
  folder = event_log.folder()
  folder.mkdir(parents=True, exist_ok=True)
  return folder / f"{run.name}.sweep.log"


def _vit_jax(run, *flags, show=False):
  """What `vit_jax.sweep` prints. LaunchError, in its own words, where it fails."""
  words = [sys.executable, "-m", MODULE, *run.args, *flags]
  result = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  if result.returncode:
    last = re.sub("^error: ", "", (result.stderr.strip().splitlines() or ["it said nothing"])[-1])
    if "STORAGE_EMULATOR_HOST" in os.environ and (unset := [name for name in LOOPBACK if name not in os.environ]):
      last += f" (STORAGE_EMULATOR_HOST is set, but vit_jax reads buckets of another server by {', '.join(unset)} too)"
    raise LaunchError(f"{MODULE}: {last}", result.returncode if result.returncode > 0 else errors.BUG)
  if show:
    print(result.stdout, end="", flush=True)
  return result.stdout
