"""The contact sheet: rows of images with names and labels, drawn without a display."""

import pathlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.corpora.stats import ConspicuousImages
from vit_jax.data.sources import Source
from vit_jax.evals.plots import LONGEST, replace_undrawable, shorten_name
from vit_jax.reports.preview_batch import PreviewExample
from vit_jax.schema import format_amount
from vit_jax.storage import files
from vit_jax.training.bound_run import BoundRun

# In pixels.
DPI, WIDTH, EDGE = 100, 1600, 20
TILE, LINE = 120, 14
COLUMN = 130  # width of a tile and the gap to the next one
PAIRS = TILE + 4 * LINE  # height of a row of the batch, with three lines of text
KIND = TILE + 8 * LINE  # height of a row of outliers, with text above and below
WORST = (WIDTH - 2 * EDGE) // COLUMN  # number of tiles in a row
CHART = 130  # height
NAMED = 50  # maximum number of classes for which each bar has a name
_LISTED = 5  # number of the largest and of the smallest classes to list
_RED, _GREY, _BLUE = "#b00020", "#666666", "#0b5394"

Picture = np.ndarray | None  # uint8 (H, W, 3), or None if there is no image


class TextBox(NamedTuple):
  """A text with its upper left corner at (x, y), cut off at a width.

  Attributes:
    x: position from the left in pixels.
    y: position from the top in pixels.
    words: the text.
    width: maximum width in pixels.
    colour: colour of the text.
    size: font size in points.
    bold: whether the font is bold.
  """

  x: float
  y: float
  words: str
  width: float = TILE
  colour: str = "black"
  size: float = 6.0
  bold: bool = False


class Tile(NamedTuple):
  """An image centred in a square of size TILE, or a cross if the image is missing.

  Attributes:
    x: position from the left in pixels.
    y: position from the top in pixels.
    pixels: the image or None.
  """

  x: float
  y: float
  pixels: Picture


def draw_sheet(
  path: pathlib.Path,
  run: BoundRun,
  source: Source,
  batch: tuple[Sequence[PreviewExample], bool],
  classes: tuple[np.ndarray, int],
  looked_at: int,
  worst: Mapping[str, tuple[ConspicuousImages, Sequence[tuple[Picture, ...]]]],
) -> None:
  """Draws the sheet as a PNG, 1,600 pixels wide.

  Args:
    path: the file, with the suffix .png.
    run: the run.
    source: its training images.
    batch: examples of the first batch, and whether they are mixed exactly as in the run.
    classes: number of images of each class (V,), and the number of records in which they were counted.
    looked_at: number of records that were examined for outliers.
    worst: maps names of the kinds of outliers to (kind, images of the worst outliers).

  Raises:
    ConfigError: the suffix is not .png, or the directory does not exist.
  """
  files.check_path(path, (".png",))
  items, top, height = _arrange_sheet(run, source, batch, classes, looked_at, worst)
  figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
  FigureCanvasAgg(figure)
  page = figure.add_axes((0, 0, 1, 1), autoscale_on=False, xlim=(0, WIDTH), ylim=(height, 0))
  page.set_axis_off()
  for item in items:
    if isinstance(item, TextBox):
      _draw_text(page, item)
    else:
      _draw_tile(page, item)
  left, right = EDGE + 40, WIDTH - 400
  bars = figure.add_axes((left / WIDTH, 1 - (top + CHART) / height, (right - left) / WIDTH, CHART / height))
  draw_bars(bars, classes[0], source.classes)
  with files.atomic_write(path) as partial:
    figure.savefig(partial, format="png", dpi=DPI)


# Layout.


def _arrange_sheet(
  run: BoundRun,
  source: Source,
  batch: tuple[Sequence[PreviewExample], bool],
  classes: tuple[np.ndarray, int],
  looked_at: int,
  worst: Mapping[str, tuple[ConspicuousImages, Sequence[tuple[Picture, ...]]]],
) -> tuple[list[Tile | TextBox], int, int]:
  """Returns (texts and tiles, top of the chart of classes, height of the sheet)."""
  examples, exact = batch
  items: list[Tile | TextBox] = [
    *_arrange_title(EDGE, f"{source.name}, {source.split}", describe_batch(run, source, exact))
  ]
  items += _arrange_pairs(examples, source, y := EDGE + 4 * LINE)
  y += -(-len(examples) // (WORST // 2)) * PAIRS + LINE
  counts, counted = classes
  items += _arrange_title(
    y, "Classes", f"number of images of each class in {caption(counted, source)}, the largest class first"
  )
  items += arrange_extremes(counts, source.classes, y + 2 * LINE)
  top = y + 2 * LINE
  longest = max(len(shorten_name(name)) for name in source.classes) if len(counts) <= NAMED else 3
  y = top + max(CHART + 15 + 6 * longest, (2 * _LISTED + 2) * LINE) + LINE
  items += _arrange_title(y, "What stands out", f"of {caption(looked_at, source)}" + ("" if worst else ": nothing"))
  y += 2 * LINE
  x = EDGE
  for name, (kind, pictures) in worst.items():
    some, width = arrange_outliers(name, kind, pictures, source)
    if x > EDGE and x + width > WIDTH - EDGE:
      x, y = EDGE, y + KIND
    items += [item._replace(x=item.x + x, y=item.y + y) for item in some]
    x += width + COLUMN // 3
  return items, top, y + KIND * bool(worst) + EDGE


def _arrange_title(y: int, name: str, about: str) -> Iterable[TextBox]:
  yield TextBox(EDGE, y, name, WIDTH - 2 * EDGE, size=11, bold=True)
  yield TextBox(EDGE + 9 * (len(name) + 3), y + 3, about, WIDTH, _GREY, 8.5)


def describe_batch(run: BoundRun, source: Source, exact: bool) -> str:
  """Describes the images of a batch and their augmentation.

  Args:
    run: a completed run.
    source: its training images.
    exact: whether the images are mixed exactly as in the run.
  """
  data = run.data
  named = {"policy": data.policy, "warp": data.warp, "mixing": data.mixing, "erasing": data.erasing}
  changes = [f"{key} {choice.name}" for key, choice in named.items() if choice.name != "none"]
  changes = [f"crop {data.crop.name}", *["flip"] * data.flip, *changes]
  smoothing = run.task.args.get("label_smoothing")
  return (
    f"{format_amount(len(source), 'image')}, {format_amount(len(source.classes), 'class', 'classes')}.  Left: the "
    f"image. Right: the model's input in "
    f"the first step: seed {run.seed}, batch {run.batch:,}, {data.image_size} pixels, {', '.join(changes)}"
    + (f"; labels before smoothing by {smoothing:g}" if smoothing else "")
    + ("" if exact else "; mixed with other shares than the run's")
  )


def caption(count: int, source: Source) -> str:
  """Returns "all N images" or "N of M images".

  Args:
    count: number of images.
    source: the training images.
  """
  return f"all {format_amount(count, 'image')}" if count == len(source) else f"{count:,} of {len(source):,} images"


def _arrange_pairs(examples: Sequence[PreviewExample], source: Source, y: int) -> Iterator[Tile | TextBox]:
  """Yields pairs of tiles and their texts: an image, and the corresponding input of the model."""
  for number, example in enumerate(examples):
    row, column = divmod(number, WORST // 2)
    x, top = EDGE + 2 * COLUMN * column, y + row * PAIRS
    yield Tile(x, top, example.original)
    yield Tile(x + TILE + 4, top, example.seen)
    below = top + TILE + 2
    yield TextBox(x, below, shorten_path(source.display_name(example.record)), colour=_GREY)
    if example.error:
      yield TextBox(x, below + LINE, example.error, 2 * TILE, _RED)
    else:
      yield TextBox(x, below + LINE, _format_labels(example.labels, source))
    for line, (label, share) in enumerate(example.target[:3] if is_mixed(example) else ()):
      words = f"{share:.0%} {shorten_name(source.classes[label])}"
      yield TextBox(x + TILE + 4, below + line * LINE, words, colour=_BLUE)


def is_mixed(example: PreviewExample) -> bool:
  """Returns whether the target of an example differs from its labels."""
  shares = {round(share, 3) for _, share in example.target}
  return {label for label, _ in example.target} != set(example.labels) or len(shares) > 1


def _format_labels(labels: Sequence[int], source: Source) -> str:
  return ", ".join(shorten_name(source.classes[label]) for label in labels) if labels else "no label"


def arrange_extremes(counts: np.ndarray, names: Sequence[str], y: int) -> Iterator[TextBox]:
  """Yields texts on the largest and smallest classes.

  Args:
    counts: number of images of each class, of shape (V,).
    names: name of each class.
    y: vertical position of the first line, in pixels.
  """
  order = np.argsort(-counts, kind="stable")
  least = order[::-1][: min(_LISTED, max(0, len(order) - _LISTED))][::-1]
  lines = [
    f"median {np.median(counts):,.6g}, mean {counts.mean():,.1f}; "
    f"{format_amount(int(np.sum(counts == 0)), 'class', 'classes')} without images"
  ]
  lines += [f"{counts[i]:>9,}  {shorten_name(names[i])}" for i in order[:_LISTED]]
  lines += ["        …"] * (len(order) > 2 * _LISTED) + [f"{counts[i]:>9,}  {shorten_name(names[i])}" for i in least]
  for line, words in enumerate(lines):
    yield TextBox(WIDTH - 370, y + line * LINE, words, 350, size=7)


def arrange_outliers(
  name: str, kind: ConspicuousImages, pictures: Sequence[Sequence[np.ndarray | None]], source: Source
) -> tuple[list[Tile | TextBox], int]:
  """Arranges the outliers of one group.

  Args:
    name: title of the group.
    kind: the outliers.
    pictures: for each outlier, the pixels of its images, or None for images that cannot be read.
    source: the source of the images.

  Returns:
    Texts and tiles relative to (0, 0), and their width in pixels.
  """
  width = 3 * COLUMN
  items: list[Tile | TextBox] = []
  x, y, shown = 0, 2 * LINE + 6, 0
  for (severity, looks), tiles in zip(kind.worst, pictures, strict=False):
    wide = 2 if looks[0].error else len(looks)  # number of columns; the text of an error needs two
    if x + wide * COLUMN > WIDTH - 2 * EDGE:
      break
    odd = len({frozenset(look.labels) for look in looks}) > 1  # equal images with different labels
    for number, (look, pixels) in enumerate(zip(looks, tiles, strict=True)):
      left, below = x + number * (TILE + 4), y + TILE + 2
      items += [
        Tile(left, y, pixels),
        TextBox(left, below, shorten_path(source.display_name(look.record)), colour=_GREY),
      ]
      if look.error:
        for line, words in enumerate(textwrap.wrap(look.error, 2 * LONGEST)[:4]):
          items.append(TextBox(left, below + (1 + line) * LINE, words, 2 * COLUMN - 8, _RED))
        continue
      items.append(TextBox(left, below + LINE, _format_labels(look.labels, source), colour=_RED if odd else "black"))
      items.append(TextBox(left, below + 2 * LINE, f"{look.width:,} x {look.height:,}", colour=_GREY))
      if number:
        items.append(TextBox(left, below + 3 * LINE, f"different bits: {severity:.0f}", colour=_GREY))
    x, shown = x + wide * COLUMN, shown + 1
  width = max(width, x)
  more = f", of which the worst {shown} are shown. The JSON file contains more" if shown < kind.count else ""
  colour = _GREY if kind.harmless else _RED
  items.append(TextBox(0, 0, f"{name}: {kind.count:,}{more}", width, colour, 8.5, bold=True))
  items.append(TextBox(0, LINE, kind.about, width, _GREY, 7))
  return items, width


def shorten_path(name: str) -> str:
  """Returns the last part of a path on one line, with at most 24 characters. The middle of a longer name is omitted."""
  words = " ".join(name.rstrip("/").rpartition("/")[2].encode("utf-8", "replace").decode().split())
  half = LONGEST // 2
  return words if len(words) <= LONGEST else f"{words[: half - 1]}…{words[-half:]}"


# Drawing.


def _draw_text(page: Axes, text: TextBox) -> None:
  weight = "bold" if text.bold else "normal"
  # A name with two dollar signs is not a formula.
  drawn = page.text(
    text.x,
    text.y,
    replace_undrawable(text.words),
    fontsize=text.size,
    color=text.colour,
    va="top",
    parse_math=False,
    weight=weight,
    clip_on=True,
  )
  drawn.set_clip_path(Rectangle((text.x, text.y - 2), text.width, 2 * LINE, transform=page.transData))


def _draw_tile(page: Axes, tile: Tile) -> None:
  if tile.pixels is None:
    page.add_patch(Rectangle((tile.x, tile.y), TILE, TILE, facecolor="#eeeeee", edgecolor="#bbbbbb", linewidth=0.5))
    for ends in ((tile.y, tile.y + TILE), (tile.y + TILE, tile.y)):
      page.plot((tile.x, tile.x + TILE), ends, color="#bbbbbb", linewidth=0.8)
    return
  height, width = tile.pixels.shape[:2]
  share = TILE / max(height, width)
  height, width = max(1, round(height * share)), max(1, round(width * share))
  # Enlarged pixels stay squares, so that the resolution is visible.
  how = cv2.INTER_NEAREST if share > 1 else cv2.INTER_AREA
  pixels = cv2.resize(tile.pixels, (width, height), interpolation=how)
  left, top = tile.x + (TILE - width) // 2, tile.y + (TILE - height) // 2
  # a border makes white images visible
  page.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor="#bbbbbb", linewidth=0.5))
  page.imshow(pixels, extent=(left, left + width, top + height, top), aspect="auto", interpolation="nearest")


def draw_bars(axes: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
  """Draws the number of images of each class: bars, or an area if there are too many classes.

  Args:
    axes: empty axes.
    counts: number of images of each class, of shape (V,).
    names: name of each class.
  """
  order = np.argsort(-counts, kind="stable")
  heights, at = counts[order], np.arange(len(counts))
  if len(counts) <= NAMED:
    axes.bar(at, heights, color="#4a7ebb", width=0.8)
    axes.set_xticks(at, [shorten_name(names[i]) for i in order], rotation=90, fontsize=6.5, parse_math=False)
  else:
    corners = np.repeat(np.arange(len(counts) + 1) - 0.5, 2)[1:-1]  # `stairs` would take seconds for 21,843 classes
    axes.fill_between(corners, np.repeat(heights, 2), color="#4a7ebb", linewidth=0)
    axes.set_xlabel("classes, by their number of images", fontsize=7, labelpad=1)
  if heights[0] > 50 * max(1, np.median(heights)):
    axes.set_yscale("symlog", linthresh=1)
  axes.set(xlim=(-0.5, len(counts) - 0.5), ylim=(0, None))
  axes.tick_params(labelsize=6.5)
  axes.grid(axis="y", alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
