"""Execution of a complete sweep: run the trials, choose the best setting, and evaluate it on the test split."""

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from vit_jax import runtime
from vit_jax.runtime import print_line
from vit_jax.runtime.watch import STOPS, get_current_handlers
from vit_jax.schema import ConfigError
from vit_jax.sweeps import execution, pool, results
from vit_jax.sweeps.record import SweepRecord, read_pins
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Setting, Trial, format_changes, group_settings, select_measured


def run_study(study: Study, trials: list[Trial], groups: Sequence[pool.DeviceGroup], retry: bool) -> None:
  """Runs a study from the state in its workdir to its end.

  Args:
    study: the study to run.
    trials: trials of the study. They are changed in place.
    groups: device groups, each for one trial.
    retry: true tries trials again that failed or diverged in an earlier session.

  Raises:
    ConfigError: no setting could be chosen or measured, or another process uses the workdir.
    Stop: Ctrl-C, SIGTERM or a closed terminal requested a stop. The same call continues the study.
  """
  train = functools.partial(execution.build_train_command, study.file)
  with runtime.lock_workdir(study.workdir), handle_stop_signals() as poll:
    record = SweepRecord(study, trials)
    record.restore(trials, retry)
    execution.run_trials(record, trials, groups, train, poll)
    if study.sweep.decide:
      over = study.sweep.over
      order = results.rank_settings(group_settings(select_measured(trials, over), over), study.sweep.decide)
      if not order:
        record.close()
        raise ConfigError(
          "no setting was selected, because no setting has completed all of its trials. See the errors above"
        )
      record.best, record.last_runs = order[0], study.make_last_runs(order[0])
      record.restore(record.last_runs, retry)
      chosen = results.find_criterion(trials, study.sweep.decide)
      print_line(f"\nbest of {len(order)} by {chosen}: {format_changes(record.best.changes)}")
      last = train if study.sweep.final else execution.build_evaluate_command
      execution.run_trials(record, record.last_runs, groups, last, poll)
    record.close()
  if not any(trial.status == "done" for trial in trials):
    raise ConfigError("no trial is done. See the errors above, then use --retry")
  if any(trial.status != "done" for trial in record.last_runs):
    raise ConfigError("some of the last runs are not done. See the errors above, then use --retry")


def store_pins(study: Study, trials: list[Trial]) -> None:
  """Stores the commits of weights on the Hub in the record of a study, for trials that other programs start.

  A later call then lists the same trials, although a branch has moved.

  Args:
    study: the study.
    trials: trials of the study.

  Raises:
    ConfigError: another process uses the workdir, it contains another sweep, or the workdir cannot be created.
  """
  if study.pins == read_pins(study.workdir):
    return
  if problem := runtime.check_creatable(study.workdir):
    raise ConfigError(problem)
  with runtime.lock_workdir(study.workdir):
    SweepRecord(study, trials).write_pins()


def select_last_runs(study: Study, trials: Sequence[Trial], decide: bool) -> tuple[Setting | None, list[Trial]]:
  """Returns the best setting and the runs to evaluate on the test split, if all possible trials are done.

  The results are read from the workdirs of the trials.

  Args:
    study: the study.
    trials: trials of the study. They are changed in place.
    decide: true accepts a study in which only some trials are done.

  Returns:
    (best setting, runs), or (None, []) if no setting can be chosen.
  """
  possible = [trial for trial in trials if trial.config is not None]
  finished = [trial.status == "done" or execution.read_result(trial) for trial in possible]
  over, order = study.sweep.over, []
  if study.sweep.decide and (decide or all(finished)):
    order = results.rank_settings(group_settings(select_measured(trials, over), over), study.sweep.decide)
  return (order[0], study.make_last_runs(order[0])) if order else (None, [])


def collect_results(study: Study, trials: list[Trial], decide: bool) -> None:
  """Collects the completed results of a study without training, and writes its record and table.

  Args:
    study: the study.
    trials: trials of the study. They are changed in place.
    decide: true accepts a study in which only some trials are done, see `select_last_runs`.

  Raises:
    ConfigError: no trial is done, or another process uses the workdir.
  """
  with runtime.lock_workdir(study.workdir):
    record = SweepRecord(study, trials)
    record.restore(trials, retry=False)
    record.best, record.last_runs = select_last_runs(study, trials, decide)
    for trial in record.last_runs:
      execution.read_result(trial)
    record.close()
  if not any(trial.status == "done" for trial in trials):
    raise ConfigError("no trial is done yet. Use --render to print the commands of the trials")


@contextlib.contextmanager
def handle_stop_signals() -> Iterator[Callable[[], None]]:
  """Turns SIGTERM, Ctrl-C and a closed terminal into requests to stop while the context is open.

  The first request counts. After it, only Ctrl-C has an effect: it ends the program without waiting for the trials.

  Yields:
    A function that raises `runtime.Stop` after a request.
  """
  received = []

  def note(number: int, _: FrameType | None) -> None:
    # An exception here could be raised and lost in callbacks of Python itself, for example of garbage collection.
    if received and number == signal.SIGINT:
      raise KeyboardInterrupt
    received.append(number)

  def poll() -> None:
    if received:
      code, message = STOPS[received[0]]
      raise runtime.Stop(code, f"{message}; the same command continues")

  before = get_current_handlers(STOPS)
  for number in before:
    signal.signal(number, note)
  try:
    yield poll
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
