"""Runs of the comparisons: training and other commands, several at the same time, and their figures."""

import contextlib
import pathlib
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vit_jax import config, train
from vit_jax.reports import trackers
from vit_jax.sweeps import execution, pool, results, search
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Trial


def train_runs(
  file: str,
  workdir: pathlib.Path,
  overrides: Mapping[str, str],
  changes: Sequence[Mapping[str, Any]],
  groups: Sequence[pool.DeviceGroup],
) -> list[Trial]:
  """Trains a run for each of the changes, several at the same time. Ends the program if a run fails.

  Args:
    file: the config.
    workdir: directory of the runs.
    overrides: changes of all runs.
    changes: changes of each run.
    groups: groups of devices for concurrent runs. If empty, the runs follow one another in this process, because
      starting a process takes longer than a run of few steps.
  """
  study = Study(file, overrides, config.Sweep(changes, decide=None), workdir)
  trials = study.make_trials()
  if groups:
    search.run_study(study, trials, groups, retry=True)
  else:
    for trial in trials:
      train_in_process(file, trial)
  if failed := [f"{trial}: {trial.error}" for trial in trials if trial.status != "done"]:
    sys.exit("\n".join(failed))
  return trials


def train_in_process(file: str, trial: Trial) -> None:
  """Trains a trial in this process, unless its workdir contains a result. The output is written to a log.

  Args:
    file: the config.
    trial: the trial. Its figures and status are updated.
  """
  if trial.config is None or execution.read_result(trial):
    return
  trial.workdir.parent.mkdir(parents=True, exist_ok=True)
  with trial.workdir.with_suffix(".log").open("a") as log, contextlib.redirect_stdout(log):
    train.main(execution.build_train_command(file, trial)[3:])
  execution.read_result(trial)


def run_commands(commands: dict[str, list[str]], groups: Sequence[pool.DeviceGroup]) -> None:
  """Runs commands, several at the same time. Ends the program if a command fails.

  Args:
    commands: maps the name of a JSON file to the command that writes it.
    groups: groups of devices for concurrent programs.
  """
  waiting = list(commands)
  with contextlib.closing(pool.Pool(groups)) as running:
    while waiting or running.names:
      while waiting and running.has_room:
        name = waiting.pop()
        running.start(name, commands[name], pathlib.Path(name).with_suffix(".log"))
      for name, code in running.collect_finished().items():
        print(f"{time.strftime('%H:%M:%S')}  done  {pathlib.Path(name).stem}", flush=True)
        if code:
          sys.exit(f"{name}: {pathlib.Path(name).with_suffix('.log').read_text()}")
      time.sleep(0.1)


def read_rows(trial: Trial, names: Collection[str]) -> list[dict[str, float]]:
  """Returns the figures of a run by step, for the steps with all of the given figures.

  Args:
    trial: a run.
    names: names of figures in metrics.jsonl.
  """
  steps: dict[int, dict[str, float]] = {}
  for step, figures in trackers.read_rows(trial.workdir):
    steps.setdefault(step, {"step": step}).update(figures)
  return [row for row in steps.values() if set(names) <= row.keys()]


def format_cell(trials: list[Trial]) -> str:
  """Returns top-1 on test, mean ± standard deviation."""
  return results.format_mean_and_deviation([trial.figures["top1"] for trial in trials])


def average_seconds(trials: list[Trial]) -> str:
  """Returns the mean training time in seconds."""
  return f"{statistics.mean(trial.seconds for trial in trials):.0f}"
