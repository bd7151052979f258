"""A whole sweep: its trials are run, the best setting is chosen and scored on test."""

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator, Sequence

from vit_jax import runtime
from vit_jax.runtime import say
from vit_jax.runtime.watch import STOPS, current_handlers
from vit_jax.schema import ConfigError
from vit_jax.sweeps import execution, pool, results
from vit_jax.sweeps.record import Record
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Setting, Trial, measured, settings, text


def search(study: Study, trials: list[Trial], groups: Sequence[pool.Group], retry: bool) -> None:
  """Runs a study from wherever its workdir stands to its end.

  Args:
    study: what to run.
    trials: those of the study; they are changed in place.
    groups: devices of one trial each.
    retry: whether trials that failed or diverged in an earlier session are tried again.

  Raises ConfigError where nothing was chosen or measured, or another process holds the workdir; `runtime.Stop` on
  Ctrl-C, SIGTERM or a closed terminal, after which the same call continues.
  """
  train = functools.partial(execution.train_command, study.file)
  with runtime.locked(study.workdir), stoppable() as poll:
    record = Record(study, trials)
    record.restore(trials, retry)
    execution.run(record, trials, groups, train, poll)
    if study.sweep.decide:
      over = study.sweep.over
      order = results.ranked(settings(measured(trials, over), over), study.sweep.decide)
      if not order:
        record.close()
        raise ConfigError("no setting has all of its trials done, so nothing was chosen; see the errors above")
      record.best, record.last_runs = order[0], study.last_runs(order[0])
      record.restore(record.last_runs, retry)
      chosen = results.criterion(trials, study.sweep.decide)
      say(f"\nbest of {len(order)} by {chosen}: {text(record.best.changes)}")
      last = train if study.sweep.final else execution.evaluate_command
      execution.run(record, record.last_runs, groups, last, poll)
    record.close()
  if not any(trial.status == "done" for trial in trials):
    raise ConfigError("no trial is done; see the errors above, and --retry")
  if any(trial.status != "done" for trial in record.last_runs):
    raise ConfigError("the last runs are not all done; see the errors above, and --retry")


def last_runs(study: Study, trials: Sequence[Trial], decide: bool) -> tuple[Setting | None, list[Trial]]:
  """(the best setting, what is scored on test) where the workdirs of all possible trials say that they are done.

  With `decide` those that are done suffice. Takes their results.
  """
  possible = [trial for trial in trials if trial.config is not None]
  finished = [trial.status == "done" or execution.take_result(trial) for trial in possible]
  over, order = study.sweep.over, []
  if study.sweep.decide and (decide or all(finished)):
    order = results.ranked(settings(measured(trials, over), over), study.sweep.decide)
  return (order[0], study.last_runs(order[0])) if order else (None, [])


def collect(study: Study, trials: list[Trial], decide: bool) -> None:
  """Takes what others have finished of a study, and trains nothing; leaves its record and table. See `last_runs`."""
  with runtime.locked(study.workdir):
    record = Record(study, trials)
    record.restore(trials, retry=False)
    record.best, record.last_runs = last_runs(study, trials, decide)
    for trial in record.last_runs:
      execution.take_result(trial)
    record.close()
  if not any(trial.status == "done" for trial in trials):
    raise ConfigError("no trial is done yet; --render prints their commands")


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
  """Inside, SIGTERM, Ctrl-C and a closed terminal are requests to stop: what is yielded then raises `runtime.Stop`.

  The first request counts; after it a Ctrl-C alone is heard, which ends it without waiting for the trials.
  """
  asked = []

  def note(number, _):
    # Raising here would be lost in the callbacks that Python itself makes, of a garbage collection for one.
    if asked and number == signal.SIGINT:
      raise KeyboardInterrupt
    asked.append(number)

  def poll():
    if asked:
      code, message = STOPS[asked[0]]
      raise runtime.Stop(code, f"{message}; the same command continues")

  before = current_handlers(STOPS)
  for number in before:
    signal.signal(number, note)
  try:
    yield poll
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
