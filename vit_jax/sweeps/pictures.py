"""Plots of a sweep that need no display: settings side by side, and the influence of each key."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax.evals.plots import DPI, shorten_name
from vit_jax.schema import format_amount
from vit_jax.storage import files

ROWS, LONGEST = 40, 48  # maximum number of settings in one picture, and of characters in the name of a setting
NUMBERED = ("seed", "data.split_seed")  # keys with numbers that serve as names: 2 is not between 1 and 3
Row = tuple[Mapping[str, object], float]  # changes of a trial, its metric


def draw_settings(groups: Mapping[str, Sequence[float]], metric: str, path: pathlib.Path) -> None:
  """Draws a PNG with one row per setting: its trials, their mean and their standard deviation (n - 1).

  Args:
    groups: {name of a setting: metric of each trial}, in the order of the rows.
    metric: name of the metric.
    path: path of the picture.

  Raises:
    ConfigError: the path does not end in .png, or it cannot be written.
  """
  files.check_path(path, (".png",))
  assert groups and all(groups.values())
  figure = Figure(figsize=(8, 1.2 + 0.35 * len(groups)), layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  for row, values in enumerate(groups.values()):
    axes.plot(values, [row] * len(values), "o", color="C0", alpha=0.5, markersize=5)
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
    axes.errorbar(np.mean(values), row, xerr=deviation, marker="|", markersize=14, color="C1", capsize=3)
  axes.set_yticks(range(len(groups)), [shorten_name(name, LONGEST) for name in groups], parse_math=False)
  axes.set_ylim(len(groups) - 0.5, -0.5)
  axes.set_xlabel(metric)
  axes.grid(axis="x", alpha=0.3)
  axes.set_title("trials, mean ± standard deviation", fontsize=10)
  with files.atomic_write(path) as partial:
    figure.savefig(partial, format="png", dpi=DPI)


def draw_effects(rows: Sequence[Row], keys: Sequence[str], metric: str, path: pathlib.Path) -> None:
  """Draws a PNG with one panel per key: the metric of all trials over the key's values, and the means.

  Titles and order of the panels show the share of the metric's variance that each key explains on its own.

  Args:
    rows: (changes, metric) of each trial.
    keys: keys of the config.
    metric: name of the metric.
    path: path of the picture.

  Raises:
    ConfigError: the path does not end in .png, or it cannot be written.
  """
  files.check_path(path, (".png",))
  assert rows and keys
  panels = sorted(((compute_eta_squared(rows, key), key) for key in keys), key=lambda panel: -panel[0])
  figure = Figure(figsize=(1.2 + 3.2 * len(panels), 4), layout="constrained")
  FigureCanvasAgg(figure)
  every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axes, (share, key) in zip(every, panels, strict=True):
    draw_panel(axes, group_by_value(rows, key), key)
    axes.set_title(f"{shorten_name(key)}: {share:.0%}", fontsize=10, parse_math=False)
  every[0].set_ylabel(metric)
  figure.suptitle(f"{format_amount(len(rows), 'trial')}; share of variance that each key explains", fontsize=10)
  with files.atomic_write(path) as partial:
    figure.savefig(partial, format="png", dpi=DPI)


def draw_panel(axes: Axes, groups: Mapping[Any, Sequence[float]], key: str) -> None:
  """Draws the metrics of each value of a key, and their means. A line joins the means if the values have an order.

  Args:
    axes: empty axes.
    groups: {value of the key: metrics}, from `group_by_value`.
    key: key of the config.
  """
  numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in groups)
  # Numbers are drawn to scale if there are many of them. Names and few numbers are drawn at equal distances.
  to_scale = numeric and len(groups) > 6 and key not in NUMBERED
  positions = list(groups) if to_scale else range(len(groups))
  for position, metrics in zip(positions, groups.values(), strict=True):
    at = [position] * len(metrics) if to_scale else position + np.linspace(-0.15, 0.15, len(metrics) + 2)[1:-1]
    axes.plot(at, metrics, "o", color="C0", alpha=0.5, markersize=5)
  means, joined = [np.mean(metrics) for metrics in groups.values()], numeric and key not in NUMBERED
  axes.plot(positions, means, linestyle="-" if joined else "none", marker="_", markersize=18, color="C1", linewidth=1)
  if to_scale and min(groups) > 0 and max(groups) > 20 * min(groups):
    axes.set_xscale("log")
  if not to_scale:
    axes.set_xticks(positions, [shorten_name(str(value)) for value in groups], parse_math=False)
    axes.tick_params(axis="x", labelrotation=0 if len(groups) < 4 else 45)
    axes.set_xlim(-0.5, len(groups) - 0.5)
  axes.grid(axis="y", alpha=0.3)


def compute_eta_squared(rows: Sequence[Row], key: str) -> float:
  """Returns the share of the metric's variance that a key explains (eta squared).

  It is the variance of the means per value, divided by the total variance. Each trial has the same weight.

  Args:
    rows: (changes, metric) of each trial.
    key: a key of the config.
  """
  metrics = np.array([metric for _, metric in rows])
  whole = np.sum((metrics - metrics.mean()) ** 2)
  groups = group_by_value(rows, key).values()
  between = sum(len(group) * (np.mean(group) - metrics.mean()) ** 2 for group in groups)
  return float(between / whole) if whole else 0.0


def group_by_value(rows: Iterable[tuple[Mapping[str, object], float]], key: str) -> dict[Any, list[float]]:
  """Groups the metrics of trials by the value of a key.

  Args:
    rows: (changes, metric) of each trial.
    key: key of the config.

  Returns:
    {value of the key: metrics}, with numbers in order and before other values.
  """
  groups = {}
  for changes, metric in rows:
    value = changes.get(key, "as it is")
    groups.setdefault(value if isinstance(value, int | float | str) else str(value), []).append(metric)
  return dict(sorted(groups.items(), key=lambda item: (isinstance(item[0], str), item[0])))
