"""The picture of a confusion matrix, drawn without a display."""

import pathlib
import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vit_jax import files

DPI = 150
NAMED, NUMBERED = 50, 20  # classes up to which there is room for names, and for numbers in the cells
LONGEST = 24  # characters of a name


def confusion(matrix: np.ndarray, names: Sequence[str], path: pathlib.Path) -> None:
  """Draws a PNG of a confusion matrix: the share of each label's images that each class was predicted for.

  By objects, never pyplot, which keeps figures of its own and may look for a display.

  Args:
    matrix: images by label (row) and prediction (column), [V, V].
    names: of the classes, V.
    path: ends in .png; ConfigError for any other, or where there is no such folder.
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
    short = [shortened(name) for name in names]
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


def shortened(name: str) -> str:
  """The name on one line of at most 24 characters that can be drawn; bytes that are not UTF-8 become question marks."""
  name = " ".join(name.encode("utf-8", "replace").decode().split())
  return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
