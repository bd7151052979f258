"""The first chapter of a report: figures of runs, expected figures of the recipe, cost, and lost time."""

import datetime
import re
import textwrap
from collections.abc import Sequence

from vit_jax import clock, intervals, selection, trees
from vit_jax.metrics import FALLING, is_share
from vit_jax.reports.page import Chapter, Part, Table, Words
from vit_jax.reports.recorded import Recorded
from vit_jax.schema import amount, plain
from vit_jax.selection import Criterion, shown
from vit_jax.sweeps import results

PROBE = re.compile(r"(?!.*ema_).+_([1-9]\d{0,8})shot")  # probes of the weights, not of their average


def chapter(runs: Sequence[Recorded]) -> Chapter:
  """Returns the first chapter.

  One run is shown with all figures and costs. Several runs are shown as rows, with means over seeds.
  """
  parts = _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)
  return Chapter("Verdict", parts)


def headline(run: Recorded) -> str | None:
  """Returns the main metric of a run, or None if no metric was measured. Top-1 on test is preferred."""
  figures = [name for name in run.figures if name.endswith("top1")] or list(run.figures)
  return min(figures, key=lambda name: ("/" in name, "ema_" in name), default=None)


def text(name: str, value: float) -> str:
  """Formats a figure: shares as percentages, counts as whole numbers.

  Args:
    name: name of the figure.
    value: its value.
  """
  if name.endswith("images"):
    return f"{value:,.0f}"
  return f"{100 * value:.2f} %" if is_share(name) else f"{value:.4f}"


def core_hours(run: Recorded) -> str:
  """Returns the core-hours of a run with its devices, as text."""
  what = run.devices.get("kind", "")
  return f"{run.core_hours:,.3g}" + (f" ({run.cores} x {what})" if what else "")


def state(run: Recorded) -> str:
  """Returns the progress of a run as text."""
  if run.result:
    return f"finished, {amount(run.steps, 'step')}"
  return f"not finished: step {run.steps:,}" + (f" of {run.total:,} ({run.steps / run.total:.0%})" if run.total else "")


# One run.


def _of_one(run) -> list[Part]:
  name = headline(run)
  words = [f"{shown(name)}: {_with_interval(run, name)}" if name else "Not evaluated yet", state(run).capitalize()]
  parts = [
    Words(f"{'. '.join(words)}. {use_of_test([run])}".strip()),
    _origin(run),
    _expected(run),
    _figures(run),
    _time(run),
    _cost(run),
    _setting(run),
  ]
  return [part for part in parts if isinstance(part, Words) or part.rows]


def _with_interval(run, name):
  value, ends = run.figures[name], _ends(run, name)
  return text(name, value) + (f" (95 %: {100 * ends[0]:.2f} to {100 * ends[1]:.2f})" if ends else "")


def _ends(run, name):
  """Returns the interval of a share if the number of its images is known."""
  return intervals.of_figures(run.figures).get(name)


def use_of_test(runs: Sequence[Recorded]) -> str:
  """Returns a warning if a run measured the test split before its last step, or ""."""
  times = [measured_on_test(run) for run in runs]
  early = [before for before, _ in times if before]
  if not early:
    return ""
  during = f"{amount(max(early), 'time')} during training" + (f", by {amount(len(early), 'run')}" * (len(runs) > 1))
  return (
    f"Split 'test' was measured {during}. If a setting or a step is selected by these figures, they are too high. "
    "To avoid this, use a validation split: config.data.val, or config.data.validation."
  )


def measured_on_test(run: Recorded) -> tuple[int, int]:
  """Returns how often a run measured the test split before its last step, and at the last step."""
  config = plain(run.run)
  names = {name for name in config["evals"] if selection.role(config, name) == selection.TEST}
  steps = {row["step"] for row in run.rows for key in row if key.rpartition("/")[0] in names}
  last = run.total or max(steps, default=0)
  return sum(step < last for step in steps), sum(step >= last for step in steps)


def _origin(run) -> Table:
  """Returns a table with the command, the workdir, the devices, the start and the duration of a run."""
  kind, count = run.devices.get("kind"), run.devices.get("count", 0)
  processor = run.recipe.get("processor") if isinstance(run.recipe.get("processor"), str) else ""
  seconds, command = sum(run.seconds.values()), run.recipe.get("command")
  rows = [["command", command]] if isinstance(command, str) else []
  rows.append(["workdir", str(run.workdir)])
  rows += [["devices", f"{count} x {kind}" + (f", {processor}" if processor else "")]] if kind else []
  if run.began is not None:
    rows.append(["started", f"{datetime.datetime.fromtimestamp(run.began, datetime.UTC):%d %B %Y, %H:%M} UTC"])
  rows += [["duration", duration(seconds) + (" in " + amount(run.attempts, "attempt")) * (run.attempts > 1)]] * bool(
    seconds
  )
  return Table("Run", ["", ""], rows)


def duration(seconds: float) -> str:
  """Formats a time: "42 s", "3 min 5 s", "2 h 15 min"."""
  whole = round(seconds)
  if whole < 60:
    return f"{whole} s"
  return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _expected(run) -> Table:
  said = run.recipe.get("about")
  rows = [[key, _paragraph(said, key)] for key in ("Result", "Hardware")] if isinstance(said, str) else []
  rows = [row for row in rows if row[1]]
  if changes := run.recipe.get("changes"):
    rows += [["changed by flags", "\n".join(map(str, changes))]] if isinstance(changes, list) else []
  return Table("Expected by the recipe", ["", str(run.recipe.get("config", ""))], rows)


def _paragraph(docstring, key) -> str:
  """Returns the text after `key:` in a recipe's docstring, up to the next key."""
  match = re.search(rf"^{key}:\s*(.*?)(?=^[A-Z]\w*:|^\s*$|\Z)", docstring, re.MULTILINE | re.DOTALL)
  return textwrap.shorten(match[1], 1000, placeholder=" …") if match else ""


def _figures(run) -> Table:
  rows = []
  for name, value in run.figures.items():
    ends = _ends(run, name)
    rows.append([name, text(name, value), f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f} %" if ends else ""])
  about = "From the last step." if run.result else "From the last evaluation."
  return Table("Figures", ["figure", "value", f"95 % ({intervals.WILSON})"], rows, about)


def _cost(run) -> Table:
  rate = run.result.get("images_per_second")
  rows = [
    ["images seen", f"{run.steps * run.run.batch:,}" + (f", of {run.records:,} different ones" if run.records else "")],
    ["core-hours, with start and evaluations", core_hours(run)],
    *([["images per second, without interruptions", f"{rate:,.0f}"]] if rate else []),
  ]
  for plan in run.plans:
    rows.append(
      [f"planned on {plan['rented']}", f"core-hours: {24 * plan['core_days']:,.3g}, hours: {plan['hours']:,.3g}"]
    )
  return Table("Cost", ["", ""], rows)


def _time(run) -> Table:
  rows = [[name, f"{seconds:,.1f} s"] for name, seconds in run.seconds.items() if seconds >= 0.05]
  account = run.result.get("goodput", {})
  if lost := account.get(clock.LOST):
    rows.append(["of the steps, repeated after restarts", f"{lost:,.1f} s"])
  rows += [["restarts", f"{run.attempts - 1}"]] if run.attempts else []
  rows += [["between attempts", f"{run.waited:,.1f} s"]] if run.waited else []
  rows += [["goodput", f"{100 * account['goodput']:.1f} %"]] if "goodput" in account else []
  return Table("Time by phase", ["", ""], rows)


def _setting(run) -> Table:
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


def ranked(runs: Sequence[Recorded]) -> list[Recorded]:
  """Sorts runs by their shared criterion, best first, then by loss. Runs without the criterion come last."""
  metric = shared_headline(runs)

  def order(run):
    name = metric if metric in run.figures else headline(run)
    if name is None or metric is None:
      return 2, 0.0, 0.0
    value, loss = run.figures[name], run.figures.get(f"{name.rpartition('/')[0]}/loss".lstrip("/"), 0.0)
    return int(name != metric), value if name.endswith(FALLING) else -value, loss

  return sorted(runs, key=order)


def criterion(runs: Sequence[Recorded]) -> Criterion | None:
  """Returns the figure that compares runs, see `selection.shared`, or None if they have no common figure.

  Figures of different tasks are not comparable, even if their names are equal. Such runs are compared by the few-shot
  probe with the most images that all runs have. Without such a probe they are not compared.
  """
  chosen = selection.shared([(plain(run.run), run.figures) for run in runs])
  tasks = {(run.run.task.name, str(plain(run.run.task).get("targets"))) for run in runs}
  if chosen is None or len(tasks) == 1 or chosen.metric.endswith("top1"):
    return chosen
  shots = {name: int(match[1]) for name in runs[0].figures if (match := PROBE.fullmatch(name))}
  metric = max((name for name in shots if all(name in run.figures for run in runs)), key=shots.get, default=None)
  return metric and Criterion(metric, selection.role_of(plain(runs[0].run), metric))


def shared_headline(runs: Sequence[Recorded]) -> str | None:
  """Returns the name of the figure that compares runs, or None."""
  chosen = criterion(runs)
  return chosen and chosen.metric


def _best(runs, chosen) -> str:
  """Returns text that names the best run, the criterion and its split, and states whether the lead is significant."""
  metric, order = chosen.metric, ranked(runs)
  words = f"The best of {amount(len(runs), 'run')} by {chosen} is {order[0].name}: {_with_interval(order[0], metric)}."
  if len(order) > 1:
    words += " " + results.lead([order[0].figures], [order[1].figures], metric, order[1].name)
  if chosen.split == selection.TEST:
    words += (
      " The best run is selected on 'test', not on a validation split. Its figure is therefore too high on average."
    )
  return words


def _of_several(runs) -> list[Part]:
  chosen = criterion(runs)
  metric = chosen and chosen.metric
  measured = [run for run in runs if metric in run.figures]
  parts: list[Part] = []
  if measured:
    parts.append(Words(f"{_best(measured, chosen)} {use_of_test(measured)}".strip()))
  elif any(run.figures for run in runs):
    parts.append(Words("These runs have different tasks and no common figure, so they are not ranked."))
  others = list(dict.fromkeys(name for run in runs if (name := headline(run)) not in (None, metric)))[:3]
  head = ["run", shown(metric) if metric else "", f"95 % ({intervals.WILSON})", *map(shown, others)]
  head += ["images seen", "core-hours", "images/s", "restarts", "state"]
  parts.append(Table("Runs", head, [_row(run, metric, others) for run in runs]))
  if seeds := _over_seeds(measured, metric):
    parts.append(Table("Over seeds", ["runs", f"{shown(metric)}: mean ± standard deviation (runs)"], seeds))
  if rows := differences(runs):
    table = [["key", *(run.name for run in runs)], *rows]
    if len(rows) < len(runs):  # the narrower of both tables
      table = list(zip(*table, strict=True))
    parts.append(Table("Differences between their configs", table[0], table[1:], "Without the evaluations."))
  return parts


def _row(run, metric, others):
  ends = _ends(run, metric) if metric in run.figures else None
  rate = run.result.get("images_per_second")
  return [
    run.name,
    text(metric, run.figures[metric]) if metric in run.figures else "-",
    f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f} %" if ends else "",
    *(text(name, run.figures[name]) if name in run.figures else "-" for name in others),
    f"{run.steps * run.run.batch:,}",
    core_hours(run),
    f"{rate:,.0f}" if rate else "",
    f"{max(run.attempts - 1, 0)}",
    state(run),
  ]


def _over_seeds(runs, metric):
  """Returns rows for the groups of runs that differ only in their seed."""
  groups = {}
  for run in runs:
    groups.setdefault(repr({**plain(run.run), "seed": None}), []).append(run)
  return [
    [
      ", ".join(run.name for run in group),
      results.mean_and_deviation([run.figures[metric] for run in group], is_share(metric)),
    ]
    for group in groups.values()
    if len(group) > 1
  ]


def differences(runs: Sequence[Recorded]) -> list[list[str]]:
  """Returns rows (key, value of each run) for the keys of the configs that differ, except evaluations."""
  values = [dict(trees.leaves({**plain(run.run), "evals": {}})) for run in runs]
  keys = dict.fromkeys(key for each in values for key in each)
  rows = [[key, *(str(each[key]) if key in each else "-" for each in values)] for key in keys]
  return [row for row in rows if len(set(row[1:])) > 1]
