"""A whole sweep: its trials are run, the best setting is chosen and scored on test."""

import contextlib
import functools
import signal
from collections.abc import Iterator, Sequence

from vit_jax import runtime
from vit_jax.runtime import say
from vit_jax.schema import ConfigError
from vit_jax.sweeps import execution, pool, results
from vit_jax.sweeps.record import Record
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Trial, settings, text


def search(study: Study, trials: list[Trial], groups: Sequence[pool.Group], retry: bool) -> None:
  """Runs a study from wherever its workdir stands to its end.

  Args:
    study: what to run.
    trials: those of the study; they are changed in place.
    groups: devices of one trial each.
    retry: whether trials that failed or diverged in an earlier session are tried again.

  Raises ConfigError where nothing was chosen or measured, or another process holds the workdir; `runtime.Stop` on
  Ctrl-C or SIGTERM, after which the same call continues.
  """
  train = functools.partial(execution.train_command, study.file)
  with runtime.locked(study.workdir), stoppable():
    record = Record(study, trials)
    record.restore(trials, retry)
    execution.run(record, trials, groups, train)
    if study.sweep.decide:
      order = results.ranked(settings(trials), study.sweep.decide)
      if not order:
        record.close()
        raise ConfigError("no setting has all of its trials done, so nothing was chosen; see the errors above")
      record.best, record.last_runs = order[0], study.last_runs(order[0])
      record.restore(record.last_runs, retry)
      say(f"\nbest of {len(order)}: {text(record.best.changes)}")
      execution.run(record, record.last_runs, groups, train if study.sweep.final else execution.evaluate_command)
    record.close()
  if not any(trial.status == "done" for trial in trials):
    raise ConfigError("no trial is done; see the errors above, and --retry")
  if any(trial.status != "done" for trial in record.last_runs):
    raise ConfigError("the last runs are not all done; see the errors above, and --retry")


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
  """A SIGTERM ends what is inside as Ctrl-C does: trials save and stop, and `runtime.Stop` says so."""

  def stop(*_):
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGTERM, stop)
  try:
    yield
  except KeyboardInterrupt:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise runtime.Stop(runtime.EXIT_PREEMPTED, "stopped as asked; the same command continues") from None
  finally:
    signal.signal(signal.SIGTERM, before)
