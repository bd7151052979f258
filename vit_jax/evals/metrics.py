"""Classification metrics of the predictions of a split, and files with predictions and confusion matrices.

Every image of the split counts once. In the shapes, N is the number of images, K the number of labels of an image, and
V the number of classes.
"""

import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.evals import intervals as confidence
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import NotFiniteError
from vit_jax.storage import files

FALLING = ("loss", "rmse", "calibration_error")  # metrics that are better when they are lower
BINS = 15  # number of confidence bins, as in Guo et al. 2017


def is_share(metric: str) -> bool:
  """Returns whether a metric is printed as a percentage."""
  return not metric.endswith(("loss", "rmse"))


class Predictions(NamedTuple):
  """The predictions of a model for the N images of a split, in the order of the split.

  Attributes:
    position: record number of each image in the split, int64 [N].
    label: label of each image, int [N]. If images can have several labels, int [N, K] padded with -1.
    best: best classes of each image in descending order, int [N, k] with k up to 5.
    confidence: probability of the best class, float32 [N].
    loss: loss of each image, float32 [N].
    logits: logits, float32 [N, V], or None.
    probability: probabilities of the best classes, float32 [N, k], or None.
  """

  position: np.ndarray
  label: np.ndarray
  best: np.ndarray
  confidence: np.ndarray
  loss: np.ndarray
  logits: np.ndarray | None = None
  probability: np.ndarray | None = None


class Counts(NamedTuple):
  """Numbers of images by class, int64 [V] each. An image with several labels counts for each of them.

  Attributes:
    right: images for which the class is predicted and is a label.
    guessed: images for which the class is predicted.
    true: images that have the class as a label.
  """

  right: np.ndarray
  guessed: np.ndarray
  true: np.ndarray

  @property
  def rates(self) -> dict[str, np.ndarray]:
    """Precision, recall and F1 by name, float64 [V] each. The value is 0 for classes without predictions or labels."""
    return {
      "precision": self.right / np.maximum(self.guessed, 1),
      "recall": self.right / np.maximum(self.true, 1),
      "f1": 2 * self.right / np.maximum(self.guessed + self.true, 1),
    }


class Bins(NamedTuple):
  """Sums over images, grouped by the probability of their best class, [BINS] each.

  Attributes:
    images: number of images, int64.
    right: number of correctly classified images, float64.
    confidence: sum of the probabilities of the best classes, float64.
  """

  images: np.ndarray
  right: np.ndarray
  confidence: np.ndarray


class _Images(NamedTuple):
  """Values of all images that are computed once and reused for every weighting of the images."""

  classes: int
  owner: np.ndarray  # image of each label; repeated labels of an image are contained once
  label: np.ndarray  # class of each label
  guess: np.ndarray  # best class of each image
  top1: np.ndarray  # 1.0 if the best class is one of the image's labels
  top5: np.ndarray  # 1.0 if any of the best five classes is one of the image's labels
  loss: np.ndarray
  bin: np.ndarray  # bin of confidence
  gap: np.ndarray  # 1 or 0 for right or wrong, minus confidence


def compute_metrics(predictions: Predictions, classes: int) -> dict[str, float]:
  """Computes all metrics of a split.

  - top1, top5: share of images for which the best class, or one of the best five, is a label.
  - loss: mean loss.
  - mean_per_class: mean recall of the classes that occur as labels, scikit-learn's `balanced_accuracy_score`.
  - precision, recall, f1: averaged over classes (suffix _macro), or weighted by class size (suffix _weighted).
  - calibration_error: expected calibration error (Guo et al. 2017, eq. 3).
  - average_precision: mean of scikit-learn's `average_precision_score` over the classes that occur. It is computed only
    if images can have several labels and their logits are available.

  Args:
    predictions: predictions for N images.
    classes: number of classes V.

  Returns:
    {metric: value}, and the number of images as "images". Without images every metric is 0.

  Raises:
    NotFiniteError: if the confidence of an image is NaN or infinite.

  Example:
    import numpy as np
    from vit_jax.evals import metrics

    predictions = metrics.Predictions(
      position=np.arange(2), label=np.array([0, 1]), best=np.array([[0, 1], [0, 1]]),
      confidence=np.array([0.9, 0.6]), loss=np.array([0.1, 0.9]),
    )
    metrics.compute_metrics(predictions, classes=2)["top1"]  # 0.5
  """
  images = _prepare_images(predictions, classes)
  metrics = _compute_weighted_metrics(images, np.ones(len(images.guess)))
  if predictions.label.ndim == 2 and predictions.logits is not None:
    metrics["average_precision"] = _average_precision(images, predictions.logits)
  return metrics | {"images": len(images.guess)}


def compute_intervals(
  predictions: Predictions, classes: int, resamples: int = confidence.RESAMPLES, seed: int = 0
) -> dict[str, confidence.Interval]:
  """Computes the 95 % interval of each metric by the method that `choose_interval_method` names.

  `images` has no interval, because it does not vary. `average_precision` has no interval, because a bootstrap would
  sort every class `resamples` times. Other metrics have no interval if all resamples give the same value, see
  `intervals.bootstrap`.

  Args:
    predictions: predictions for N images.
    classes: number of classes V.
    resamples: number of times that N images are drawn with replacement, at least 1.
    seed: seed of the draws.

  Returns:
    {metric: (low, high)}.
  """
  images = _prepare_images(predictions, classes)
  count = len(images.guess)
  result = confidence.bootstrap(functools.partial(_compute_weighted_metrics, images), count, resamples, seed)
  of = {"top1": count, "top5": count, "recall_weighted": len(images.owner)}  # sizes of the samples of the proportions
  for name, value in _compute_weighted_metrics(images, np.ones(count)).items():
    if _is_proportion(name, predictions) and of[name]:
      result[name] = confidence.compute_wilson_interval(min(value, 1.0), of[name])
  return result


def choose_interval_method(name: str, predictions: Predictions) -> str:
  """Returns the method of a metric's interval: Wilson for shares of images, the bootstrap for every other metric.

  If each image has one label, recall_weighted is the share of correctly classified labelled images. It is then a
  proportion too.

  Args:
    name: name of the metric.
    predictions: predictions from which the metric is computed.
  """
  return confidence.WILSON if _is_proportion(name, predictions) else confidence.BOOTSTRAP


def _is_proportion(name: str, predictions: Predictions) -> bool:
  return name in ("top1", "top5") or (name == "recall_weighted" and predictions.label.ndim == 1)


def count_per_class(predictions: Predictions, classes: int) -> Counts:
  """Counts the images of each class, from which precision, recall and F1 are computed.

  Args:
    predictions: predictions for N images.
    classes: number of classes V.
  """
  images = _prepare_images(predictions, classes)
  return Counts(*(count.astype(np.int64) for count in _count_weighted(images, np.ones(len(images.guess)))))


def bin_by_confidence(predictions: Predictions, classes: int) -> Bins:
  """Groups images into `BINS` equal bins of confidence, (i / BINS, (i + 1) / BINS].

  The `calibration_error` of `compute_metrics` is the sum over bins of |right - confidence|, divided by N.

  Args:
    predictions: predictions for N images.
    classes: number of classes V.
  """
  images = _prepare_images(predictions, classes)
  sums = (np.bincount(images.bin, weights, BINS) for weights in (images.top1, images.top1 - images.gap))
  return Bins(np.bincount(images.bin, minlength=BINS), *sums)


def compute_confusion(predictions: Predictions, classes: int) -> np.ndarray:
  """Computes the confusion matrix.

  Args:
    predictions: predictions for N images. Images without a label (-1) are ignored.
    classes: number of classes V.

  Returns:
    Numbers of images, int64 [V, V]. Rows are labels and columns are predicted classes.

  Raises:
    ConfigError: if images can have several labels.
  """
  if predictions.label.ndim != 1:
    raise ConfigError(
      f"a confusion matrix needs one label per image, but these have up to {predictions.label.shape[1]}. Remove it: "
      "precision, recall and average precision are measured with several labels; or use a split with one label per "
      "image"
    )
  label, guess = predictions.label.astype(np.int64), predictions.best[:, 0].astype(np.int64)
  labelled = label >= 0
  cells = label[labelled] * classes + guess[labelled]
  return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def find_mistakes(predictions: Predictions, count: int) -> np.ndarray:
  """Returns the row numbers of the misclassified images with the highest confidence, in descending order.

  Args:
    predictions: predictions for N images. Images without a label are ignored.
    count: largest number of rows.
  """
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  wrong = np.flatnonzero(~(predictions.best[:, :1] == labels).any(axis=1) & (labels >= 0).any(axis=1))
  return wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:count]


def _prepare_images(predictions: Predictions, classes: int) -> _Images:
  """Prepares the values that do not depend on weights, with repeated labels removed."""
  labels = np.sort(predictions.label if predictions.label.ndim == 2 else predictions.label[:, None], axis=1)
  labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1  # repeated labels count once
  assert labels.max(initial=-1) < classes, (labels.max(), classes)
  owner, column = np.nonzero(labels >= 0)
  # Columns are compared one at a time. All columns at once would take N x 5 x K bytes.
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
    top5=np.asarray(hits.any(1), np.float64),
    loss=predictions.loss.astype(np.float64),
    # Bins (i / 15, (i + 1) / 15] are found by comparison, because ceil(15 x) has rounding errors at the edges.
    bin=np.clip(np.searchsorted(np.arange(BINS + 1) / BINS, confidence) - 1, 0, BINS - 1),
    gap=hits[:, 0] - confidence,
  )


def _compute_weighted_metrics(images: _Images, weights: np.ndarray) -> dict[str, float]:
  """Returns the metrics of `compute_metrics`, where each image counts `weights` [N] times.

  Precision, recall and F1 are those of `precision_recall_fscore_support(..., zero_division=0)`. Classes that occur
  neither as a label nor as a prediction are ignored. The calibration error is the sum over bins of |right - confidence|
  / N.
  """
  counts = _count_weighted(images, weights)
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


def _count_weighted(images: _Images, weights: np.ndarray) -> Counts:
  """Returns numbers of images by class, float64 [V], where each image counts `weights` [N] times."""
  right = np.bincount(images.guess, weights * images.top1, images.classes)
  guessed = np.bincount(images.guess, weights, images.classes)
  return Counts(right, guessed, np.bincount(images.label, weights[images.owner], images.classes))


def _mean(values: np.ndarray) -> float:
  return float(values.mean()) if len(values) else 0.0


def _average_precision(images: _Images, logits: np.ndarray) -> float:
  """Returns the mean over classes of the average precision.

  The average precision of a class is the mean, over its labelled images, of the precision at the logit of the image.
  Images with equal logits are counted together, as in scikit-learn. The precision therefore depends only on the number
  of logits that are at least as high. Two sorts by value provide these numbers.
  """
  own = np.argsort(images.label, kind="stable")
  parts = np.split(images.owner[own], np.cumsum(np.bincount(images.label, minlength=images.classes))[:-1])
  precisions = []
  for start in range(0, images.classes, 64):
    # Columns are copied in groups of 64. Copied one by one, each would read all logits from memory.
    block = np.ascontiguousarray(logits[:, start : start + 64].T)
    for column, owners in zip(block, parts[start : start + 64], strict=True):
      if not len(owners):
        continue
      scores, everyone = np.sort(column[owners]), np.sort(column)
      right = len(scores) - np.searchsorted(scores, scores)
      # NaN is sorted last and would count as the highest logit.
      precisions.append(
        np.nan if np.isnan(everyone[-1]) else np.mean(right / (len(column) - np.searchsorted(everyone, scores)))
      )
  return _mean(np.array(precisions))


def write_predictions(
  predictions: Predictions, ids: Sequence[str], path: pathlib.Path, classes: Sequence[str] = ()
) -> None:
  """Writes predictions as .csv or .npz, one row for each image.

  Both formats restore every float32 value exactly. The CSV columns are:

  - id, label (several are separated by spaces), top1 to topk, confidence, loss.
  - with `classes`: label_name (several are separated by |), name1 to namek. Names are encoded by `files.escape_csv`.
  - if available: probability1 to probabilityk and logit_0 to logit_{V-1}.

  The NPZ arrays are id, label, best, confidence, loss, classes, probability and logits.

  Args:
    predictions: predictions for N images.
    ids: an identifier for each image, N.
    path: file to write.
    classes: class names, V.

  Raises:
    ConfigError: if the suffix is not .csv or .npz, or if the directory does not exist.
  """
  files.check_path(path)
  assert len(ids) == len(predictions.best), (len(ids), len(predictions.best))
  if path.suffix.lower() == ".npz":
    columns = {name: value for name, value in predictions._asdict().items() if name != "position" and value is not None}
    if classes:
      columns["classes"] = np.array(classes, dtype=str)
    with files.atomic_write(path) as partial, partial.open("wb") as file:  # NumPy adds a suffix to file names
      np.savez_compressed(file, id=np.array(ids, dtype=str), **columns)
  else:
    files.write_csv(path, _format_rows(predictions, ids, classes))


def write_confusion(matrix: np.ndarray, names: Sequence[str], path: pathlib.Path) -> None:
  """Writes a confusion matrix as CSV, with class names in the first row and in the first column.

  Args:
    matrix: numbers of images, [V, V]. Each row is a label.
    names: class names, V.
    path: file to write.

  Raises:
    ConfigError: if the suffix is not .csv or the directory does not exist.
  """
  files.check_path(path, (".csv",))
  assert matrix.shape == (len(names), len(names)), (matrix.shape, len(names))
  cells = [files.escape_csv(name) for name in names]
  rows = ([name, *row.tolist()] for name, row in zip(cells, matrix, strict=True))
  files.write_csv(path, [["label \\ prediction", *cells], *rows])


def _format_rows(predictions: Predictions, ids: Sequence[str], classes: Sequence[str]) -> Iterator[list[str]]:
  labels = predictions.label if predictions.label.ndim == 2 else predictions.label[:, None]
  best = range(1, predictions.best.shape[1] + 1)
  names = ["label_name", *(f"name{i}" for i in best)] if classes else []
  # {array: its columns} of the optional float32 arrays.
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
      files.escape_csv(name),
      " ".join(map(str, label)),
      *guess,
      *_format_digits([predictions.confidence[i], predictions.loss[i]]),
      *map(files.escape_csv, named),
      *(cell for array in floats for cell in _format_digits(getattr(predictions, array)[i].tolist())),
    ]


def _format_digits(values: Sequence[float]) -> list[str]:
  """Formats numbers with nine digits, which identify every float32 value."""
  return [format(float(value), ".9g") for value in values]
