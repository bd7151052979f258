"""The first chapter of a report: figures of runs, expected figures of the recipe, cost, and lost time."""

import datetime
import re
import textwrap
from collections.abc import Collection, Sequence

from vit_jax import trees
from vit_jax.evals import intervals, selection
from vit_jax.evals.metrics import FALLING, is_share
from vit_jax.evals.selection import Criterion, format_name
from vit_jax.reports import published
from vit_jax.reports.page import Chapter, Paragraph, Part, Table
from vit_jax.reports.recorded import RecordedRun
from vit_jax.schema import format_amount, to_plain
from vit_jax.sweeps import results
from vit_jax.training import goodput, time_to_target

PROBE = re.compile(r"(?!.*ema_).+_([1-9]\d{0,8})shot")  # probes of the weights, not of their average


def make_chapter(runs: Sequence[RecordedRun]) -> Chapter:
  """Returns the first chapter.

  One run is shown with all figures and costs. Several runs are shown as rows, with means over seeds.
  """
  parts = _summarise_run(runs[0]) if len(runs) == 1 else _compare_runs(runs)
  return Chapter("Verdict", parts)


def select_headline_metric(run: RecordedRun) -> str | None:
  """Returns the main metric of a run, or None if no metric was measured. Top-1 on test is preferred."""
  figures = [name for name in run.figures if name.endswith("top1")] or list(run.figures)
  return min(figures, key=lambda name: ("/" in name, "ema_" in name), default=None)


def format_figure(name: str, value: float) -> str:
  """Formats a figure: shares as percentages, counts as whole numbers.

  Args:
    name: name of the figure.
    value: its value.
  """
  if name.endswith("images"):
    return f"{value:,.0f}"
  return f"{100 * value:.2f} %" if is_share(name) else f"{value:.4f}"


def format_core_hours(run: RecordedRun) -> str:
  """Returns the core-hours of a run with its devices, as text."""
  what = run.devices.get("kind", "")
  return f"{run.core_hours:,.3g}" + (f" ({run.cores} x {what})" if what else "")


def describe_progress(run: RecordedRun) -> str:
  """Returns the progress of a run as text."""
  if run.result:
    return f"finished, {format_amount(run.steps, 'step')}"
  return f"not finished: step {run.steps:,}" + (f" of {run.total:,} ({run.steps / run.total:.0%})" if run.total else "")


# One run.


def _summarise_run(run: RecordedRun) -> list[Part]:
  name = select_headline_metric(run)
  words = [
    f"{format_name(name)}: {_format_with_interval(run, name)}" if name else "Not evaluated yet",
    describe_progress(run).capitalize(),
  ]
  parts: list[Paragraph | Table] = [
    Paragraph(f"{'. '.join(words)}. {warn_of_test_use([run])}".strip()),
    *([compared] if (compared := published.summarise_verdicts(run)) else []),
    _make_origin_table(run),
    _make_expected_table(run),
    _make_figures_table(run),
    _make_time_table(run),
    _make_cost_table(run),
    _make_setting_table(run),
  ]
  return [part for part in parts if isinstance(part, Paragraph) or part.rows]


def _format_with_interval(run: RecordedRun, name: str) -> str:
  value, ends = run.figures[name], _compute_interval(run, name)
  return format_figure(name, value) + (f" (95 %: {100 * ends[0]:.2f} to {100 * ends[1]:.2f})" if ends else "")


def _compute_interval(run: RecordedRun, name: str) -> tuple[float, float] | None:
  """Returns the interval of a share if the number of its images is known."""
  return intervals.compute_figure_intervals(run.figures).get(name)


def warn_of_test_use(runs: Sequence[RecordedRun]) -> str:
  """Returns a warning if a run measured the test split before its last step, or ""."""
  times = [count_test_measurements(run) for run in runs]
  early = [before for before, _ in times if before]
  if not early:
    return ""
  before, last = max(times)
  during = (
    f"During training, split 'test' was measured {format_amount(before + last, 'time')}, {before} of them before the "
    "last step"
  )
  during += f" (the maximum of {format_amount(len(early), 'run')})" * (len(runs) > 1)
  compared = any((each := published.compare_recorded_run(run)) and not each.reason for run in runs)
  advice = (
    "To avoid this, hold out a validation split of the training images: config.data.train and config.data.val. A run "
    "with a validation split is not compared with the published curve."
    if compared
    else "To avoid this, use a validation split: config.data.val, or config.data.validation."
  )
  return f"{during}. If a setting or a step is selected by these figures, they are too high. {advice}"


def count_test_measurements(run: RecordedRun) -> tuple[int, int]:
  """Returns how often a run measured the test split before its last step, and at the last step."""
  config = to_plain(run.run)
  names = {name for name in config["evals"] if selection.describe_role(config, name) == selection.TEST}
  steps = {row["step"] for row in run.rows for key in row if key.rpartition("/")[0] in names}
  last = run.total or max(steps, default=0)
  return sum(step < last for step in steps), sum(step >= last for step in steps)


def _make_origin_table(run: RecordedRun) -> Table:
  """Returns a table with the command, the workdir, the devices, the start and the duration of a run."""
  kind, count = run.devices.get("kind"), run.devices.get("count", 0)
  processor = run.recipe.get("processor") if isinstance(run.recipe.get("processor"), str) else ""
  seconds, command = sum(run.seconds.values()), run.recipe.get("command")
  rows = [["command", command]] if isinstance(command, str) else []
  rows.append(["workdir", str(run.workdir)])
  rows += [["devices", f"{count} x {kind}" + (f", {processor}" if processor else "")]] if kind else []
  if run.start_time is not None:
    rows.append(["started", f"{datetime.datetime.fromtimestamp(run.start_time, datetime.UTC):%d %B %Y, %H:%M} UTC"])
  rows += [
    ["duration", format_duration(seconds) + (" in " + format_amount(run.attempts, "attempt")) * (run.attempts > 1)]
  ] * bool(seconds)
  return Table("Run", ["", ""], rows)


def format_duration(seconds: float) -> str:
  """Formats a time: "42 s", "3 min 5 s", "2 h 15 min"."""
  whole = round(seconds)
  if whole < 60:
    return f"{whole} s"
  return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _make_expected_table(run: RecordedRun) -> Table:
  about = run.recipe.get("about")
  rows = [[key, _find_paragraph(about, key)] for key in ("Result", "Hardware")] if isinstance(about, str) else []
  rows = [row for row in rows if row[1]]
  if changes := run.recipe.get("changes"):
    rows += [["changed by flags", "\n".join(map(str, changes))]] if isinstance(changes, list) else []
  return Table("Expected by the recipe", ["", str(run.recipe.get("config", ""))], rows)


def _find_paragraph(docstring: str, key: str) -> str:
  """Returns the text after `key:` in a recipe's docstring, up to the next key."""
  match = re.search(rf"^{key}:\s*(.*?)(?=^[A-Z]\w*:|^\s*$|\Z)", docstring, re.MULTILINE | re.DOTALL)
  return textwrap.shorten(match[1], 1000, placeholder=" …") if match else ""


def _make_figures_table(run: RecordedRun) -> Table:
  rows = []
  for name, value in run.figures.items():
    ends = _compute_interval(run, name)
    rows.append([name, format_figure(name, value), f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f} %" if ends else ""])
  about = "From the last step." if run.result else "From the last evaluation."
  return Table("Figures", ["figure", "value", f"95 % ({intervals.WILSON})"], rows, about)


def _make_cost_table(run: RecordedRun) -> Table:
  rate = run.result.get("images_per_second")
  rows = [
    ["images seen", f"{run.steps * run.run.batch:,}" + (f", of {run.records:,} different ones" if run.records else "")],
    ["core-hours, with start and evaluations", format_core_hours(run)],
    *([["images per second, without interruptions", f"{rate:,.0f}"]] if rate else []),
  ]
  if target := run.target:
    rows.append([f"time to {time_to_target.format_target(target)}", time_to_target.format_time(target)])
  for plan in run.plans:
    rows.append(
      [f"planned on {plan['rented']}", f"core-hours: {24 * plan['core_days']:,.3g}, hours: {plan['hours']:,.3g}"]
    )
  return Table("Cost", ["", ""], rows)


def _make_time_table(run: RecordedRun) -> Table:
  rows = [[name, f"{seconds:,.1f} s"] for name, seconds in run.seconds.items() if seconds >= 0.05]
  account = run.result.get("goodput", {})
  if lost := account.get(goodput.LOST):
    rows.append(["of the steps, repeated after restarts", f"{lost:,.1f} s"])
  rows += [["restarts", f"{run.attempts - 1}"]] if run.attempts else []
  rows += [["between attempts", f"{run.waited:,.1f} s"]] if run.waited else []
  rows += [["goodput", f"{100 * account['goodput']:.1f} %"]] if "goodput" in account else []
  return Table("Time by phase", ["", ""], rows)


def _make_setting_table(run: RecordedRun) -> Table:
  of = run.run
  rows = [
    ["model", of.model.name],
    ["data", of.data.name],
    ["pixels", str(of.data.args["image_size"])],
    ["batch", f"{of.batch:,}"],
    ["length", str(of.total)],
    ["optimizer", f"{of.optim.name}, rate {of.optim.args['lr']:g}"],
    ["seed", str(of.seed)],
  ]
  packages = run.result.get("packages", {})
  rows += [["packages", ", ".join(f"{name} {version}" for name, version in packages.items())]] if packages else []
  return Table("Setting", ["", ""], rows)


# Several runs.


def rank_runs(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
  """Sorts runs by their shared criterion, best first, then by loss. Runs without the criterion come last."""
  metric = find_shared_headline(runs)

  def order(run: RecordedRun) -> tuple[int, float, float]:
    name = metric if metric in run.figures else select_headline_metric(run)
    if name is None or metric is None:
      return 2, 0.0, 0.0
    value, loss = run.figures[name], run.figures.get(f"{name.rpartition('/')[0]}/loss".lstrip("/"), 0.0)
    return int(name != metric), value if name.endswith(FALLING) else -value, loss

  return sorted(runs, key=order)


def find_criterion(runs: Sequence[RecordedRun]) -> Criterion | None:
  """Returns the figure that compares runs, or None if they have no common figure.

  See `selection.select_shared_criterion`.

  Figures of different tasks are not comparable, even if their names are equal. Such runs are compared by the few-shot
  probe with the most images that all runs have. Without such a probe they are not compared.
  """
  chosen = selection.select_shared_criterion([(to_plain(run.run), run.figures) for run in runs])
  tasks = {(run.run.task.name, str(to_plain(run.run.task).get("targets"))) for run in runs}
  if chosen is None or len(tasks) == 1 or chosen.metric.endswith("top1"):
    return chosen
  shots = {name: int(match[1]) for name in runs[0].figures if (match := PROBE.fullmatch(name))}
  metric = max(
    (name for name in shots if all(name in run.figures for run in runs)), key=lambda name: shots[name], default=None
  )
  return Criterion(metric, selection.find_metric_role(to_plain(runs[0].run), metric)) if metric else None


def find_shared_headline(runs: Sequence[RecordedRun]) -> str | None:
  """Returns the name of the figure that compares runs, or None."""
  chosen = find_criterion(runs)
  return chosen and chosen.metric


def _describe_best(runs: Sequence[RecordedRun], chosen: Criterion) -> str:
  """Returns text that names the best run, the criterion and its split, and states whether the lead is significant."""
  metric, order = chosen.metric, rank_runs(runs)
  words = f"The best of {format_amount(len(runs), 'run')} by {chosen} is "
  words += f"{order[0].name}: {_format_with_interval(order[0], metric)}."
  if len(order) > 1:
    words += " " + results.describe_lead([order[0].figures], [order[1].figures], metric, order[1].name)
  if chosen.split == selection.TEST:
    words += (
      " The best run is selected on 'test', not on a validation split. Its figure is therefore too high on average."
    )
  return words


def _compare_runs(runs: Sequence[RecordedRun]) -> list[Part]:
  chosen = find_criterion(runs)
  metric = chosen and chosen.metric
  measured = [run for run in runs if metric in run.figures]
  parts: list[Part] = []
  if measured and chosen:
    parts.append(Paragraph(f"{_describe_best(measured, chosen)} {warn_of_test_use(measured)}".strip()))
  elif any(run.figures for run in runs):
    parts.append(Paragraph("These runs have different tasks and no common figure, so they are not ranked."))
  others = list(dict.fromkeys(name for run in runs if (name := select_headline_metric(run)) not in (None, metric)))[:3]
  head = ["run", format_name(metric) if metric else "", f"95 % ({intervals.WILSON})", *map(format_name, others)]
  targets = {time_to_target.format_target(run.target) for run in runs if run.target}
  head += [f"time to {min(targets) if len(targets) == 1 else 'target'}"] if targets else []
  head += ["images seen", "core-hours", "images/s", "restarts", "state"]
  parts.append(Table("Runs", head, [_make_row(run, metric, others, targets) for run in runs]))
  if metric and (seeds := _group_over_seeds(measured, metric)):
    parts.append(Table("Over seeds", ["runs", f"{format_name(metric)}: mean ± standard deviation (runs)"], seeds))
  if rows := compare_configs(runs):
    table: list[Sequence[str]] = [["key", *(run.name for run in runs)], *rows]
    if len(rows) < len(runs):  # the narrower of both tables
      table = list(zip(*table, strict=True))
    parts.append(Table("Differences between their configs", table[0], table[1:], "Without the evaluations."))
  return parts


def _make_row(run: RecordedRun, metric: str | None, others: Sequence[str], targets: Collection[str]) -> list[str]:
  ends = _compute_interval(run, metric) if metric in run.figures else None
  rate = run.result.get("images_per_second")
  return [
    run.name,
    format_figure(metric, run.figures[metric]) if metric in run.figures else "-",
    f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f} %" if ends else "",
    *(format_figure(name, run.figures[name]) if name in run.figures else "-" for name in others),
    *([_format_target(run, targets)] if targets else []),
    f"{run.steps * run.run.batch:,}",
    format_core_hours(run),
    f"{rate:,.0f}" if rate else "",
    f"{max(run.attempts - 1, 0)}",
    describe_progress(run),
  ]


def _format_target(run: RecordedRun, targets: Collection[str]) -> str:
  """Returns the time to the target of a run, with the target if the runs have different targets."""
  if run.target is None:
    return "-"
  time = time_to_target.format_time(run.target)
  return time if len(targets) == 1 else f"{time_to_target.format_target(run.target)}: {time}"


def _group_over_seeds(runs: Sequence[RecordedRun], metric: str) -> list[list[str]]:
  """Returns rows for the groups of runs that differ only in their seed."""
  groups = {}
  for run in runs:
    groups.setdefault(repr({**to_plain(run.run), "seed": None}), []).append(run)
  return [
    [
      ", ".join(run.name for run in group),
      results.format_mean_and_deviation([run.figures[metric] for run in group], is_share(metric)),
    ]
    for group in groups.values()
    if len(group) > 1
  ]


def compare_configs(runs: Sequence[RecordedRun]) -> list[list[str]]:
  """Returns rows (key, value of each run) for the keys of the configs that differ, except evaluations."""
  values = [dict(trees.iterate_leaves({**to_plain(run.run), "evals": {}})) for run in runs]
  keys = dict.fromkeys(key for each in values for key in each)
  rows = [[key, *(str(each[key]) if key in each else "-" for each in values)] for key in keys]
  return [row for row in rows if len(set(row[1:])) > 1]
