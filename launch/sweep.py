"""Runs the trials of a sweep as runs of their own, so many at once, and what they lead to; the same command continues.

`vit_jax.sweep` says which trials there are and chooses among them; here they are started by `python -m launch run`, in
processes that may end at any time without harm: what runs goes on, and is watched again by the same command.
"""

import contextlib
import dataclasses
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from launch import check, errors, journal, limits, spec, storage
from launch.errors import LaunchError, UnknownError
from launch.spec import Run

MODULE = "vit_jax.sweep"
NEEDED = ("vit_jax", "jax")  # here, to list trials and to choose
PASSING = (errors.UNKNOWN, errors.NO_CAPACITY, errors.DENIED, errors.DETACHED)  # of a trial's end: it may go on
PAUSE = 60.0  # seconds before a trial that somebody else watches is looked at again
LEAVING = 60.0  # seconds for a watching process to leave its run alone
DONE, FAILED, OPEN = "done", "failed", "open"


@dataclasses.dataclass
class Trial:
  """A run of the sweep, and its process where one watches it. `ready` is when it may be started again."""

  run: Run
  process: "subprocess.Popen | None" = None
  ready: float = 0.0
  ended: str = ""


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
  failed, retried = [], set()
  for flags in ((), ("--decide",)):
    trials = listed(run, *flags)
    if not flags and not args.force and not all(_state(trial.run) == DONE for trial in trials):
      _check(trials[0].run)
    try:
      failed = _work(trials, args, command or _command, retried)
    except KeyboardInterrupt:
      return _left(run, trials)
  _vit_jax(run, "--collect", "--decide", show=True)
  for trial in failed:
    print(f"{trial.run.name} is {trial.ended}; see launch logs {trial.run.name}, and --retry")
  return errors.GAVE_UP if failed else errors.DONE


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
    workdir = spec.workdir_of(words)
    letter = "f" if workdir.rstrip("/").split("/")[-2] == "final" else "t"
    name = f"{run.name}-{letter}{counts[letter]:02d}"
    counts[letter] += 1
    values = {"name": name, "module": module, "args": tuple(words), "workdir": workdir}
    trials.append(Trial(spec.checked(dataclasses.replace(run, **values))))
  if not trials:
    raise LaunchError(f"sweep: {MODULE} lists no trial that is possible; see above")
  return trials


def flags_of(run: Run) -> list:
  """The flags of `launch run` that ask for a run."""
  default = {field.name: field.default for field in dataclasses.fields(run)}
  words = [f"--backend={run.backend}", f"--owner={run.owner}"]
  if run.capacity != default["capacity"]:
    words.append(f"--{run.capacity}")
  for key in ("zones", "hosts"):
    words += [f"--{key}={','.join(getattr(run, key))}"] * bool(getattr(run, key))
  for flag, values in (("--env", run.env), ("--secret", run.secrets)):
    words += [f"{flag}={key}={value}" for key, value in values.items()]
  usual = limits.Limits()
  for field in dataclasses.fields(usual):
    value = getattr(run.limits, field.name)
    words += [f"--limit={field.name}={value:.3f}s"] * (value != getattr(usual, field.name))
  apart = {"name", "backend", "module", "args", "workdir", "owner", "capacity", "zones", "hosts", "env", "secrets"}
  for key in default.keys() - apart - {"limits"}:
    value, flag = getattr(run, key), f"--{key.replace('_', '-')}"
    if value != default[key]:
      words.append(flag if value is True else f"{flag}={value}")
  return sorted(words)


def _command(run):
  """What watches a run: it goes on with one that is under way, by the code that this one has."""
  last, words = _journal(run), [sys.executable, "-m", "launch"]
  if last and last.get("event") != "end":
    return [*words, "adopt", run.name, f"--workdir={run.workdir}"]
  return [*words, "run", run.name, *flags_of(run), "--force", "--", run.module, *run.args]


def _check(run):
  """One trial stands for all: the others differ in a few values."""
  findings = check.check(run)
  check.show(findings)
  if any(finding.refuses for finding in findings):
    raise LaunchError("not started, as of what is said above; --force starts the sweep all the same")


def _work(trials, args, command, retried):
  """Runs trials until each is done or has failed; those that have failed. `retried` are not tried once more."""
  for trial in trials:
    trial.ended = _state(trial.run)
    if trial.ended == OPEN or (trial.ended == FAILED and args.retry and trial.run.name not in retried):
      trial.ended = ""
      retried.add(trial.run.name)
  _tell(trials)
  while waiting := [trial for trial in trials if not trial.ended]:
    for trial in waiting:
      if trial.process and trial.process.poll() is not None:
        _settle(trial)
    watched = sum(trial.process is not None for trial in trials)
    for trial in [each for each in waiting if not each.process and not each.ended and time.monotonic() >= each.ready]:
      if watched < args.parallel:
        with open(_log(trial.run), "ab") as log:
          # A session of its own: Ctrl-C is for us, who let each process leave its run alone.
          trial.process = subprocess.Popen(
            command(trial.run), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
          )
        watched += 1
        print(f"{trial.run.name}: started; its output is in {log.name}", flush=True)
    time.sleep(0.2)
  return [trial for trial in trials if trial.ended == FAILED]


def _settle(trial):
  """What became of a trial whose process has ended."""
  code, trial.process = trial.process.returncode, None
  state = _state(trial.run)
  if state == OPEN and code in (errors.USAGE, errors.BUG, errors.GAVE_UP) and _journal(trial.run) is None:
    state = FAILED  # refused before anything was written down
  if state == OPEN:
    trial.ready = time.monotonic() + PAUSE  # somebody else watches it, or there was no capacity
    print(f"{trial.run.name}: ended with {code}, and goes on later", flush=True)
    return
  trial.ended = state
  last = _log(trial.run).read_text(errors="replace").strip().splitlines()[-1:]
  print(f"{trial.run.name}: {state}{f' with {code}: {last[0]}' if state == FAILED and last else ''}", flush=True)


def _state(run):
  """DONE where its workdir has a result; FAILED where its journal ends with a code for which it is not begun again."""
  with contextlib.suppress(UnknownError):
    if storage.storage(run.workdir).read("result.json") is not None:
      return DONE
    last = _journal(run)
    if last and last.get("event") == "end" and last.get("code") not in (errors.DONE, *PASSING):
      return FAILED
  return OPEN


def _journal(run):
  """The last event of the journal in its folder; None for none."""
  with contextlib.suppress(UnknownError, ValueError):
    item = storage.storage(run.folder).read(journal.COPY)
    lines = item.content.splitlines() if item else []
    return json.loads(lines[-1]) if lines else None
  return None


def _left(run, trials):
  """Ctrl-C: lets every process leave its run alone, and says what goes on."""
  going = [trial for trial in trials if trial.process]
  for trial in going:
    trial.process.send_signal(signal.SIGINT)
  deadline = time.monotonic() + LEAVING
  for trial in going:
    with contextlib.suppress(subprocess.TimeoutExpired):
      trial.process.wait(max(0.1, deadline - time.monotonic()))
    print(f"{trial.run.name} goes on: python -m launch adopt {trial.run.name}, or launch down {trial.run.name}")
  print(f"the same command continues the sweep {run.name}", flush=True)
  return errors.DETACHED


def _tell(trials):
  counts = {state: sum((trial.ended or OPEN) == state for trial in trials) for state in (DONE, FAILED, OPEN)}
  print(", ".join(f"{count} {state}" for state, count in counts.items() if count), flush=True)


def _log(run):
  """A file for the output of the process that watches a run."""
  folder = journal.folder()
  folder.mkdir(parents=True, exist_ok=True)
  return folder / f"{run.name}.sweep.log"


def _vit_jax(run, *flags, show=False):
  """What `vit_jax.sweep` prints. LaunchError, in its own words, where it fails."""
  words = [sys.executable, "-m", MODULE, *run.args, *flags]
  result = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  if result.returncode:
    last = re.sub("^error: ", "", (result.stderr.strip().splitlines() or ["it said nothing"])[-1])
    raise LaunchError(f"{MODULE}: {last}", result.returncode if result.returncode > 0 else errors.BUG)
  if show:
    print(result.stdout, end="", flush=True)
  return result.stdout
