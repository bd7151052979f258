"""The chapter on scaling: accuracy of runs over compute, parameters, FLOPs and number of images."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from vit_jax import models, trees
from vit_jax.evals.metrics import is_share
from vit_jax.evals.selection import format_name
from vit_jax.models import flops
from vit_jax.reports import drawing
from vit_jax.reports.curves import format_count
from vit_jax.reports.page import Chapter, Charts, Part, Table
from vit_jax.reports.recorded import RecordedRun
from vit_jax.reports.verdict import find_shared_headline, format_figure
from vit_jax.tasks import cost

NAMED = 12  # maximum number of points for which a chart has room for the names
_LINES = [f"{line}{marker}" for marker in "os^D" for line in ("-", "--", ":", "-.")]
_SHOTS = re.compile(r"(.+)_([1-9]\d{0,8})shot")


class RunSize(NamedTuple):
  """The size of a model and of its training.

  Attributes:
    parameters: number of parameters.
    forward: GFLOP of the forward pass for one image. A multiply-accumulate counts as two.
    flops: FLOPs of the whole training, forward and backward.
    images: number of different training images.
    core_hours: core-hours of the run.
  """

  parameters: int
  forward: float
  flops: float
  images: int
  core_hours: float


AXES = {
  "core_hours": "core-hours",
  "flops": "training FLOPs (forward and backward)",
  "parameters": "parameters",
  "forward": "GFLOP per image (forward pass)",
  "images": "number of training images",
}


def make_chapter(runs: Sequence[RecordedRun]) -> Chapter:
  """Returns charts of the runs' shared metric over each quantity that differs between them, as in both papers."""
  metric = find_shared_headline(runs)
  measured = [run for run in runs if metric in run.figures]
  parts: list[Part] = []
  if metric is not None and len(measured) > 1:
    sizes = [measure_size(run) for run in measured]
    axes = [axis for axis in AXES if len({getattr(each, axis) for each in sizes} - {0}) > 1]
    if axes:
      parts.append(
        Charts(
          f"{format_name(metric)} against its cost", [_draw_metric(measured, sizes, axis, metric) for axis in axes]
        )
      )
    parts.append(
      Table(
        "Sizes",
        ["run", format_name(metric), *AXES.values()],
        [_make_row(run, each, metric) for run, each in zip(measured, sizes, strict=True)],
      )
    )
  if shots := {run.name: curve for run in runs if (curve := read_few_shot(run))}:
    about = "Top-1 of a linear probe on the features, by number of training images per class."
    parts.append(Charts("Few-shot", [_draw_few_shot(shots)], about))
  return Chapter("Scaling", parts)


def measure_size(run: RecordedRun) -> RunSize:
  """Returns the size of a run's model and training, or zeros if no checkpoint describes the model."""
  forward = cost.count_model_flops(run.description) if run.description else 0
  parameters = trees.count_values(models.make_functional(run.description).shapes()) if run.description else 0
  training = float(flops.TRAINING * forward * run.steps * run.run.batch)
  return RunSize(parameters, forward / 1e9, training, run.records or 0, run.core_hours)


def read_few_shot(run: RecordedRun) -> dict[str, list[tuple[int, float]]]:
  """Returns the few-shot results of a run: {probe: [(images per class, top-1), ...]}, in order."""
  curves: dict[str, list[tuple[int, float]]] = {}
  for name, value in run.figures.items():
    if match := _SHOTS.fullmatch(name):
      curves.setdefault(match[1], []).append((int(match[2]), value))
  return {probe: sorted(points) for probe, points in curves.items()}


def _draw_metric(runs: Sequence[RecordedRun], sizes: Sequence[RunSize], axis: str, metric: str) -> str:
  """Draws the metric over one of the axes as SVG."""
  scale = 100 if is_share(metric) else 1
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(3.6, 2.8)
    for number, (run, each) in enumerate(zip(runs, sizes, strict=True)):
      if not (x := getattr(each, axis)):
        continue
      colour = drawing.SERIES[number] if number < drawing.COLOURED else drawing.FAINT
      axes.plot([x], [scale * run.figures[metric]], "o", color=colour)
      if len(runs) <= NAMED:
        name = drawing.fit_text(run.name)
        axes.annotate(name, (x, scale * run.figures[metric]), (4, 4), textcoords="offset points", fontsize=7)
    axes.set_title(format_name(metric) + (", %" if scale == 100 else ""), loc="left")
    axes.set_xlabel(AXES[axis])
    axes.margins(x=0.15, y=0.15)
    _format_count_axis(axes, [getattr(each, axis) for each in sizes])
    return drawing.render_svg(figure, f"scaling {axis}")


def _format_count_axis(axes: Axes, values: Sequence[float]) -> None:
  """Formats an axis of counts. The axis is logarithmic if the counts differ by more than a factor of 5."""
  values = [value for value in values if value]
  if max(values) > 5 * min(values):
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
  else:
    drawing.limit_ticks(axes.xaxis)
  axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
  axes.xaxis.set_minor_formatter("")


def _draw_few_shot(shots: Mapping[str, Any]) -> str:
  """Draws top-1 of probes over images per class as SVG, from {run: {probe: points}}."""
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(4.8, 3.2)
    for number, (run, curves) in enumerate(shots.items()):
      for (probe, points), line in zip(curves.items(), itertools.cycle(_LINES), strict=False):
        colour = drawing.SERIES[number] if number < drawing.COLOURED else drawing.FAINT
        label = drawing.fit_label(f"{run}: {probe}", 40) if number < drawing.COLOURED else None
        axes.plot(*zip(*((count, 100 * top1) for count, top1 in points), strict=True), line, color=colour, label=label)
    axes.set_title("top-1, %", loc="left")
    axes.set_xlabel("images of each class")
    _format_count_axis(axes, [count for curves in shots.values() for points in curves.values() for count, _ in points])
    axes.legend(fontsize=7)
    return drawing.render_svg(figure, "few-shot")


def _make_row(run: RecordedRun, each: RunSize, metric: str) -> list[str]:
  counts = [
    f"{each.core_hours:,.3g}",
    f"{each.flops:.3g}",
    f"{each.parameters:,}",
    f"{each.forward:.3g}",
    f"{each.images:,}",
  ]
  return [run.name, format_figure(metric, run.figures[metric]), *counts]
