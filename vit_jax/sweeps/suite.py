"""What came of the tasks of a suite: a column each, means of groups and of all; of VTAB as its papers have them.

Means are of percentages, unweighted: of a group over its tasks, of all over all tasks, which is not the mean of the
groups (VTAB's leaderboard). A task's own figure is the mean of its runs.
"""

import json
import statistics
from collections.abc import Mapping, Sequence

from vit_jax.data.catalog import vtab
from vit_jax.sweeps.results import markdown
from vit_jax.sweeps.trials import Trial

METRIC = "top1"  # of all tasks of VTAB, those with classes of unequal size too


def report(runs: Sequence[Trial], trials: Sequence[Trial], over: str) -> str:
  """Markdown: a table of the tasks on test, by the `runs` of the chosen setting, and which are missing and why.

  Args:
    runs: measured on test.
    trials: all of the sweep, whose values of the key `over` are the tasks.
    over: the key.
  """
  tasks = list(dict.fromkeys(trial.changes[over] for trial in trials))
  figures = {task: _figures(runs, over, task) for task in tasks}
  done = {task: values for task, values in figures.items() if values}
  parts = [f"On split 'test', test/{METRIC} in per cent, mean of each task's runs:", table(done, tasks, _models(runs))]
  missing = [f"- {task}: {_reason(task, [*runs, *trials], over)}" for task in tasks if task not in done]
  if missing:
    parts.append("\n".join([f"Missing, {len(missing)} of {len(tasks)}:", *missing]))
  return "\n\n".join(parts)


def table(figures: Mapping[str, Sequence[float]], tasks: Sequence[str], model: str) -> str:
  """Markdown of one row: a column for each of the tasks, "-" for one without figures, and one for each mean.

  A mean says of how many tasks it is where some are missing; with equally many runs of each task it has their standard
  deviation (n - 1), that of the means of the first runs, of the second, ...

  Args:
    figures: {task: of each run}, shares of one.
    tasks: all of the suite, in order.
    model: what the row is called.
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
    row.append(_mean([figures[task] for task in present]))
  return markdown([head, row])


def _mean(values):
  if not values:
    return "-"
  mean = f"{100 * statistics.mean(statistics.mean(runs) for runs in values):.2f}"
  counts = {len(runs) for runs in values}
  if len(counts) > 1 or counts == {1}:
    return mean
  return f"{mean} ± {100 * statistics.stdev(statistics.mean(runs) for runs in zip(*values, strict=True)):.2f}"


def _figures(runs, over, task):
  done = [run for run in runs if run.changes[over] == task and run.status == "done"]
  return [run.figures[METRIC] for run in done if METRIC in run.figures]


def _models(runs):
  return ", ".join(dict.fromkeys(json.loads(run.config)["model"]["name"] for run in runs if run.config)) or "-"


def _reason(task, trials, over):
  """What the first of its trials that has ended without a figure says; the end of it is what to do."""
  own = [trial for trial in trials if trial.changes[over] == task]
  return next((trial.error for trial in own if trial.error), own[0].status)
