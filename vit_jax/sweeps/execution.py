"""Trials are run until none is left: as processes, whose exit codes and result files say what became of each."""

import contextlib
import math
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence

from vit_jax import extensions, files, runtime
from vit_jax.runtime import say
from vit_jax.schema import ConfigError, amount
from vit_jax.sweeps import pool
from vit_jax.sweeps.record import Record
from vit_jax.sweeps.screen import Screen
from vit_jax.sweeps.trials import Trial

ATTEMPTS = 3  # at a trial that a signal ends: out of memory, or somebody's kill
# Exit codes after which the same command continues a trial; 143 is a SIGTERM before it has begun.
CONTINUED = (runtime.EXIT_PREEMPTED, runtime.EXIT_HANG, runtime.EXIT_INTERRUPTED, runtime.EXIT_PEER, 143)


def train_command(file: str, trial: Trial) -> list[str]:
  """The command that trains a trial of a config file, or continues it."""
  overrides = [f"--config.{key}={text}" for key, text in trial.flags.items()]
  command = ["python", "-m", "vit_jax.train", f"--config={file}", f"--workdir={trial.workdir}", "--no-report"]
  return [*command, *extensions.import_flags(), *overrides]


def evaluate_command(trial: Trial) -> list[str]:
  """The command that measures a finished trial on test, into a workdir of its own."""
  trained = trial.workdir.parent.parent / "trials" / trial.name
  command = ["python", "-m", "vit_jax.evaluate", f"--workdir={trained}", "--split=test", f"--report={trial.workdir}"]
  return [*command, *extensions.import_flags()]


def run(
  record: Record,
  trials: Sequence[Trial],
  groups: Sequence[pool.Group],
  command_of: Callable[[Trial], list[str]],
  poll: Callable[[], None],
) -> None:
  """Runs the waiting trials, one on each group of devices at a time, until all have ended.

  The record is written after each change. Where `poll` raises, the trials are asked to save and stop.

  Args:
    record: where changes are written.
    trials: those to run; others of the record stay as they are.
    groups: devices of one trial each.
    command_of: the command of a trial; its first word is replaced by this Python.
    poll: raises `runtime.Stop` where the sweep shall stop; it is asked several times a second.
  """
  by_name = {trial.name: trial for trial in trials}
  screen = Screen(trials, record.study.sweep.decide, record.log)
  with contextlib.closing(pool.Pool(groups)) as processes, screen, _stopping(processes):
    while any(trial.status in ("waiting", "running") for trial in trials):
      poll()
      for name, code in processes.finished().items():
        settle(by_name[name], code, record.log(by_name[name]))
        record.keep_log(by_name[name])
        record.write()
        screen.changed(by_name[name])
      waiting = [trial for trial in trials if trial.status == "waiting"]
      elsewhere = sum(held(trial, screen) for trial in waiting)  # on devices of ours
      for trial in waiting:
        if trial.error or len(processes.names) + elsewhere >= len(groups):
          continue
        if take_result(trial):
          record.write()
        else:
          trial.status, trial.attempts = "running", trial.attempts + 1
          processes.start(trial.name, [sys.executable, *command_of(trial)[1:]], record.log(trial))
        screen.changed(trial)
      screen.refresh()
      time.sleep(0.2)


def held(trial: Trial, screen: Screen) -> bool:
  """Whether another process trains it now: one of a killed sweep that is saving, or one that --render was used for.

  The trial's error names it for as long.
  """
  holder = runtime.holder(trial.workdir)
  before, trial.error = trial.error, f"held by process {holder}" if holder else ""
  if holder and trial.error != before:
    screen.changed(trial)
  return holder is not None


@contextlib.contextmanager
def _stopping(processes: pool.Pool):
  """Says what a stop waits for."""
  try:
    yield
  except runtime.Stop:
    say(f"stopping: {amount(len(processes.names), 'trial')} saving state, which may take up to {pool.PATIENCE:.0f} s")
    raise


def take_result(trial: Trial) -> bool:
  """Takes over the result of a trial, if its workdir has one; fails it if the result is another config's."""
  trained = files.read_json(trial.workdir / "result.json")
  tested = files.read_json(trial.workdir / "figures.json")  # of `evaluate_command`, which trains nothing
  if trained is None and tested is None:
    return False
  own = trial.workdir / "config.json"
  if trained is not None and not (own.is_file() and own.read_bytes() == trial.config.encode()):
    trial.fail(f"{trial.workdir} holds a run with another config; was the file edited?")
    return True
  values = tested.get("figures") if trained is None else trained
  if not isinstance(values, dict):
    raise ConfigError(f"{trial.workdir / 'figures.json'} holds no figures; mend or remove it")
  trial.figures = {key: value for key, value in values.items() if isinstance(value, float | int)}
  if wrong := [key for key, value in trial.figures.items() if not math.isfinite(value)]:
    trial.fail(f"its result is not finite: {wrong[0]} is {trial.figures[wrong[0]]}", "diverged")
    return True
  trial.status, trial.error, trial.seconds = "done", "", trial.figures.get("train_seconds", 0.0)
  return True


def settle(trial: Trial, code: int, log: pathlib.Path) -> None:
  """Sets the status of a trial whose process has ended with this exit code (below 0: by that signal).

  One that was asked to stop or stood still, that a signal ended, or that met another process in its workdir waits to be
  continued from its last checkpoint, `ATTEMPTS` times at most. That process may have left by now: so its error counts,
  not its lock.
  """
  trial.fail(last_error(log))
  stopped = code < 0 or code in CONTINUED or runtime.IN_USE in trial.error
  if code == 0:
    if not take_result(trial):
      trial.error = f"finished without a result; see {log}"
  elif code == runtime.EXIT_NOT_FINITE:
    trial.status = "diverged"
  elif stopped and trial.attempts < ATTEMPTS:
    trial.status = "waiting"
  elif code < 0:
    trial.error = (
      f"ended {amount(trial.attempts, 'time')} by signal {signal.Signals(-code).name}; out of memory? See {log}"
    )


def last_error(log: pathlib.Path) -> str:
  """The last error in a log, else its last line."""
  lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
  last = next((line for line in reversed(lines[-40:]) if line.startswith("error:")), lines[-1] if lines else "")
  return last.removeprefix("error:").strip()[:500]
