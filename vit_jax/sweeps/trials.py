"""Trials of a sweep with their status, and settings: groups of trials that differ only in their seed."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from vit_jax.config import Changes
from vit_jax.schema import to_plain

_RECORDED = {"name": "", "status": "", "error": "", "figures": {}, "seconds": 0.0, "attempts": 0}


@dataclasses.dataclass
class Trial:
  """One run of a sweep, with its status.

  Args:
    name: a digest of the whole config. The same run has the same name in every process.
    changes: changes that the sweep makes to the config file.
    flags: the changes as {key: text} of `--config.KEY=VALUE`, together with the flags of the sweep.
    workdir: directory in which the trial is trained or evaluated.
    config: the resolved config as JSON text. It is None if the changes result in an invalid config.
    status: waiting, running, done, failed, diverged or absent. Absent means that the data of a suite's task are
      missing.
    error: reason of a failure, or "".
    figures: metrics of the result, such as {"val/top1": 0.93}.
    seconds: training time.
    attempts: number of starts.
  """

  name: str
  changes: Changes
  flags: dict[str, str]
  workdir: pathlib.Path
  config: str | None
  status: str = "waiting"
  error: str = ""
  figures: dict[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  attempts: int = 0

  def __str__(self) -> str:
    return format_changes(self.changes)

  def fail(self, error: str, status: str = "failed") -> None:
    """Ends the trial.

    Args:
      error: the reason.
      status: the new status.
    """
    self.status, self.error = status, error

  def to_json(self) -> dict[str, Any]:
    """Returns the trial as JSON values for sweep.json."""
    recorded = {name: getattr(self, name) for name in _RECORDED}
    return {"changes": to_plain(dict(self.changes)), "workdir": str(self.workdir)} | recorded

  def restore(self, record: dict[str, Any]) -> None:
    """Restores status, figures and attempts from the JSON values of an earlier session's trial.

    Args:
      record: the result of `to_json`.
    """
    for name in _RECORDED:
      setattr(self, name, record.get(name, getattr(self, name)))


def is_record(values: object) -> bool:
  """Returns true if JSON values can be passed to `Trial.restore`."""
  if not isinstance(values, dict):
    return False
  kinds = {name: int | float if isinstance(blank, float) else type(blank) for name, blank in _RECORDED.items()}
  typed = all(isinstance(values.get(name, blank), kinds[name]) for name, blank in _RECORDED.items())
  return typed and all(isinstance(figure, int | float) for figure in values.get("figures", {}).values())


@dataclasses.dataclass(frozen=True)
class Setting:
  """Trials that differ only in their seed and in the task of a suite.

  Attributes:
    changes: the common changes, without the seed and the task.
    trials: the trials.
  """

  changes: Changes
  trials: list[Trial]

  @property
  def done(self) -> bool:
    """Returns true if all trials of the setting are done."""
    return all(trial.status == "done" for trial in self.trials)

  def values(self, metric: str) -> list[float]:
    """Returns a metric of each trial that has it."""
    return [trial.figures[metric] for trial in self.trials if metric in trial.figures]

  def to_json(self, metrics: Sequence[str]) -> dict[str, Any]:
    """Returns the setting as JSON values.

    Args:
      metrics: metrics to include, for every trial.
    """
    return {
      "changes": to_plain(dict(self.changes)),
      "trials": [trial.name for trial in self.trials],
      "figures": {metric: self.values(metric) for metric in metrics},
    }


def group_settings(trials: Sequence[Trial], over: str | None = None) -> list[Setting]:
  """Groups trials by their changes except the seed and the task. The order is preserved.

  Args:
    trials: trials of a sweep.
    over: key with the tasks of a suite as values, or None.
  """
  groups: dict[str, Setting] = {}
  for trial in trials:
    changes = {key: value for key, value in trial.changes.items() if key not in ("seed", over)}
    key = json.dumps(to_plain(changes), sort_keys=True, default=str)
    groups.setdefault(key, Setting(changes, [])).trials.append(trial)
  return list(groups.values())


def select_measured(trials: Sequence[Trial], over: str | None) -> list[Trial]:
  """Returns the trials of the tasks for which at least one trial is done, or all trials if `over` is None.

  Args:
    trials: trials of a sweep.
    over: key with the tasks of a suite as values, or None.
  """
  done = [trial.changes[over] for trial in trials if trial.status == "done"] if over else []
  return [trial for trial in trials if over is None or trial.changes[over] in done]


def count_statuses(trials: Sequence[Trial], statuses: Sequence[str]) -> str:
  """Returns the number of trials per status, without zeros: "3 done, 1 failed".

  Args:
    trials: trials of a sweep.
    statuses: statuses to count, in order.
  """
  counts = {status: sum(trial.status == status for trial in trials) for status in statuses}
  return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def format_changes(changes: Changes) -> str:
  """Returns changes on one line: "optim.lr=0.01 seed=1"."""
  return " ".join(f"{key}={to_plain(value)}" for key, value in changes.items()) or "unchanged"
