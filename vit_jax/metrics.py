"""Classification metrics from the predictions of a split, each image once; predictions and confusion matrices as files.

Shapes: N images, K labels an image, V classes.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import files
from vit_jax import intervals as confidence
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import NotFiniteError

FALLING = ("loss", "rmse", "calibration_error")  # metrics that are better when they are lower
BINS = 15  # of confidence, as Guo et al. 2017


def is_share(metric: str) -> bool:
  """Whether a metric is printed as per cent."""
  return not metric.endswith(("loss", "rmse"))


class Predictions(NamedTuple):
  """What a model says of N images, in the order of their split."""

  position: np.ndarray  # int64 [N]: record number in the split
  label: np.ndarray  # int [N], or [N, K] padded with -1 where an image may have several labels
  best: np.ndarray  # int [N, k <= 5], best class first
  confidence: np.ndarray  # float32 [N]: probability of the best class
  loss: np.ndarray  # float32 [N]
  logits: np.ndarray | None = None  # float32 [N, V]
  probability: np.ndarray | None = None  # float32 [N, k]: of the best


class Counts(NamedTuple):
  """Images by class, int64 [V] each; an image with several labels counts for each of them."""

  right: np.ndarray  # whose best class it is, and it is a label
  guessed: np.ndarray  # whose best class it is
  true: np.ndarray  # that have it as a label

  @property
  def rates(self) -> dict[str, np.ndarray]:
    """Precision, recall and F1, float64 [V] each; 0 of a class that was not predicted or does not occur."""
    return {
      "precision": self.right / np.maximum(self.guessed, 1),
      "recall": self.right / np.maximum(self.true, 1),
      "f1": 2 * self.right / np.maximum(self.guessed + self.true, 1),
    }


class Bins(NamedTuple):
  """Images by the probability of their best class, [BINS] each."""

  images: np.ndarray  # int64: how many
  right: np.ndarray  # float64: how many of them are right
  confidence: np.ndarray  # float64: sum of their probabilities


class _Images(NamedTuple):
  """What metrics need of the images, prepared once for any number of weightings."""

  classes: int
  owner: np.ndarray  # image of each label; a label that an image has twice is there once
  label: np.ndarray  # class of each label
  guess: np.ndarray  # best class of each image
  top1: np.ndarray  # 1.0 where the best class is one of the image's labels
  top5: np.ndarray  # 1.0 where any of the best five is
  loss: np.ndarray
  bin: np.ndarray  # of confidence
  gap: np.ndarray  # right or not, less confidence


def measure(predictions: Predictions, classes: int) -> dict[str, float]:
  """Metrics of all images by name: those of `_metrics`, average precision where it is defined, the number of images.

  `average_precision` is the mean over classes that occur of scikit-learn's `average_precision_score`, for images that
  may have several labels, if their logits are there. Without images every metric is 0.
  """
  images = _images(predictions, classes)
  metrics = _metrics(images, np.ones(len(images.guess)))
  if predictions.label.ndim == 2 and predictions.logits is not None:
    metrics["average_precision"] = _average_precision(images, predictions.logits)
  return metrics | {"images": len(images.guess)}


def intervals(
  predictions: Predictions, classes: int, resamples: int = confidence.RESAMPLES, seed: int = 0
) -> dict[str, confidence.Interval]:
  """Computes the 95 % interval of each metric by the method that `interval_method` names.

  `images` does not vary. `average_precision` has no interval: a bootstrap would sort every class `resamples` times. A
  metric also has none if all resamples agree, see `intervals.bootstrap`.

  Args:
    predictions: of N images.
    classes: number of classes.
    resamples: how often N images are drawn with replacement; 1 or more.
    seed: of the draws.

  Returns:
    {metric: (low, high)}.
  """
  images = _images(predictions, classes)
  count = len(images.guess)
  result = confidence.bootstrap(functools.partial(_metrics, images), count, resamples, seed)
  of = {"top1": count, "top5": count, "recall_weighted": len(images.owner)}  # a share of so many
  for name, value in _metrics(images, np.ones(count)).items():
    if _is_proportion(name, predictions) and of[name]:
      result[name] = confidence.wilson(min(value, 1.0), of[name])
  return result


def interval_method(name: str, predictions: Predictions) -> str:
  """Returns the method of a metric's interval: Wilson for shares of images, the bootstrap for every other metric.

  With one label an image, recall_weighted is the share of labelled images that are right, which is a proportion too.
  """
  return confidence.WILSON if _is_proportion(name, predictions) else confidence.BOOTSTRAP


def _is_proportion(name, predictions):
  return name in ("top1", "top5") or (name == "recall_weighted" and predictions.label.ndim == 1)


def per_class(predictions: Predictions, classes: int) -> Counts:
  """Images of each class, of which precision, recall and F1 of `measure` are made."""
  images = _images(predictions, classes)
  return Counts(*(count.astype(np.int64) for count in _counts(images, np.ones(len(images.guess)))))


def calibration(predictions: Predictions, classes: int) -> Bins:
  """Images in BINS equal bins of confidence, (i / BINS, (i + 1) / BINS].

  The `calibration_error` of `measure` is the sum over bins of |right - confidence| / N.
  """
  images = _images(predictions, classes)
  sums = (np.bincount(images.bin, weights, BINS) for weights in (images.top1, images.top1 - images.gap))
  return Bins(np.bincount(images.bin, minlength=BINS), *sums)


def confusion(predictions: Predictions, classes: int) -> np.ndarray:
  """Images by label and prediction, int64 [V, V]: a row is a label, a column the best class.

  An image without a label (-1) is in no row. Raises ConfigError where images may have several labels.
  """
  if predictions.label.ndim != 1:
    raise ConfigError(
      f"a confusion matrix needs one label an image; these have up to {predictions.label.shape[1]}. Leave it out: "
      "precision, recall and average precision are measured with several labels; or take a split with one"
    )
  label, guess = predictions.label.astype(np.int64), predictions.best[:, 0].astype(np.int64)
  labelled = label >= 0
  cells = label[labelled] * classes + guess[labelled]
  return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def mistakes(predictions: Predictions, count: int) -> np.ndarray:
  """Rows of the `count` worst mistakes: images whose best class is none of their labels, the surest first."""
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  wrong = np.flatnonzero(~(predictions.best[:, :1] == labels).any(axis=1) & (labels >= 0).any(axis=1))
  return wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:count]


def _images(predictions: Predictions, classes: int) -> _Images:
  """Labels without repetitions and hits, which no weights change."""
  labels = np.sort(predictions.label if predictions.label.ndim == 2 else predictions.label[:, None], axis=1)
  labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1  # a label counts once
  assert labels.max(initial=-1) < classes, (labels.max(), classes)
  owner, column = np.nonzero(labels >= 0)
  # Column by column: all at once would take N x 5 x K bytes.
  hits = np.stack([(labels == guess[:, None]).any(1) for guess in predictions.best.T], axis=1)
  confidence = predictions.confidence.astype(np.float64)
  if not np.isfinite(confidence).all():
    position = int(predictions.position[np.argmin(np.isfinite(confidence))])
    raise NotFiniteError(f"image {position}: its confidence is not finite, so the predicted class has no meaning")
  return _Images(
    classes=classes,
    owner=owner,
    label=labels[owner, column],
    guess=predictions.best[:, 0],
    top1=hits[:, 0].astype(np.float64),
    top5=hits.any(1).astype(np.float64),
    loss=predictions.loss.astype(np.float64),
    # (i / 15, (i + 1) / 15] by comparison: ceil(15 x) rounds at the edges.
    bin=np.clip(np.searchsorted(np.arange(BINS + 1) / BINS, confidence) - 1, 0, BINS - 1),
    gap=hits[:, 0] - confidence,
  )


def _metrics(images: _Images, weights: np.ndarray) -> dict[str, float]:
  """Metrics of images that count `weights` [N] times each, whole numbers.

  top1, top5: share whose best class, or any of the best five, is a label; loss: mean. mean_per_class: scikit-learn's
  `balanced_accuracy_score`, mean recall of the classes that occur as a label. Precision, recall and F1, averaged over
  classes (macro) or by class size (weighted), are those of `precision_recall_fscore_support(..., zero_division=0)`:
  classes that occur neither as a label nor as a prediction are left out. calibration_error: sum over bins of
  |right - confidence| / N (Guo et al. 2017, eq. 3).
  """
  counts = _counts(images, weights)
  present = (counts.true + counts.guessed) > 0
  counts = Counts(*(count[present] for count in counts))
  true, rates = counts.true, counts.rates
  total = max(weights.sum(), 1)
  metrics = {name: float(np.sum(weights * getattr(images, name)) / total) for name in ("top1", "top5", "loss")}
  metrics["mean_per_class"] = _mean(rates["recall"][true > 0])
  for name, values in rates.items():
    metrics[f"{name}_weighted"] = float(np.sum(values * true) / max(true.sum(), 1))
    metrics[f"{name}_macro"] = _mean(values)
  gaps = np.bincount(images.bin, weights * images.gap, BINS)
  return metrics | {"calibration_error": float(np.abs(gaps).sum() / total)}


def _counts(images: _Images, weights: np.ndarray) -> Counts:
  """Images by class, float64 [V], that count `weights` [N] times each."""
  right = np.bincount(images.guess, weights * images.top1, images.classes)
  guessed = np.bincount(images.guess, weights, images.classes)
  return Counts(right, guessed, np.bincount(images.label, weights[images.owner], images.classes))


def _mean(values):
  return float(values.mean()) if len(values) else 0.0


def _average_precision(images: _Images, logits: np.ndarray) -> float:
  """Mean over classes of sum over labels of precision at that label's logit / labels.

  Images of equal logit are taken together, as scikit-learn does; so no order of images is needed, only counts of
  logits that are as high, which two sorts by value give.
  """
  own = np.argsort(images.label, kind="stable")
  parts = np.split(images.owner[own], np.cumsum(np.bincount(images.label, minlength=images.classes))[:-1])
  precisions = []
  for start in range(0, images.classes, 64):
    # Columns are copied 64 at a time: one by one, each would read all of the logits from memory.
    block = np.ascontiguousarray(logits[:, start : start + 64].T)
    for column, owners in zip(block, parts[start : start + 64], strict=True):
      if not len(owners):
        continue
      scores, everyone = np.sort(column[owners]), np.sort(column)
      right = len(scores) - np.searchsorted(scores, scores)
      # NaN sorts last, and would pass for the highest.
      precisions.append(
        np.nan if np.isnan(everyone[-1]) else np.mean(right / (len(column) - np.searchsorted(everyone, scores)))
      )
  return _mean(np.array(precisions))


def write(predictions: Predictions, ids: Sequence[str], path: pathlib.Path, classes: Sequence[str] = ()) -> None:
  """Writes one row an image, in the order of the predictions, as .csv or .npz.

  CSV: id, label (several with a space between), top1 to topk, confidence, loss; with `classes` label_name (several with
  | between) and name1 to namek, and where they are there probability1 to probabilityk and logit_0 to logit_{V-1}. Names
  are those of `files.csv_name`. NPZ: arrays id, label, best, confidence, loss, classes, probability and logits. Both
  give back every float32 exactly.

  Args:
    predictions: of N images.
    ids: a name for each of them, N.
    path: ConfigError for another suffix, or where there is no such folder.
    classes: their names, V.
  """
  files.check_path(path)
  assert len(ids) == len(predictions.best), (len(ids), len(predictions.best))
  if path.suffix.lower() == ".npz":
    columns = {name: value for name, value in predictions._asdict().items() if name != "position" and value is not None}
    if classes:
      columns["classes"] = np.array(classes, dtype=str)
    with files.replacing(path) as partial, partial.open("wb") as file:  # a file: NumPy would add a suffix to a name
      np.savez_compressed(file, id=np.array(ids, dtype=str), **columns)
  else:
    files.write_csv(path, _rows(predictions, ids, classes))


def write_confusion(matrix: np.ndarray, names: Sequence[str], path: pathlib.Path) -> None:
  """Writes a confusion matrix [V, V] as CSV: class names in the first row and column, a row for each label.

  ConfigError for another suffix than .csv, or where there is no such folder.
  """
  files.check_path(path, (".csv",))
  assert matrix.shape == (len(names), len(names)), (matrix.shape, len(names))
  cells = [files.csv_name(name) for name in names]
  rows = ([name, *row.tolist()] for name, row in zip(cells, matrix, strict=True))
  files.write_csv(path, [["label \\ prediction", *cells], *rows])


def _rows(predictions, ids, classes):
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  best = range(1, predictions.best.shape[1] + 1)
  names = ["label_name", *(f"name{i}" for i in best)] if classes else []
  # Columns of float32, by the arrays that they are of.
  floats = {"probability": [f"probability{i}" for i in best], "logits": []}
  if predictions.logits is not None:
    floats["logits"] = [f"logit_{i}" for i in range(predictions.logits.shape[1])]
  floats = {name: columns for name, columns in floats.items() if getattr(predictions, name) is not None}
  columns = [column for several in floats.values() for column in several]
  yield ["id", "label", *(f"top{i}" for i in best), "confidence", "loss", *names, *columns]
  for i, name in enumerate(ids):
    label, guess = [one for one in labels[i].tolist() if one >= 0], predictions.best[i].tolist()
    named = ["|".join(classes[one] for one in label), *(classes[one] for one in guess)] if classes else []
    yield [
      files.csv_name(name),
      " ".join(map(str, label)),
      *guess,
      *_digits([predictions.confidence[i], predictions.loss[i]]),
      *map(files.csv_name, named),
      *(cell for array in floats for cell in _digits(getattr(predictions, array)[i].tolist())),
    ]


def _digits(values):
  """Numbers as texts; nine digits tell any two float32 apart."""
  return [format(float(value), ".9g") for value in values]
