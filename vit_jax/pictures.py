"""Pictures, drawn without a display."""

import pathlib
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vit_jax import files

DPI = 150
NAMED, NUMBERED = 50, 20  # classes up to which there is room for names, and for numbers in the cells
LONGEST = 24  # characters of a name


def confusion(matrix: np.ndarray, names: Sequence[str], path: pathlib.Path) -> None:
  """PNG of a confusion matrix [V, V] of images: the share of each label's images that each class was predicted for.

  Drawn by objects, never pyplot, which keeps figures of its own and may look for a display.
  """
  files.check_path(path, (".png",))
  classes = len(names)
  assert matrix.shape == (classes, classes), (matrix.shape, classes)
  share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)  # a class without images has an empty row

  # A cell of half an inch holds a number, one of a quarter a name beside it; 10 inches are 1,500 pixels.
  side = np.clip(classes / 2, 4, 10) if classes <= NUMBERED else np.clip(classes / 4, 10, 12.5)
  figure = Figure(figsize=(side + 3, side + 2), layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.add_subplot()
  # By the square root: a confusion of 2 % would be as white as none.
  drawn = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
  bar = figure.colorbar(drawn, ax=axes, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1], shrink=0.8)
  bar.set_label("share of the label's images")
  images = int(matrix.sum())
  axes.set(xlabel="prediction", ylabel="label")
  axes.set_title(f"{images:,} images, top-1 {100 * np.trace(matrix) / max(images, 1):.2f} %")
  if classes <= NAMED:
    short = [_short(name) for name in names]
    # A name with two dollar signs is no formula.
    axes.set_xticks(range(classes), short, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(classes), short, fontsize=8, parse_math=False)
  if classes <= NUMBERED:
    _number(axes, share)
  with warnings.catch_warnings(), files.replacing(path) as partial:
    # A character that the font lacks is drawn as a box.
    warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
    figure.savefig(partial, format="png", dpi=DPI)


def _number(axes, share):
  """Writes per cent into the cells that are not empty."""
  for row, column in zip(*np.nonzero(share), strict=True):
    value = share[row, column]
    colour = "white" if value > 0.3 else "black"  # of a dark or a light blue
    axes.text(column, row, f"{100 * value:.3g}", ha="center", va="center", fontsize=7, color=colour)


def effects(
  rows: Sequence[tuple[Mapping[str, object], float]], keys: Sequence[str], figure: str, path: pathlib.Path
) -> None:
  """PNG of which setting matters: a panel for each key, a figure of all trials over its values, and their means.

  Above each panel, and the order of panels: the share of the variance of the figure that the key's values explain, one
  key at a time. `rows` are (changes, figure).
  """
  files.check_path(path, (".png",))
  assert rows and keys
  values = np.array([value for _, value in rows])
  panels = sorted(((_explained(rows, key), key) for key in keys), key=lambda panel: -panel[0])
  drawn = Figure(figsize=(1.2 + 3.2 * len(panels), 4), layout="constrained")
  FigureCanvasAgg(drawn)
  every = drawn.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axes, (share, key) in zip(every, panels, strict=True):
    groups = _by_value(rows, key)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in groups)
    # Numbers stand where they belong if there is room for them, names side by side.
    spread = numbers and len(groups) > 6
    places = list(groups) if spread else range(len(groups))
    for place, found in zip(places, groups.values(), strict=True):
      axes.plot([place] * len(found), found, "o", color="C0", alpha=0.5, markersize=5)
    means = [np.mean(found) for found in groups.values()]
    axes.plot(places, means, "-" if numbers else "", marker="_", markersize=18, color="C1", linewidth=1)
    if spread and min(groups) > 0 and max(groups) > 20 * min(groups):
      axes.set_xscale("log")
    if not spread:
      axes.set_xticks(places, [_short(str(value)) for value in groups], parse_math=False)
      axes.tick_params(axis="x", labelrotation=0 if len(groups) < 4 else 45)
      axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_title(f"{_short(key)}: {share:.0%}", fontsize=10, parse_math=False)
    axes.grid(axis="y", alpha=0.3)
  every[0].set_ylabel(figure)
  drawn.suptitle(f"{len(values)} trials; share of variance that each key explains", fontsize=10)
  with files.replacing(path) as partial:
    drawn.savefig(partial, format="png", dpi=DPI)


def _by_value(rows, key):
  """Figures by the value of a key, numbers in order."""
  found = {}
  for changes, value in rows:
    setting = changes.get(key, "as it is")
    found.setdefault(setting if isinstance(setting, int | float | str) else str(setting), []).append(value)
  return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _explained(rows, key):
  """Variance of the means by value over the whole variance, each trial counting once (eta squared)."""
  values = np.array([value for _, value in rows])
  whole = np.sum((values - values.mean()) ** 2)
  between = sum(len(found) * (np.mean(found) - values.mean()) ** 2 for found in _by_value(rows, key).values())
  return float(between / whole) if whole else 0.0


def _short(name):
  """One line of at most 24 characters that can be drawn; bytes that are not UTF-8 become question marks."""
  name = " ".join(name.encode("utf-8", "replace").decode().split())
  return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
