"""Results of a sweep: settings ranked by a metric, and tables with mean and standard deviation over seeds."""

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence

from vit_jax.config import Sweep
from vit_jax.evals import intervals, selection
from vit_jax.evals.metrics import FALLING, is_share
from vit_jax.schema import to_plain
from vit_jax.sweeps.trials import Setting, Trial, count_statuses, format_changes, group_settings, select_measured


def rank_settings(candidates: Sequence[Setting], decide: str) -> list[Setting]:
  """Ranks settings by the mean of a metric, best first. Equal settings are ordered by their loss.

  Args:
    candidates: settings. A setting with unfinished trials or a metric that is not finite is omitted.
    decide: name of the metric.
  """
  sign = 1 if decide.endswith(FALLING) else -1
  evaluation, loss = decide.rpartition("/")[0], "ema_loss" if "/ema_" in f"/{decide}" else "loss"

  def order(setting: Setting) -> tuple[float, float]:
    losses = setting.values(f"{evaluation}/{loss}".lstrip("/"))
    return sign * statistics.mean(setting.values(decide)), statistics.mean(losses) if losses else 0.0

  def has_finite(setting: Setting) -> bool:
    values = setting.values(decide)
    return bool(values) and all(map(math.isfinite, values))

  return sorted((setting for setting in candidates if setting.done and has_finite(setting)), key=order)


def find_criterion(trials: Sequence[Trial], decide: str | None) -> selection.Criterion | None:
  """Returns the figure that ranks trials.

  Args:
    trials: trials of a sweep.
    decide: the figure by which the sweep decides. If None, a figure of the validation split is preferred to a figure of
      the test split.

  Returns:
    The figure with its split, or None if no trial has a figure.
  """
  plain_configs = [(json.loads(trial.config or "{}"), trial.figures) for trial in trials]
  if decide is None:
    return selection.select_shared_criterion(plain_configs)
  return selection.Criterion(decide, selection.find_metric_role(plain_configs[0][0] if plain_configs else {}, decide))


def describe_choice(trials: Sequence[Trial], sweep: Sweep) -> list[str]:
  """Describes the figure that ranks the settings, and tests if the lead of the best one exceeds noise.

  Args:
    trials: trials of the sweep.
    sweep: the sweep.

  Returns:
    One paragraph, or an empty list before any figure exists.
  """
  chosen = find_criterion(trials, sweep.decide)
  if chosen is None or not any(chosen.metric in trial.figures for trial in trials):
    return []
  metric = chosen.metric
  words = f"Ranked by {chosen}: {'lower' if metric.endswith(FALLING) else 'higher'} is better."
  if sweep.decide is None:
    words += " This sweep does not select a setting."
    if chosen.split == selection.TEST:
      words += (
        " Its runs measure no validation split. If a setting is selected with this table, the selection uses "
        "'test', and "
        "the best figure is too high."
      )
  order = rank_settings(group_settings(select_measured(trials, sweep.over), sweep.over), metric)
  if len(order) > 1 and sweep.over is None:
    first, second = ([trial.figures for trial in setting.trials] for setting in order[:2])
    lead = describe_lead(first, second, metric, format_changes(order[1].changes))
    words += f" First: {format_changes(order[0].changes)}. {lead}"
  return [words]


def describe_lead(
  first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]], metric: str, name: str
) -> str:
  """Returns a sentence that compares the best setting with the next one and accounts for noise.

  Args:
    first: figures of each run of the best setting.
    second: figures of each run of the next setting.
    metric: name of the figure to compare.
    name: name of the next setting.
  """
  values = [[each[metric] for each in side if metric in each] for side in (first, second)]
  if not all(values):
    return ""
  if all(len(side) > 1 for side in values):
    ends, noise, missing = intervals.compute_welch_interval(*values), "Welch's t-test over seeds", "runs"
  else:
    counts = [side[0].get(f"{metric.rpartition('/')[0]}/images".lstrip("/"), 0) for side in (first, second)]
    if not intervals.is_proportion(metric) or min(counts) < 1 or f"{metric}_std" in first[0]:
      return f"One run of each setting is not enough to decide whether this setting is better than {name}."
    ends = intervals.compute_difference_interval(values[0][0], int(counts[0]), values[1][0], int(counts[1]))
    noise, missing = "Newcombe's interval of two shares", "images"
  gap, scale, unit = statistics.mean(values[0]) - statistics.mean(values[1]), 1.0, ""
  if is_share(metric):
    scale, unit = 100.0, " points"
  low, high = (scale * end for end in ends)
  text = f"Difference from the next setting, {name}: {scale * gap:.2f}{unit} (95 %: {low:.2f} to {high:.2f}, {noise})"
  return f"{text}." if low > 0 or high < 0 else f"{text}. There are not enough {missing} to decide which is better."


def find_varied_keys(trials: Sequence[Trial]) -> list[str]:
  """Returns the keys with values that differ between trials or are missing in some trials."""
  keys = dict.fromkeys(key for trial in trials for key in trial.changes)
  return [key for key in keys if len({repr(trial.changes.get(key)) for trial in trials}) > 1]


def format_mean_and_deviation(values: Sequence[float], share: bool = True) -> str:
  """Formats values as mean, standard deviation (n - 1) and count: "91.25 ± 0.31 (3)".

  Args:
    values: the values.
    share: true formats the values as percentages.

  Example:
    from vit_jax.sweeps import results

    assert results.format_mean_and_deviation([0.9, 0.92]) == "91.00 ± 1.41 (2)"
  """
  if not values:
    return "-"
  scale, digits = (100, 2) if share else (1, 4)
  mean = f"{scale * statistics.mean(values):.{digits}f}"
  deviation = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
  return f"{mean}{deviation} ({len(values)})"


def format_settings(
  trials: Sequence[Trial], metrics: Sequence[str], best: Setting | None, over: str | None = None
) -> str:
  """Returns a Markdown table with one row per setting, and the best setting in bold.

  A cell contains the mean ± the standard deviation (number of trials) of a metric. With `over`, the deviation is
  omitted because it would measure the difference between tasks.

  Args:
    trials: trials of the sweep.
    metrics: metrics of the columns.
    best: the best setting, or None.
    over: key with the tasks of a suite as values, or None.
  """
  keys = [key for key in find_varied_keys(trials) if key not in ("seed", over)]
  head = [
    *(keys or ["setting"]),
    *(f"{selection.format_name(name)}, %" if is_share(name) else selection.format_name(name) for name in metrics),
    "trials",
  ]
  rows = [head]
  for setting in group_settings(trials, over):
    cells = [f"{to_plain(setting.changes.get(key, '-'))}" for key in keys] or [format_changes(setting.changes)]
    values = [format_mean_and_deviation(setting.values(metric), is_share(metric)) for metric in metrics]
    cells += [re.sub(" ± [^ ]*", "", value) for value in values] if over else values
    cells.append(
      count_statuses(setting.trials, ("failed", "diverged", "absent", "waiting")) or f"{len(setting.trials)} done"
    )
    if best is not None and setting.changes == best.changes:
      cells = [f"**{cell}**" for cell in cells]
    rows.append([cell.replace("|", "\\|") for cell in cells])
  return format_markdown(rows)


def format_final_runs(runs: Sequence[Trial]) -> str:
  """Returns a Markdown table of the last runs on the test split, with one metric per row."""
  names = ("top1", "top5", "mean_per_class", "f1_macro", "loss", "ema_top1", "ema_loss")
  values = {name: [trial.figures[name] for trial in runs if name in trial.figures] for name in names}
  rows = [
    [selection.format_name(name), format_mean_and_deviation(values[name], is_share(name))]
    for name in names
    if values[name]
  ]
  return format_markdown([["figure", "mean ± standard deviation (runs)"], *rows])


def format_markdown(rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table with columns that are aligned in a terminal.

  Args:
    rows: rows of cells. The first row is the header.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])
