"""A trial of a sweep and how far it is; a setting, whose trials differ in their seed alone."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from vit_jax.config import Changes
from vit_jax.schema import plain

_RECORDED = {"name": "", "status": "", "error": "", "figures": {}, "seconds": 0.0, "attempts": 0}


@dataclasses.dataclass
class Trial:
  """One run of a sweep, and how far it is.

  Args:
    name: a digest of the whole config, so that the same run has the same name in every process.
    changes: what the sweep changes in the config file.
    flags: the same as {key: text} of `--config.KEY=VALUE`, with the flags of the sweep itself.
    workdir: where it is trained, or measured.
    config: the resolved config as JSON text; None where the changes make no valid config, which `error` explains.
    status: waiting, running, done, failed, diverged, or absent, as are the data of a suite's task.
    figures: metrics of the result, {"val/top1": 0.93}.
    seconds: of training.
    attempts: how often it was started.
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

  def __str__(self):
    return text(self.changes)

  def fail(self, error: str, status: str = "failed") -> None:
    """Ends the trial, with the reason."""
    self.status, self.error = status, error

  def to_json(self) -> dict[str, Any]:
    """The trial as JSON values, for sweep.json."""
    recorded = {name: getattr(self, name) for name in _RECORDED}
    return {"changes": plain(dict(self.changes)), "workdir": str(self.workdir)} | recorded

  def restore(self, record: dict[str, Any]) -> None:
    """Takes over status, figures and attempts from what `to_json` made of an earlier session's trial."""
    for name in _RECORDED:
      setattr(self, name, record.get(name, getattr(self, name)))


def is_record(values) -> bool:
  """Whether JSON values are what `Trial.to_json` makes, as far as `Trial.restore` reads them."""
  if not isinstance(values, dict):
    return False
  kinds = {name: int | float if isinstance(blank, float) else type(blank) for name, blank in _RECORDED.items()}
  typed = all(isinstance(values.get(name, blank), kinds[name]) for name, blank in _RECORDED.items())
  return typed and all(isinstance(figure, int | float) for figure in values.get("figures", {}).values())


@dataclasses.dataclass(frozen=True)
class Setting:
  """Trials that differ in their seed alone, and in the task of a suite."""

  changes: Changes  # without the seed and the task
  trials: list[Trial]

  @property
  def done(self) -> bool:
    """Whether all of its trials are done."""
    return all(trial.status == "done" for trial in self.trials)

  def values(self, metric: str) -> list[float]:
    """A metric of each trial that has it."""
    return [trial.figures[metric] for trial in self.trials if metric in trial.figures]

  def to_json(self, metrics: Sequence[str]) -> dict[str, Any]:
    """The setting as JSON values, with these metrics of every trial."""
    return {
      "changes": plain(dict(self.changes)),
      "trials": [trial.name for trial in self.trials],
      "figures": {metric: self.values(metric) for metric in metrics},
    }


def settings(trials: Sequence[Trial], over: str | None = None) -> list[Setting]:
  """The trials grouped by what they change except for the seed and the task, the key `over`; in order."""
  groups: dict[str, Setting] = {}
  for trial in trials:
    changes = {key: value for key, value in trial.changes.items() if key not in ("seed", over)}
    key = json.dumps(plain(changes), sort_keys=True, default=str)
    groups.setdefault(key, Setting(changes, [])).trials.append(trial)
  return list(groups.values())


def measured(trials: Sequence[Trial], over: str | None) -> list[Trial]:
  """The trials of those tasks of which any is done; all of them where `over` names no tasks."""
  done = [trial.changes[over] for trial in trials if trial.status == "done"] if over else []
  return [trial for trial in trials if over is None or trial.changes[over] in done]


def count(trials: Sequence[Trial], statuses: Sequence[str]) -> str:
  """How many trials have each of these statuses, without noughts: "3 done, 1 failed"."""
  counts = {status: sum(trial.status == status for trial in trials) for status in statuses}
  return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def text(changes: Changes) -> str:
  """Changes on a line: optim.lr=0.01 seed=1."""
  return " ".join(f"{key}={plain(value)}" for key, value in changes.items()) or "as it stands"
