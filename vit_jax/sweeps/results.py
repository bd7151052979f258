"""What came of a sweep's trials: settings with mean and standard deviation over seeds, the best, tables."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.config import Changes
from vit_jax.schema import plain

FALLING = ("loss", "calibration_error")  # figures that are better when they are lower


@dataclasses.dataclass
class Trial:
  """One run of a sweep, and how far it is."""

  name: str  # follows from its whole config
  changes: Changes  # of the config file
  flags: dict[str, str]  # the same as --config.KEY=VALUE, with those given to the sweep
  workdir: pathlib.Path
  config: str | None  # the resolved one as JSON text; None if it is impossible
  status: str = "waiting"  # running, done, failed, diverged
  error: str = ""
  figures: dict[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  attempts: int = 0

  def __str__(self):
    return words(self.changes)

  def told(self) -> dict[str, Any]:
    """As JSON values."""
    kept = ("name", "status", "error", "figures", "seconds", "attempts")
    return {"changes": plain(dict(self.changes)), "workdir": str(self.workdir)} | {k: getattr(self, k) for k in kept}


class Setting(NamedTuple):
  """Trials that differ in their seed alone."""

  changes: Changes  # without the seed
  trials: list[Trial]

  @property
  def whole(self) -> bool:
    """Whether all of its trials are done."""
    return all(trial.status == "done" for trial in self.trials)

  def values(self, figure: str) -> list[float]:
    """A figure of the trials that are done."""
    return [trial.figures[figure] for trial in self.trials if figure in trial.figures]


def words(changes: Changes) -> str:
  """optim.lr=0.01 seed=1"""
  return " ".join(f"{key}={plain(value)}" for key, value in changes.items()) or "as it stands"


def settings(trials: Sequence[Trial]) -> list[Setting]:
  """The trials by setting, in order."""
  found: dict[str, Setting] = {}
  for trial in trials:
    changes = {key: value for key, value in trial.changes.items() if key != "seed"}
    key = json.dumps(plain(changes), sort_keys=True, default=str)
    found.setdefault(key, Setting(changes, [])).trials.append(trial)
  return list(found.values())


def ranked(found: Sequence[Setting], decide: str) -> list[Setting]:
  """Settings whose trials are all done, the best by the mean of a figure first; of equals that with the lower loss."""
  sign = 1 if decide.endswith(FALLING) else -1
  place, loss = decide.rpartition("/")[0], "ema_loss" if "/ema_" in decide else "loss"

  def order(setting):
    losses = setting.values(f"{place}/{loss}")
    return sign * statistics.mean(setting.values(decide)), statistics.mean(losses) if losses else 0.0

  return sorted((setting for setting in found if setting.whole), key=order)


def varied(trials: Sequence[Trial]) -> list[str]:
  """Keys whose values differ between trials, or are not in all of them."""
  keys = dict.fromkeys(key for trial in trials for key in trial.changes)
  return [key for key in keys if len({repr(trial.changes.get(key)) for trial in trials}) > 1]


def mean_and_spread(values: Sequence[float], share: bool = True) -> str:
  """91.25 ± 0.31 (3): mean, standard deviation (n - 1) and count; per cent for a share."""
  if not values:
    return "-"
  scale, digits = (100, 2) if share else (1, 4)
  mean = f"{scale * statistics.mean(values):.{digits}f}"
  spread = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
  return f"{mean}{spread} ({len(values)})"


def table(trials: Sequence[Trial], shown: Sequence[str], best: Setting | None) -> str:
  """Markdown: a row for each setting with mean ± standard deviation (number of seeds) of the figures shown."""
  keys = [key for key in varied(trials) if key != "seed"]
  rows = [[*(keys or ["setting"]), *(f"{figure}, %" if is_share(figure) else figure for figure in shown), "trials"]]
  for setting in settings(trials):
    cells = [f"{plain(setting.changes.get(key, '-'))}" for key in keys] or [words(setting.changes)]
    cells += [mean_and_spread(setting.values(figure), is_share(figure)) for figure in shown]
    count = {status: sum(t.status == status for t in setting.trials) for status in ("failed", "diverged", "waiting")}
    cells.append(", ".join(f"{n} {status}" for status, n in count.items() if n) or f"{len(setting.trials)} done")
    if best is not None and setting.changes == best.changes:
      cells = [f"**{cell}**" for cell in cells]
    rows.append([cell.replace("|", "\\|") for cell in cells])
  return markdown(rows)


def is_share(figure: str) -> bool:
  """Whether a figure is printed as per cent."""
  return not figure.endswith("loss")


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table of cells, the first row its head, in columns that a terminal shows straight."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def summary(found: Sequence[Setting], figures: Sequence[str]) -> list[Mapping[str, Any]]:
  """Settings as JSON values, with every trial's figures."""
  return [
    {
      "changes": plain(dict(setting.changes)),
      "trials": [trial.name for trial in setting.trials],
      "figures": {figure: setting.values(figure) for figure in figures},
    }
    for setting in found
  ]
