"""Curves of the metrics of runs over images seen and over core-hours."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.ticker import LogLocator

from vit_jax.certificates import LEVEL
from vit_jax.evals import selection
from vit_jax.reports import drawing, published
from vit_jax.reports.interactive import make_interactive
from vit_jax.reports.page import Chapter, Charts, Part
from vit_jax.reports.recorded import RecordedRun
from vit_jax.reports.verdict import PROBE, count_test_measurements
from vit_jax.schema import to_plain

FEW = 4  # maximum number of runs for which a chart has room for the names
DRAWN = 4000  # maximum number of points of all curves of a chart


class Panel(NamedTuple):
  """A chart with a title and metrics. The first metric is a solid line, the others are dashed.

  Attributes:
    title: title of the chart.
    metrics: names of the metrics.
    percent: whether values are shown as percentages.
    logarithmic: whether the vertical axis is logarithmic.
  """

  title: str
  metrics: Sequence[str]
  percent: bool = False
  logarithmic: bool = False


BY_HOURS = ("loss", "top-1")


def make_chapter(runs: Sequence[RecordedRun]) -> Chapter:
  """Returns the chapter with charts of all runs over images seen and over core-hours of training."""
  runs = [run for run in runs if run.rows]
  parts: list[Part] = []
  about = " and ".join(
    panel.title for panel in select_panels(runs) if panel.title in BY_HOURS and len(panel.metrics) > 1
  )
  about = f"In {about}, solid lines show training, and dashed lines show {_find_held_out(runs)[1]}." if about else ""
  if any("shot" in panel.title and len(panel.metrics) > 1 for panel in select_panels(runs)):
    about += " For probes, dashed lines show the averaged weights."
  bands = published.find_bands(runs)
  if bands:
    names_of_curves = " or ".join(band.curve for band in bands)
    about += f" The grey area contains a further run of {names_of_curves} with a probability of at least {LEVEL:.0%}."
  names = [draw_legend(runs)] if len(runs) > FEW else []
  if images := [draw_panel(runs, panel, "images", bands) for panel in select_panels(runs)]:
    parts.append(Charts("Against images seen", images + names, about))
  parts += published.make_tables(runs)
  if hours := [draw_panel(runs, panel, "hours") for panel in select_panels(runs) if panel.title in BY_HOURS]:
    parts.append(
      Charts("Against core-hours of training", hours, "The hours do not include start, evaluations and checkpoints.")
    )
  if len(runs) > 1:
    parts.append(make_interactive(runs, [name for panel in select_panels(runs) for name in panel.metrics]))
  return Chapter("Curves", parts)


def select_panels(runs: Sequence[RecordedRun]) -> list[Panel]:
  """Returns the charts for which at least one run has points."""
  names = dict.fromkeys(key for run in runs for row in run.rows for key in row)
  held_out = [_find_held_out(runs)[0].get(what, "") for what in ("loss", "top1")]
  every = [
    Panel("loss", ["train/loss", held_out[0]]),
    Panel("top-1", ["train/top1", held_out[1]], percent=True),
    Panel("learning rate", ["train/learning_rate"]),
    Panel("gradient norm", ["train/gradient_norm"], logarithmic=True),
    Panel("images a second", ["images_per_second"]),
    Panel("waiting for data", ["data_wait"], percent=True),
    Panel("MFU", ["mfu"], percent=True),
    *_make_probe_panels(names),
  ]
  kept = [panel._replace(metrics=[name for name in panel.metrics if name in names]) for panel in every]
  return [panel for panel in kept if panel.metrics]


def _find_held_out(runs: Sequence[RecordedRun]) -> tuple[dict[str, str], str]:
  """Returns ({"loss" or "top1": metric}, names of their splits). Prefers the validation split, then the test split."""
  ranks, found = {selection.VAL: 0, selection.TEST: 1}, {}
  configs = [to_plain(run.run) for run in runs]
  roles = {
    name: selection.find_metric_role(config, name)
    for config, run in zip(configs, runs, strict=True)
    for row in run.rows
    for name in row
    if name.endswith(("/loss", "/top1")) and not name.startswith("train/")
  }
  for what in ("loss", "top1"):
    of = [name for name in roles if name.endswith(f"/{what}")]
    if of:
      found[what] = min(of, key=lambda name: ranks.get(roles[name], 2))
  splits = list(dict.fromkeys(roles[name] for name in found.values()))
  early = selection.TEST in splits and any(count_test_measurements(run)[0] for run in runs)
  named = f"the split{'s' * (len(splits) > 1)} {' and '.join(map(repr, splits))}"
  return found, named + (", with 'test' measured during training" if early else "")


def _make_probe_panels(names: Iterable[str]) -> list[Panel]:
  """Returns a chart for each few-shot probe of weights and their average, at its largest number of images per class."""
  most: dict[str, tuple[int, str]] = {}
  for name in names:
    if match := PROBE.fullmatch(name):
      probe = name.removesuffix(f"_{match[1]}shot")
      most[probe] = max(most.get(probe, (0, "")), (int(match[1]), name))
  return [
    Panel(name.replace("_", " "), [name, "/ema_".join(name.rsplit("/", 1))], percent=True) for _, name in most.values()
  ]


def draw_panel(
  runs: Sequence[RecordedRun], panel: Panel, over: str, bands: Sequence[published.PublishedBand] = ()
) -> str:
  """Draws a panel as SVG. Runs without a colour are faint.

  Args:
    runs: the runs.
    panel: the panel.
    over: horizontal axis, "images" or "hours".
    bands: expected ranges of metrics over images, drawn behind the curves of these metrics.
  """
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(3.6, 2.5)
    scale = 100 if panel.percent else 1
    for band in bands:
      if band.metric in panel.metrics:
        axes.fill_between(
          band.images, scale * band.low, scale * band.high, color=drawing.FAINT, alpha=0.35, linewidth=0
        )
    for number, run in list(enumerate(runs))[::-1]:
      colour = drawing.SERIES[number] if number < drawing.COLOURED else drawing.FAINT
      for metric, line in zip(panel.metrics, ("-", "--"), strict=False):
        series = run.series(metric).thin_out(max(20, DRAWN // len(runs)))
        few: dict[str, Any] = {"marker": "o", "markersize": 3} if len(series.values) < 20 else {}
        first = metric == panel.metrics[0] and number < drawing.COLOURED and len(series.values)
        named: dict[str, Any] = {"label": drawing.fit_label(run.name, 40)} if first else {}
        axes.plot(getattr(series, over), scale * series.values, line, color=colour, **few, **named)
    axes.set_title(panel.title + (", %" if panel.percent else ""), loc="left")
    axes.set_xlabel("images seen" if over == "images" else "core-hours")
    if panel.logarithmic and any((run.series(panel.metrics[0]).values > 0).any() for run in runs):
      axes.set_yscale("log")
      axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
      axes.yaxis.set_major_formatter("{x:g}")
      axes.yaxis.set_minor_formatter("")
    drawing.limit_ticks(axes.xaxis)
    if over == "images":
      axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
    if 1 < len(runs) <= FEW and panel.title == "loss":
      handles, labels = axes.get_legend_handles_labels()
      axes.legend(handles[::-1], labels[::-1], fontsize=7)
    return drawing.render_svg(figure, f"{panel.title} {over}")


def draw_legend(runs: Sequence[RecordedRun]) -> str:
  """Draws the names of runs as SVG, for charts without room for them."""
  count = min(len(runs), drawing.COLOURED)
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(3.6, 2.5)
    axes.set_axis_off()
    for number, run in enumerate(runs[:count]):
      axes.plot([], [], color=drawing.SERIES[number], label=drawing.fit_label(run.name, 40))
    more = f"{len(runs) - count} more runs have faint lines" if len(runs) > count else None
    axes.legend(loc="upper left", fontsize=8, title=more, borderaxespad=0)
    return drawing.render_svg(figure, "names")


def format_count(count: float) -> str:
  """Returns a count in short form, such as 25M."""
  for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if abs(count) >= unit:
      return f"{count / unit:.4g}{letter}"
  return f"{count:.4g}"
