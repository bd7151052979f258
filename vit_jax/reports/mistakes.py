"""The chapter on mistakes of a model: confusions, calibration, images of the worst mistakes, and figures per class.

Shapes: N images, V classes, C classes that occur.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vit_jax import metrics
from vit_jax.data import crops
from vit_jax.evals.accuracy import Details
from vit_jax.intervals import METHODS, NONE
from vit_jax.reports import drawing, page, reliability
from vit_jax.reports.drawing import fitted
from vit_jax.schema import amount

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


def chapter(
  details: Details,
  squares: Squares,
  intervals: Mapping[str, tuple[float, float]] | None = None,
  whole: int | None = None,
  about: str = "",
) -> page.Chapter:
  """Returns the chapter. Its figures are those of `metrics`.

  Args:
    details: details of an accuracy evaluation.
    squares: function from positions in the source to cropped and scaled images, uint8 (S, S, 3). It returns None for an
      image that no longer exists.
    intervals: intervals of figures by name, if they were computed.
    whole: number of images of the split, if only some of them were evaluated.
    about: additional text for the introduction.
  """
  source, predictions, way = details
  count, names = len(predictions.best), source.classes
  if not count:
    return page.Chapter(TITLE, [page.Words(f"{_split(source)} has no image that could be evaluated.")])
  right = _right(predictions)
  all_ = f"all {amount(count, 'image')}" if whole in (None, count) else f"{count:,} of {amount(whole, 'image')}"
  words = f"{_split(source)}, {all_}: {right.sum():,} right, {count - right.sum():,} wrong. {about}".strip()
  if predictions.label.ndim == 2:
    words += f" An image has up to {amount(source.labels, 'label')}, and is right if the best class is one of them."
  counts, taken = metrics.per_class(predictions, len(names)), _confused(predictions, right)
  parts = [
    _figures(predictions, len(names), intervals or {}, way),
    *_confusion(predictions, names),
    *_pairs(taken, counts, names),
    *reliability.parts(metrics.calibration(predictions, len(names)), predictions.confidence, right),
    *_worst(details, right, squares),
    *_uncertain(details, right, squares),
    _classes(counts, taken, names),
  ]
  return page.Chapter(TITLE, parts, words)


def _split(source):
  return f"{fitted(source.name, LONGEST)}, {fitted(source.split, LONGEST)}"


def _right(predictions):
  """Returns whether the best class is a label, bool (N,)."""
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  return (labels == predictions.best[:, :1]).any(1)


def _figures(predictions, classes, intervals, way):
  """Returns a table of all figures with their intervals and methods."""

  def text(name, value):
    if name == "images":
      return f"{value:,}"
    return f"{value:.4f}" if name == "loss" else percent(value)

  rows, without = [], []
  for name, value in metrics.measure(predictions, classes).items():
    ends, method = intervals.get(way + name), metrics.interval_method(name, predictions)
    if ends is None and intervals and name not in ("images", "average_precision"):
      without.append(way + name)
    said = ["", ""] if ends is None else [" to ".join(text(name, end) for end in ends), method]
    rows.append([name if name == "images" else way + name, text(name, value), *said])
  about = METHODS + (f" No interval for {', '.join(without)}: {NONE}." if without else "")
  return page.Table("Figures", ["figure", "value", "95 % interval", "method"], rows, about, open=False)


def percent(share: float) -> str:
  """Formats a share as a percentage."""
  return f"{100 * share:.2f} %"


# Confusions of classes.


def _confused(predictions, right):
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


def _confusion(predictions, names):
  """Returns a picture of the confusion matrix of the classes that occur, if there are not too many."""
  if predictions.label.ndim != 1:
    return []
  labelled = predictions.label >= 0
  both = np.stack([predictions.label[labelled], predictions.best[labelled, 0]])
  occur, numbers = np.unique(both, return_inverse=True)
  if not 1 < len(occur) <= DRAWN:
    return []
  label, best = numbers.reshape(both.shape)
  matrix = metrics.confusion(predictions._replace(label=label, best=best[:, None]), len(occur))
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
  svg = _drawn_confusion(matrix, [fitted(names[number]) for number in occur])
  return [page.Chart("Confusions", svg, f"{about}.")]


def _drawn_confusion(matrix, names):
  classes = len(names)
  share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
  eye = np.eye(classes, dtype=bool)
  right, wrong = (_largest(np.where(kind, share, 0)) for kind in (eye, ~eye))
  cells = np.zeros((*right.shape, 4))
  for shown, colour in ((wrong, WRONG), (right, RIGHT)):
    # The square root makes a confusion of 2 % visible. Stronger colours would hide the numbers.
    cells[shown > 0] = np.column_stack(
      [np.tile(np.array(colour) / 255, (np.sum(shown > 0), 1)), 0.1 + (STRONGEST - 0.1) * np.sqrt(shown[shown > 0])]
    )
  longest = max(map(len, names)) if classes <= NAMED else 0
  side = float(np.clip(0.42 * classes, 2, 5.5) if classes <= NUMBERED else np.clip(0.16 * classes, 5.5, 7))
  with drawing.style():
    figure, [axes] = drawing.figure(side + 0.6 + 0.075 * longest, side + 0.5 + 0.075 * longest)
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
    return drawing.svg(figure, "confusion")


def _largest(share):
  """Reduces a matrix (V, V) to at most (CELLS, CELLS) by the maximum over neighbours."""
  size = len(share)
  if size <= CELLS:
    return share
  starts = np.arange(CELLS) * size // CELLS
  return np.maximum.reduceat(np.maximum.reduceat(share, starts, axis=0), starts, axis=1)


def _pairs(confused, counts, names):
  """Returns a table of the most frequent confusions."""
  labels, best, images = confused
  if not len(images):
    return []
  rows = [
    [fitted(names[label], LONGEST), fitted(names[guess], LONGEST), f"{number:,}", percent(number / counts.true[label])]
    for label, guess, number in zip(labels[:PAIRS], best[:PAIRS], images[:PAIRS], strict=True)
  ]
  more = f"The first {PAIRS} of {len(images):,} pairs." if len(images) > PAIRS else ""
  return [page.Table("Most frequent confusions", ["label", "predicted as", "images", "of the label's"], rows, more)]


# Images.


def _worst(details, right, squares):
  """Returns a gallery of the wrong predictions with the highest loss."""
  source, predictions, _ = details
  labelled = (predictions.label >= 0).reshape(len(right), -1).any(1)
  wrong = np.flatnonzero(~right & labelled)
  if not len(wrong):
    return [page.Words("All of these images are right.")]
  loss = np.nan_to_num(predictions.loss[wrong].astype(np.float64), nan=np.inf)
  chosen = wrong[np.argsort(-loss, kind="stable")][:SHOWN]
  lines = [
    [
      _labels(details, i),
      f"predicted as {_class(source, predictions.best[i, 0])}, {percent(predictions.confidence[i])}",
    ]
    for i in chosen
  ]
  about = (
    "Label, prediction and its probability, sorted by the probability of the label (lowest first), as the model saw"
  )
  return _gallery("Worst mistakes", f"{about} them.", details, chosen, lines, squares)


def _uncertain(details, right, squares):
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
      _labels(details, i),
      *(f"{_class(source, predictions.best[i, k])} {percent(value)}" for k, value in enumerate(probability[i, :2])),
    ]
    for i in chosen
  ]
  about += ", with the label and the probabilities. Wrong predictions are red."
  return _gallery("Least certain", about, details, chosen, lines, squares, marked=~right)


def _gallery(title, about, details, chosen, lines, squares, marked=None):
  source, positions = details.source, details.predictions.position[chosen].tolist()
  pictures = []
  for i, position, words, square in zip(chosen, positions, lines, squares(positions), strict=True):
    if square is None:
      square, words = np.full((1, 1, 3), 128, np.uint8), [*words, "the image no longer exists"]
    name = fitted(source.called(position), LONGEST)
    pixels = crops.small(square, 2 * SIDE)
    pictures.append(page.Picture(pixels, [*words, name], wrong=marked is not None and bool(marked[i])))
  return [page.Gallery(title, pictures, about, SIDE)]


def _labels(details, i):
  labels = np.atleast_1d(details.predictions.label[i])
  names = ", ".join(_class(details.source, label) for label in labels[labels >= 0][:5])
  return f"label {names}" if names else "no label"


def _class(source, number):
  return fitted(source.classes[number], 24)


# Figures per class.


def _classes(counts, confused, names):
  """Returns a table of the classes that occur, the worst first."""
  rates = counts.rates
  occur = np.flatnonzero(counts.true + counts.guessed)
  order = occur[np.lexsort((-counts.true[occur], rates["f1"][occur]))][:LISTED]
  most = {}
  for label, guess, images in zip(*confused, strict=True):
    # the most frequent confusion comes first
    most.setdefault(int(label), f"{fitted(names[guess], LONGEST)} ({images:,})")
  rows = []
  for i in order.tolist():
    shares = [percent(rates[key][i]) for key in ("recall", "precision", "f1")]
    rows.append([fitted(names[i], LONGEST), f"{counts.true[i]:,}", *shares, most.get(i, "")])
  some = f"The worst {LISTED:,} of {len(occur):,}. " if len(occur) > LISTED else ""
  about = (
    f"{some}Sorted by F1. Recall is the share of the images of a class that are predicted as this class. Precision "
    "is the "
    "share of the predictions of a class that are right."
  )
  head = ["class", "images", "recall", "precision", "F1", "most often predicted as"]
  return page.Table("Classes, the worst first", head, rows, about, open=len(rows) <= OPEN)
