"""The chapter on mistakes of a model: confusions, calibration, images of the worst mistakes, and figures per class.

Shapes: N images, V classes, C classes that occur.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vit_jax.data import crops
from vit_jax.data.sources import Source
from vit_jax.evals import metrics
from vit_jax.evals.accuracy import AccuracyDetails
from vit_jax.evals.intervals import METHODS, NONE
from vit_jax.evals.metrics import Predictions
from vit_jax.reports import drawing, page, reliability
from vit_jax.reports.drawing import fit_text
from vit_jax.reports.page import Part, Table
from vit_jax.schema import format_amount

TITLE = "What it got wrong"
NAMED, NUMBERED = 50, 20  # maximum number of classes for names on the axes, and for numbers in the cells
DRAWN = 1000  # maximum number of classes for a picture of all confusions
CELLS = 250  # maximum number of cells on a side; with more classes, a cell represents several
PAIRS = 20  # maximum number of confused pairs in the table
SHOWN, SIDE = 18, 96  # maximum number of images in a gallery, and their size in CSS pixels
LISTED, OPEN = 1000, 12  # maximum number of classes in a table, and the number up to which the table is open
LONGEST = 60  # maximum number of characters of a name in a table
STRONGEST = 0.55  # maximum opacity of a cell; numbers stay readable in light and dark mode
RIGHT, WRONG = (0x3F, 0x87, 0xD4), (0xE0, 0x6A, 0x1B)  # visible on white and on black

Squares = Callable[[Sequence[int]], Sequence[np.ndarray | None]]


def make_chapter(
  details: AccuracyDetails,
  squares: Squares,
  intervals: Mapping[str, tuple[float, float]] | None = None,
  split_size: int | None = None,
  about: str = "",
) -> page.Chapter:
  """Returns the chapter. Its figures are those of `metrics`.

  Args:
    details: details of an accuracy evaluation.
    squares: function from positions in the source to cropped and scaled images, uint8 (S, S, 3). It returns None for an
      image that no longer exists.
    intervals: intervals of figures by name, if they were computed.
    split_size: number of images of the split, if only some of them were evaluated.
    about: additional text for the introduction.
  """
  source, predictions, way = details
  count, names = len(predictions.best), source.classes
  if not count:
    return page.Chapter(TITLE, [page.Paragraph(f"{_format_split(source)} has no image that could be evaluated.")])
  right = _find_right(predictions)
  all_ = (
    f"all {format_amount(count, 'image')}"
    if split_size in (None, count)
    else f"{count:,} of {format_amount(split_size, 'image')}"
  )
  words = f"{_format_split(source)}, {all_}: {right.sum():,} right, {count - right.sum():,} wrong. {about}".strip()
  if predictions.label.ndim == 2:
    words += (
      f" An image has up to {format_amount(source.labels, 'label')}, and is right if the best class is one of them."
    )
  counts, taken = metrics.count_per_class(predictions, len(names)), _count_confused(predictions, right)
  parts = [
    _make_figures_table(predictions, len(names), intervals or {}, way),
    *_show_confusion(predictions, names),
    *_make_pairs_table(taken, counts, names),
    *reliability.make_parts(metrics.bin_by_confidence(predictions, len(names)), predictions.confidence, right),
    *_make_worst_gallery(details, right, squares),
    *_make_uncertain_gallery(details, right, squares),
    _make_classes_table(counts, taken, names),
  ]
  return page.Chapter(TITLE, parts, words)


def _format_split(source: Source) -> str:
  return f"{fit_text(source.name, LONGEST)}, {fit_text(source.split, LONGEST)}"


def _find_right(predictions: Predictions) -> np.ndarray:
  """Returns whether the best class is a label, bool (N,)."""
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  return (labels == predictions.best[:, :1]).any(1)


def _make_figures_table(
  predictions: Predictions, classes: int, intervals: Mapping[str, tuple[float, float]], way: str
) -> Table:
  """Returns a table of all figures with their intervals and methods."""

  def text(name: str, value: float) -> str:
    if name == "images":
      return f"{value:,}"
    return f"{value:.4f}" if name == "loss" else format_percent(value)

  rows, without = [], []
  for name, value in metrics.compute_metrics(predictions, classes).items():
    ends, method = intervals.get(way + name), metrics.choose_interval_method(name, predictions)
    if ends is None and intervals and name not in ("images", "average_precision"):
      without.append(way + name)
    interval = ["", ""] if ends is None else [" to ".join(text(name, end) for end in ends), method]
    rows.append([name if name == "images" else way + name, text(name, value), *interval])
  about = METHODS + (f" No interval for {', '.join(without)}: {NONE}." if without else "")
  return page.Table("Figures", ["figure", "value", "95 % interval", "method"], rows, about, open=False)


def format_percent(share: float) -> str:
  """Formats a share as a percentage."""
  return f"{100 * share:.2f} %"


# Confusions of classes.


Confused = tuple[np.ndarray, np.ndarray, np.ndarray]  # see `_count_confused`


def _count_confused(predictions: Predictions, right: np.ndarray) -> Confused:
  """Returns (label, best class, number of wrong images), int64 (C,) each, of confused pairs in order of frequency."""
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  labels, best = labels[~right], predictions.best[~right, :1]
  pairs = np.stack([labels, np.broadcast_to(best, labels.shape)], axis=-1).reshape(-1, 2)
  owner = np.repeat(np.arange(len(labels)), labels.shape[1])
  # A label that an image has twice counts once.
  cells = np.unique(np.column_stack([owner, pairs])[pairs[:, 0] >= 0], axis=0)[:, 1:]
  pairs, images = np.unique(cells, axis=0, return_counts=True)
  order = np.argsort(-images, kind="stable")
  return pairs[order, 0], pairs[order, 1], images[order]


def _show_confusion(predictions: Predictions, names: Sequence[str]) -> list[Part]:
  """Returns a picture of the confusion matrix of the classes that occur, if there are not too many."""
  if predictions.label.ndim != 1:
    return []
  labelled = predictions.label >= 0
  both = np.stack([predictions.label[labelled], predictions.best[labelled, 0]])
  occur, numbers = np.unique(both, return_inverse=True)
  if not 1 < len(occur) <= DRAWN:
    return []
  label, best = numbers.reshape(both.shape)
  matrix = metrics.compute_confusion(predictions._replace(label=label, best=best[:, None]), len(occur))
  about = (
    "Each row is a label, and each column a predicted class. Blue is right and orange is wrong. Stronger colours show "
    "larger shares of the row's images"
  )
  if len(occur) <= NUMBERED:
    about += ". Numbers are counts of images"
  elif len(occur) > CELLS:
    about += f". A square represents up to {-(-len(occur) // CELLS)} classes, and shows the largest of their shares"
  if len(occur) < len(names):
    about += f". Only the {len(occur):,} of {len(names):,} classes that occur are shown"
  svg = _draw_confusion(matrix, [fit_text(names[number]) for number in occur])
  return [page.Chart("Confusions", svg, f"{about}.")]


def _draw_confusion(matrix: np.ndarray, names: Sequence[str]) -> str:
  classes = len(names)
  share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
  eye = np.eye(classes, dtype=bool)
  right, wrong = (reduce_matrix(np.where(kind, share, 0)) for kind in (eye, ~eye))
  cells = np.zeros((*right.shape, 4))
  for shown, colour in ((wrong, WRONG), (right, RIGHT)):
    # The square root makes a confusion of 2 % visible. Stronger colours would hide the numbers.
    cells[shown > 0] = np.column_stack(
      [
        np.tile(np.array(colour) / 255, (int(np.count_nonzero(shown > 0)), 1)),
        0.1 + (STRONGEST - 0.1) * np.sqrt(shown[shown > 0]),
      ]
    )
  longest = max(map(len, names)) if classes <= NAMED else 0
  side = float(np.clip(0.42 * classes, 2, 5.5) if classes <= NUMBERED else np.clip(0.16 * classes, 5.5, 7))
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(side + 0.6 + 0.075 * longest, side + 0.5 + 0.075 * longest)
    axes.imshow(cells, interpolation="none", aspect="equal", extent=(-0.5, classes - 0.5, classes - 0.5, -0.5))
    axes.grid(False)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set(xlabel="prediction", ylabel="label")
    if classes <= NAMED:
      size = 8 if classes <= NUMBERED else 6.5
      axes.set_xticks(range(classes), names, rotation=90, fontsize=size)
      axes.set_yticks(range(classes), names, fontsize=size)
    else:
      axes.set(xticks=[], yticks=[])
    if classes <= NUMBERED:
      for row, column in zip(*np.nonzero(matrix), strict=True):
        number = f"{matrix[row, column]:,}"
        axes.text(column, row, number, ha="center", va="center", fontsize=7 if len(number) < 5 else 5)
    return drawing.render_svg(figure, "confusion")


def reduce_matrix(share: np.ndarray) -> np.ndarray:
  """Reduces a matrix of shape (V, V) to at most (CELLS, CELLS) by the maximum over neighbours."""
  size = len(share)
  if size <= CELLS:
    return share
  starts = np.arange(CELLS) * size // CELLS
  return np.maximum.reduceat(np.maximum.reduceat(share, starts, axis=0), starts, axis=1)


def _make_pairs_table(confused: Confused, counts: metrics.Counts, names: Sequence[str]) -> list[Table]:
  """Returns a table of the most frequent confusions."""
  labels, best, images = confused
  if not len(images):
    return []
  rows = [
    [
      fit_text(names[label], LONGEST),
      fit_text(names[guess], LONGEST),
      f"{number:,}",
      format_percent(number / counts.true[label]),
    ]
    for label, guess, number in zip(labels[:PAIRS], best[:PAIRS], images[:PAIRS], strict=True)
  ]
  more = f"The first {PAIRS} of {len(images):,} pairs." if len(images) > PAIRS else ""
  return [page.Table("Most frequent confusions", ["label", "predicted as", "images", "of the label's"], rows, more)]


# Images.


def _make_worst_gallery(details: AccuracyDetails, right: np.ndarray, squares: Squares) -> list[Part]:
  """Returns a gallery of the wrong predictions with the highest loss."""
  source, predictions, _ = details
  labelled = (predictions.label >= 0).reshape(len(right), -1).any(1)
  wrong = np.flatnonzero(~right & labelled)
  if not len(wrong):
    return [page.Paragraph("All of these images are right.")]
  loss = np.nan_to_num(predictions.loss[wrong].astype(np.float64), nan=np.inf)
  chosen = wrong[np.argsort(-loss, kind="stable")][:SHOWN]
  lines = [
    [
      _format_labels(details, i),
      f"predicted as {_format_class(source, predictions.best[i, 0])}, {format_percent(predictions.confidence[i])}",
    ]
    for i in chosen
  ]
  about = (
    "Label, prediction and its probability, sorted by the probability of the label (lowest first), as the model saw"
  )
  return _make_gallery("Worst mistakes", f"{about} them.", details, chosen, lines, squares)


def _make_uncertain_gallery(details: AccuracyDetails, right: np.ndarray, squares: Squares) -> list[Part]:
  """Returns a gallery of the images with the smallest margin between the two best classes, right or wrong."""
  source, predictions, _ = details
  probability = predictions.probability
  if probability is None or probability.shape[1] < 2:
    probability, about = predictions.confidence[:, None], "Images with the lowest probability of the best class"
    certainty = probability[:, 0]
  else:
    certainty, about = (
      probability[:, 0] - probability[:, 1],
      "Images for which the two best classes have the most similar probabilities",
    )
  chosen = np.argsort(np.nan_to_num(certainty, nan=-1.0), kind="stable")[: min(SHOWN, max(6, len(right) // 10))]
  lines = [
    [
      _format_labels(details, i),
      *(
        f"{_format_class(source, predictions.best[i, k])} {format_percent(value)}"
        for k, value in enumerate(probability[i, :2])
      ),
    ]
    for i in chosen
  ]
  about += ", with the label and the probabilities. Wrong predictions are red."
  return _make_gallery("Least certain", about, details, chosen, lines, squares, marked=~right)


def _make_gallery(
  title: str,
  about: str,
  details: AccuracyDetails,
  chosen: np.ndarray,
  lines: Sequence[Sequence[str]],
  squares: Squares,
  marked: np.ndarray | None = None,
) -> list[Part]:
  source, positions = details.source, details.predictions.position[chosen].tolist()
  pictures = []
  for i, position, words, square in zip(chosen, positions, lines, squares(positions), strict=True):
    if square is None:
      square, words = np.full((1, 1, 3), 128, np.uint8), [*words, "the image no longer exists"]
    name = fit_text(source.display_name(position), LONGEST)
    pixels = crops.shrink(square, 2 * SIDE)
    pictures.append(page.Picture(pixels, [*words, name], wrong=marked is not None and bool(marked[i])))
  return [page.Gallery(title, pictures, about, SIDE)]


def _format_labels(details: AccuracyDetails, i: int) -> str:
  labels = np.atleast_1d(details.predictions.label[i])
  names = ", ".join(_format_class(details.source, label) for label in labels[labels >= 0][:5])
  return f"label {names}" if names else "no label"


def _format_class(source: Source, number: int) -> str:
  return fit_text(source.classes[number], 24)


# Figures per class.


def _make_classes_table(counts: metrics.Counts, confused: Confused, names: Sequence[str]) -> Table:
  """Returns a table of the classes that occur, the worst first."""
  rates = counts.rates
  occur = np.flatnonzero(counts.true + counts.guessed)
  order = occur[np.lexsort((-counts.true[occur], rates["f1"][occur]))][:LISTED]
  most = {}
  for label, guess, images in zip(*confused, strict=True):
    # the most frequent confusion comes first
    most.setdefault(int(label), f"{fit_text(names[guess], LONGEST)} ({images:,})")
  rows = []
  for i in order.tolist():
    shares = [format_percent(rates[key][i]) for key in ("recall", "precision", "f1")]
    rows.append([fit_text(names[i], LONGEST), f"{counts.true[i]:,}", *shares, most.get(i, "")])
  some = f"The worst {LISTED:,} of {len(occur):,}. " if len(occur) > LISTED else ""
  about = (
    f"{some}Sorted by F1. Recall is the share of the images of a class that are predicted as this class. Precision "
    "is the "
    "share of the predictions of a class that are right."
  )
  head = ["class", "images", "recall", "precision", "F1", "most often predicted as"]
  return page.Table("Classes, the worst first", head, rows, about, open=len(rows) <= OPEN)
