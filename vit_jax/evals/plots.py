"""Drawing without a display: confusion matrices, and sheets of images with captions."""

import functools
import io
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vit_jax.schema import format_amount
from vit_jax.storage import files

DPI = 150
NAMED, NUMBERED = 50, 20  # maximum number of classes for names on the axes, and for numbers in the cells
LONGEST = 24  # maximum number of characters of a name
TILE, LINE = 1.2, 0.11  # inches: side of an image in a sheet, and height of a caption line


def write_confusion_png(matrix: np.ndarray, names: Sequence[str], path: pathlib.Path) -> None:
  """Writes a PNG of a confusion matrix, see `draw_confusion`.

  Args:
    matrix: number of images by label (row) and prediction (column), (V, V).
    names: names of the V classes.
    path: the file, with the suffix .png.

  Raises:
    ConfigError: the suffix is not .png, or the directory does not exist.
  """
  files.check_path(path, (".png",))
  content = render_png(draw_confusion(matrix, names), DPI)
  with files.atomic_write(path) as partial:
    partial.write_bytes(content)


def draw_confusion(matrix: np.ndarray, names: Sequence[str]) -> Figure:
  """Draws the share of each label's images that was predicted as each class.

  The figure is built without pyplot, which keeps global figures and may look for a display.

  Args:
    matrix: number of images by label (row) and prediction (column), (V, V).
    names: names of the V classes.
  """
  classes = len(names)
  assert matrix.shape == (classes, classes), (matrix.shape, classes)
  share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)  # a class without images has an empty row

  # A cell of half an inch has room for a number, and one of a quarter inch for a name on the axis. 10 inches are 1,500
  # pixels.
  side = np.clip(classes / 2, 4, 10) if classes <= NUMBERED else np.clip(classes / 4, 10, 12.5)
  figure = Figure(figsize=(side + 3, side + 2), layout="constrained")
  axes = figure.add_subplot()
  # The square root makes a confusion of 2 % visible.
  drawn = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
  bar = figure.colorbar(drawn, ax=axes, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1], shrink=0.8)
  bar.set_label("share of the label's images")
  images = int(matrix.sum())
  axes.set(xlabel="prediction", ylabel="label")
  axes.set_title(f"{format_amount(images, 'image')}, top-1 {100 * np.trace(matrix) / max(images, 1):.2f} %")
  if classes <= NAMED:
    short = [shorten_name(name) for name in names]
    # A name with two dollar signs is not a formula.
    axes.set_xticks(range(classes), short, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(classes), short, fontsize=8, parse_math=False)
  if classes <= NUMBERED:
    write_percentages(axes, share)
  return figure


def draw_image_grid(images: Sequence[np.ndarray | None], words: Sequence[Sequence[str]], columns: int = 8) -> Figure:
  """Draws images in rows, with a caption below each.

  Args:
    images: uint8 arrays (H, W, 3) of any size, or None for an image that is not available.
    words: caption lines of each image. All captions have the same number of lines.
    columns: number of images per row.
  """
  columns, lines = min(columns, max(len(images), 1)), max(map(len, words), default=0)
  rows, step = max(1, math.ceil(len(images) / columns)), TILE + lines * LINE
  figure = Figure(figsize=(columns * TILE, rows * step))
  # One Axes whose unit is the inch. An Axes for each image takes twice the time.
  axes = figure.add_axes((0, 0, 1, 1))
  axes.set_axis_off()
  side = 0.96 * TILE  # side of the square for one image, in inches
  for i, (image, lines_of_image) in enumerate(zip(images, words, strict=True)):
    row, column = divmod(i, columns)
    centre, bottom = column * TILE + side / 2, (rows - row) * step - side
    if image is not None:
      height, width = (side * length / max(image.shape[:2]) for length in image.shape[:2])
      box = (centre - width / 2, centre + width / 2, bottom, bottom + height)  # directly above the caption
      axes.imshow(image, interpolation="nearest", aspect="auto", extent=box)
    text = "\n".join(map(shorten_name, lines_of_image))
    below = bottom + 0.02 * (side if image is None else -height)
    axes.text(centre, below, text, ha="center", va="top", fontsize=6, parse_math=False)
  axes.set(xlim=(0, columns * TILE), ylim=(0, rows * step))
  return figure


def render_png(figure: Figure, dpi: int) -> bytes:
  """Renders a figure as the bytes of a PNG file.

  Args:
    figure: the figure.
    dpi: resolution in pixels per inch.
  """
  FigureCanvasAgg(figure)
  with io.BytesIO() as file:
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def write_percentages(axes: Axes, share: np.ndarray) -> None:
  """Writes percentages into the cells that are not empty.

  Args:
    axes: axes of a drawn confusion matrix.
    share: fractions of shape (rows, columns).
  """
  for row, column in zip(*np.nonzero(share), strict=True):
    value = share[row, column]
    colour = "white" if value > 0.3 else "black"  # on dark or light blue
    axes.text(column, row, f"{100 * value:.3g}", ha="center", va="center", fontsize=7, color=colour)


def shorten_name(name: str, most: int = LONGEST) -> str:
  """Returns a name on one line that the font can draw, see `replace_undrawable`.

  Args:
    name: the name.
    most: maximum number of characters.
  """
  characters = [replace_undrawable(character) for character in " ".join(name.split())]
  if sum(map(len, characters)) <= most:
    return "".join(characters)
  kept = ""
  for character in characters:
    if len(kept) + len(character) >= most:
      break
    kept += character
  return kept + "…"


def replace_undrawable(text: str) -> str:
  """Replaces characters that the font cannot draw.

  Such a character becomes its Unicode number, such as U+1F431. An unpaired surrogate becomes a question mark.
  """
  font = _load_font()
  characters = text.encode("utf-8", "replace").decode()
  return "".join(
    character if character == "\n" or font.get_char_index(ord(character)) else f"U+{ord(character):04X}"
    for character in characters
  )


@functools.cache
def _load_font() -> Any:
  """Returns the font of all pictures, which is part of matplotlib."""
  return font_manager.get_font(font_manager.findfont("DejaVu Sans"))
