"""Pictures of what a model does, drawn without a display: a confusion matrix, images with words below them."""

import functools
import io
import math
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vit_jax import files
from vit_jax.schema import amount

DPI = 150
NAMED, NUMBERED = 50, 20  # classes up to which there is room for names, and for numbers in the cells
LONGEST = 24  # characters of a name
TILE, LINE = 1.2, 0.11  # inches: a side of an image in a sheet, and a line of words


def confusion(matrix: np.ndarray, names: Sequence[str], path: pathlib.Path) -> None:
  """Writes a PNG of a confusion matrix, see `confusion_figure`.

  `path` ends in .png; ConfigError for any other, or where there is no such folder.
  """
  files.check_path(path, (".png",))
  content = png(confusion_figure(matrix, names), DPI)
  with files.replacing(path) as partial:
    partial.write_bytes(content)


def confusion_figure(matrix: np.ndarray, names: Sequence[str]) -> Figure:
  """The share of each label's images that each class was predicted for.

  By objects, never pyplot, which keeps figures of its own and may look for a display.

  Args:
    matrix: images by label (row) and prediction (column), [V, V].
    names: of the classes, V.
  """
  classes = len(names)
  assert matrix.shape == (classes, classes), (matrix.shape, classes)
  share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)  # a class without images has an empty row

  # A cell of half an inch holds a number, one of a quarter a name beside it; 10 inches are 1,500 pixels.
  side = np.clip(classes / 2, 4, 10) if classes <= NUMBERED else np.clip(classes / 4, 10, 12.5)
  figure = Figure(figsize=(side + 3, side + 2), layout="constrained")
  axes = figure.add_subplot()
  # By the square root: a confusion of 2 % would be as white as none.
  drawn = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
  bar = figure.colorbar(drawn, ax=axes, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1], shrink=0.8)
  bar.set_label("share of the label's images")
  images = int(matrix.sum())
  axes.set(xlabel="prediction", ylabel="label")
  axes.set_title(f"{amount(images, 'image')}, top-1 {100 * np.trace(matrix) / max(images, 1):.2f} %")
  if classes <= NAMED:
    short = [shortened(name) for name in names]
    # A name with two dollar signs is no formula.
    axes.set_xticks(range(classes), short, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(classes), short, fontsize=8, parse_math=False)
  if classes <= NUMBERED:
    _number(axes, share)
  return figure


def sheet(images: Sequence[np.ndarray | None], words: Sequence[Sequence[str]], columns: int = 8) -> Figure:
  """Images in rows, with lines of words below each.

  Args:
    images: uint8 [H, W, 3] of any sizes; None where there is nothing to see.
    words: of each image as many lines as of the others.
    columns: images in a row.
  """
  columns, lines = min(columns, max(len(images), 1)), max(map(len, words), default=0)
  rows = max(1, math.ceil(len(images) / columns))
  figure = Figure(figsize=(columns * TILE, rows * (TILE + lines * LINE)))
  cells = figure.subplots(rows, columns, squeeze=False)
  height = TILE / (TILE + lines * LINE)  # of an image, as a share of its cell
  for i, axes in enumerate(cells.flat):
    row, column = divmod(i, columns)
    axes.set_position((column / columns, 1 - (row + 0.96 * height) / rows, 0.96 / columns, 0.96 * height / rows))
    axes.set_axis_off()
    if i >= len(images):
      continue
    if images[i] is not None:
      axes.imshow(images[i], interpolation="nearest")
      axes.set_anchor("S")  # above its words, whatever its shape
    text = "\n".join(map(shortened, words[i]))
    below = (0.5, 1 - 0.98) if images[i] is None else (0.5, -0.02)
    axes.text(
      *below, text, transform=axes.transAxes, ha="center", va="top", fontsize=6, parse_math=False, clip_on=False
    )
  return figure


def png(figure: Figure, dpi: int) -> bytes:
  """A figure as the bytes of a PNG."""
  FigureCanvasAgg(figure)
  with io.BytesIO() as file:
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def _number(axes, share):
  """Writes per cent into the cells that are not empty."""
  for row, column in zip(*np.nonzero(share), strict=True):
    value = share[row, column]
    colour = "white" if value > 0.3 else "black"  # of a dark or a light blue
    axes.text(column, row, f"{100 * value:.3g}", ha="center", va="center", fontsize=7, color=colour)


def shortened(name: str, most: int = LONGEST) -> str:
  """Returns a name on one line of at most `most` characters that can be drawn, see `drawable`."""
  characters = [drawable(character) for character in " ".join(name.split())]
  if sum(map(len, characters)) <= most:
    return "".join(characters)
  kept = ""
  for character in characters:
    if len(kept) + len(character) >= most:
      break
    kept += character
  return kept + "…"


def drawable(text: str) -> str:
  """Returns a text of characters that the font can draw.

  Each other character becomes its number in Unicode, such as U+1F431, and half of a surrogate pair a question mark.
  """
  font = _font()
  characters = text.encode("utf-8", "replace").decode()
  return "".join(
    character if character == "\n" or font.get_char_index(ord(character)) else f"U+{ord(character):04X}"
    for character in characters
  )


@functools.cache
def _font():
  """The font of all pictures, which matplotlib has with it."""
  return font_manager.get_font(font_manager.findfont("DejaVu Sans"))
