"""Results of the tasks of a suite: one column per task, and means as in the papers on VTAB.

All means are unweighted means of percentages. The mean of a group covers its tasks. The total mean covers all tasks,
and therefore differs from the mean of the groups (VTAB's leaderboard). The figure of a task is the mean of its runs.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vit_jax.data.catalog import vtab
from vit_jax.sweeps.results import format_markdown
from vit_jax.sweeps.trials import Trial

METRIC = "top1"  # used for all tasks of VTAB, including those with classes of unequal size


def format_suite(runs: Sequence[Trial], trials: Sequence[Trial], over: str) -> str:
  """Returns a Markdown table of the tasks on the test split, followed by a list of missing tasks with the reasons.

  Args:
    runs: runs of the chosen setting, measured on the test split.
    trials: all trials of the sweep. Their values of the key `over` are the tasks.
    over: the key.
  """
  tasks = list(dict.fromkeys(trial.changes[over] for trial in trials))
  figures = {task: _collect_figures(runs, over, task) for task in tasks}
  done = {task: values for task, values in figures.items() if values}
  parts = [
    f"On split 'test', test/{METRIC} in per cent, mean of each task's runs:",
    format_table(done, tasks, _join_models(runs)),
  ]
  missing = [f"- {task}: {_find_reason(task, [*runs, *trials], over)}" for task in tasks if task not in done]
  if missing:
    parts.append("\n".join([f"Missing results of {len(missing)} of {len(tasks)} tasks:", *missing]))
  return "\n\n".join(parts)


def format_table(figures: Mapping[str, Sequence[float]], tasks: Sequence[str], model: str) -> str:
  """Returns a Markdown table of one row, with a column for each task and each mean.

  A task without figures is shown as "-". If tasks are missing, the title of a mean contains the number of tasks that it
  includes. If each task has the same number of runs, a mean has a standard deviation (n - 1). It is the deviation
  between the means over the first runs, the second runs, and so on.

  Args:
    figures: {task: figure of each run} as fractions of one.
    tasks: all tasks of the suite, in order.
    model: title of the row.
  """
  head, row = ["model"], [model]
  for task in tasks:
    head.append(vtab.TASKS[task].title if task in vtab.TASKS else task)
    row.append(f"{100 * statistics.mean(figures[task]):.1f}" if task in figures else "-")
  groups: dict[str, list[str]] = {}
  for task in tasks:
    if task in vtab.TASKS:
      groups.setdefault(vtab.TASKS[task].group.capitalize(), []).append(task)
  for title, members in [*groups.items(), ("Mean", list(tasks))]:
    present = [task for task in members if task in figures]
    head.append(title if len(present) == len(members) else f"{title} ({len(present)} of {len(members)})")
    row.append(_format_mean([figures[task] for task in present]))
  return format_markdown([head, row])


def _format_mean(values: Sequence[Sequence[float]]) -> str:
  if not values:
    return "-"
  mean = f"{100 * statistics.mean(statistics.mean(runs) for runs in values):.2f}"
  counts = {len(runs) for runs in values}
  if len(counts) > 1 or counts == {1}:
    return mean
  return f"{mean} ± {100 * statistics.stdev(statistics.mean(runs) for runs in zip(*values, strict=True)):.2f}"


def _collect_figures(runs: Iterable[Any], over: str, task: str) -> list[float]:
  done = [run for run in runs if run.changes[over] == task and run.status == "done"]
  return [run.figures[METRIC] for run in done if METRIC in run.figures]


def _join_models(runs: Iterable[Any]) -> str:
  return ", ".join(dict.fromkeys(json.loads(run.config)["model"]["name"] for run in runs if run.config)) or "-"


def _find_reason(task: str, trials: Iterable[Trial], over: str) -> str:
  """Returns the error of the first trial of a task that ended without a figure, or the trial's status."""
  own = [trial for trial in trials if trial.changes[over] == task]
  return next((trial.error for trial in own if trial.error), own[0].status)
