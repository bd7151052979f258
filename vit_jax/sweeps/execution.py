"""Execution of trials as processes. Exit codes and result files determine the status of each trial."""

import contextlib
import math
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from vit_jax import runtime
from vit_jax.config import extensions
from vit_jax.runtime import print_line
from vit_jax.schema import ConfigError, format_amount
from vit_jax.storage import files
from vit_jax.sweeps import pool
from vit_jax.sweeps.record import SweepRecord
from vit_jax.sweeps.screen import TrialScreen
from vit_jax.sweeps.trials import Trial

ATTEMPTS = 3  # attempts for a trial that ends by a signal: out of memory, or a kill by a user
# Exit codes after which the same command continues a trial. 143 is a SIGTERM before the trial has started.
CONTINUED = (runtime.EXIT_PREEMPTED, runtime.EXIT_HANG, runtime.EXIT_INTERRUPTED, runtime.EXIT_PEER, 143)


def build_train_command(file: str, trial: Trial) -> list[str]:
  """Returns the command that trains a trial of a config file, or continues it.

  Args:
    file: the config file, with its argument if it takes one.
    trial: the trial.
  """
  overrides = [f"--config.{key}={text}" for key, text in trial.flags.items()]
  command = ["python", "-m", "vit_jax.train", f"--config={file}", f"--workdir={trial.workdir}", "--no-report"]
  return [*command, *extensions.make_import_flags(), *overrides]


def build_evaluate_command(trial: Trial) -> list[str]:
  """Returns the command that evaluates a completed trial on the test split, in a separate workdir.

  Args:
    trial: the trial, with the workdir of the evaluation.
  """
  trained = trial.workdir.parent.parent / "trials" / trial.name
  command = ["python", "-m", "vit_jax.evaluate", f"--workdir={trained}", "--split=test", f"--report={trial.workdir}"]
  return [*command, *extensions.make_import_flags()]


def run_trials(
  record: SweepRecord,
  trials: Sequence[Trial],
  groups: Sequence[pool.DeviceGroup],
  command_of: Callable[[Trial], list[str]],
  poll: Callable[[], None],
) -> None:
  """Runs the waiting trials until all have ended, with at most one trial on each group of devices.

  The record is written after each change. If `poll` raises, the trials are asked to save and stop.

  Args:
    record: the record that stores the changes.
    trials: trials to run. Other trials of the record are not changed.
    groups: device groups, each for one trial.
    command_of: returns the command of a trial. The first word is replaced by this Python.
    poll: raises `runtime.Stop` if the sweep must stop. It is called several times a second.

  Raises:
    Stop: `poll` raised it.
  """
  by_name = {trial.name: trial for trial in trials}
  screen = TrialScreen(trials, record.study.sweep.decide, record.log)
  with contextlib.closing(pool.Pool(groups)) as processes, screen, _report_stop_request(processes):
    while any(trial.status in ("waiting", "running") for trial in trials):
      poll()
      for name, code in processes.collect_finished().items():
        set_status(by_name[name], code, record.log(by_name[name]))
        record.keep_log(by_name[name])
        record.write()
        screen.report_change(by_name[name])
      waiting = [trial for trial in trials if trial.status == "waiting"]
      # Trials that run on our devices but belong to another process.
      elsewhere = sum(is_held(trial, screen) for trial in waiting)
      for trial in waiting:
        if trial.error or len(processes.names) + elsewhere >= len(groups):
          continue
        if read_result(trial):
          record.write()
        else:
          trial.status, trial.attempts = "running", trial.attempts + 1
          processes.start(trial.name, [sys.executable, *command_of(trial)[1:]], record.log(trial))
        screen.report_change(trial)
      screen.refresh()
      time.sleep(0.2)


def is_held(trial: Trial, screen: TrialScreen) -> bool:
  """Returns true if another process trains the trial now.

  This may be a process of a killed sweep that is still saving, or a process started from the output of --render. The
  trial's error then names the process.

  Args:
    trial: the trial.
    screen: the screen that displays changes.
  """
  holder = runtime.describe_holder(trial.workdir)
  before, trial.error = trial.error, f"held by process {holder}" if holder else ""
  if holder and trial.error != before:
    screen.report_change(trial)
  return holder is not None


@contextlib.contextmanager
def _report_stop_request(processes: pool.Pool) -> Iterator[None]:
  """Prints the number of trials that still run when a stop is requested."""
  try:
    yield
  except runtime.Stop:
    print_line(
      f"stopping: {format_amount(len(processes.names), 'trial')} saving their state, for up to {pool.PATIENCE:.0f} s"
    )
    raise


def read_result(trial: Trial) -> bool:
  """Reads the result of a trial from its workdir, if there is one, and updates the trial.

  The trial fails if the result belongs to another config.

  Args:
    trial: the trial to update.

  Returns:
    True if the workdir contains a result or a run with another config.

  Raises:
    ConfigError: the result file has no figures.
  """
  trained = files.read_json(trial.workdir / "result.json")
  tested = files.read_json(trial.workdir / "figures.json")  # written by `build_evaluate_command`, which does not train
  if trained is None and tested is None:
    return False
  own = trial.workdir / "config.json"
  same = trial.config is not None and own.is_file() and own.read_bytes() == trial.config.encode()
  if trained is not None and not same:
    trial.fail(f"{trial.workdir} contains a run with another config. Check whether the file was edited")
    return True
  values = (tested or {}).get("figures") if trained is None else trained
  if not isinstance(values, dict):
    raise ConfigError(f"{trial.workdir / 'figures.json'} contains no figures. Fix or remove it")
  trial.figures = {key: value for key, value in values.items() if isinstance(value, float | int)}
  if wrong := [key for key, value in trial.figures.items() if not math.isfinite(value)]:
    trial.fail(f"its result is not finite: {wrong[0]} is {trial.figures[wrong[0]]}", "diverged")
    return True
  trial.status, trial.error, trial.seconds = "done", "", trial.figures.get("train_seconds", 0.0)
  return True


def set_status(trial: Trial, code: int, log: pathlib.Path) -> None:
  """Sets the status of a trial after its process has ended.

  A trial is continued from its last checkpoint if it was stopped, hung, was ended by a signal, or found another process
  in its workdir. It is started at most `ATTEMPTS` times. The other process may have ended in the meantime. Therefore
  the error message of the trial is used to detect it, not the lock.

  Args:
    trial: the trial to update.
    code: exit code of the process. A negative number is a signal.
    log: log file of the process.
  """
  trial.fail(find_last_error(log))
  stopped = code < 0 or code in CONTINUED or runtime.IN_USE in trial.error
  if code == 0:
    if not read_result(trial):
      trial.error = f"finished without a result. See {log}"
  elif code == runtime.EXIT_NOT_FINITE:
    trial.status = "diverged"
  elif stopped and trial.attempts < ATTEMPTS:
    trial.status = "waiting"
  elif code < 0:
    trial.error = (
      f"ended {format_amount(trial.attempts, 'time')} by signal {signal.Signals(-code).name}, possibly because "
      f"memory ran out. See {log}"
    )


def find_last_error(log: pathlib.Path) -> str:
  """Returns the last error in a log, or the last line if there is no error.

  Args:
    log: an existing log file.
  """
  lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
  last = next((line for line in reversed(lines[-40:]) if line.startswith("error:")), lines[-1] if lines else "")
  return last.removeprefix("error:").strip()[:500]
