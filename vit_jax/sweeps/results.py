"""What came of a sweep's trials: settings ranked by a metric, tables with mean and standard deviation over seeds."""

import re
import statistics
from collections.abc import Sequence

from vit_jax.metrics import FALLING, is_share
from vit_jax.schema import plain
from vit_jax.sweeps.trials import Setting, Trial, count, settings, text


def ranked(candidates: Sequence[Setting], decide: str) -> list[Setting]:
  """Settings whose trials are all done, the best by the mean of a metric first; of equals that with the lower loss."""
  sign = 1 if decide.endswith(FALLING) else -1
  evaluation, loss = decide.rpartition("/")[0], "ema_loss" if "/ema_" in decide else "loss"

  def order(setting):
    losses = setting.values(f"{evaluation}/{loss}")
    return sign * statistics.mean(setting.values(decide)), statistics.mean(losses) if losses else 0.0

  return sorted((setting for setting in candidates if setting.done and setting.values(decide)), key=order)


def varied(trials: Sequence[Trial]) -> list[str]:
  """Keys whose values differ between trials, or are not in all of them."""
  keys = dict.fromkeys(key for trial in trials for key in trial.changes)
  return [key for key in keys if len({repr(trial.changes.get(key)) for trial in trials}) > 1]


def mean_and_deviation(values: Sequence[float], share: bool = True) -> str:
  """91.25 ± 0.31 (3): mean, standard deviation (n - 1) and count; per cent for a share."""
  if not values:
    return "-"
  scale, digits = (100, 2) if share else (1, 4)
  mean = f"{scale * statistics.mean(values):.{digits}f}"
  deviation = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
  return f"{mean}{deviation} ({len(values)})"


def table(trials: Sequence[Trial], metrics: Sequence[str], best: Setting | None, over: str | None = None) -> str:
  """Markdown: a row for each setting with mean ± standard deviation (number of trials) of the metrics; the best bold.

  Where trials are of the tasks that differ in the key `over`, without the deviation, which would be that of the tasks.
  """
  keys = [key for key in varied(trials) if key not in ("seed", over)]
  head = [*(keys or ["setting"]), *(f"{metric}, %" if is_share(metric) else metric for metric in metrics), "trials"]
  rows = [head]
  for setting in settings(trials, over):
    cells = [f"{plain(setting.changes.get(key, '-'))}" for key in keys] or [text(setting.changes)]
    values = [mean_and_deviation(setting.values(metric), is_share(metric)) for metric in metrics]
    cells += [re.sub(" ± [^ ]*", "", value) for value in values] if over else values
    cells.append(count(setting.trials, ("failed", "diverged", "absent", "waiting")) or f"{len(setting.trials)} done")
    if best is not None and setting.changes == best.changes:
      cells = [f"**{cell}**" for cell in cells]
    rows.append([cell.replace("|", "\\|") for cell in cells])
  return markdown(rows)


def final_table(runs: Sequence[Trial]) -> str:
  """Markdown: the metrics of the last runs on test, one a row."""
  names = ("top1", "top5", "mean_per_class", "f1_macro", "loss", "ema_top1", "ema_loss")
  values = {name: [trial.figures[name] for trial in runs if name in trial.figures] for name in names}
  rows = [[name, mean_and_deviation(values[name], is_share(name))] for name in names if values[name]]
  return markdown([["figure", "mean ± standard deviation (runs)"], *rows])


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table of cells, the first row its head, in columns that a terminal shows straight."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])
