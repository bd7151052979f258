"""Classification figures for a split. Each image is used once, on any number of devices and processes."""

import functools
from typing import Annotated, Literal, NamedTuple

import numpy as np

from vit_jax.data import catalog, class_names, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.evals import metrics
from vit_jax.evals.subject import EvalContext, Measure, Outcome, Poll, Weights, compute_rows, open_source
from vit_jax.schema import Bound, ConfigError, Range, enter_key, format_amount, get_current_key


class AccuracyDetails(NamedTuple):
  """The data from which the figures were computed.

  Attributes:
    source: the images.
    predictions: the predictions for the images.
    way: prefix of the names of figures, such as "200_way_", if the names must contain the number of competing classes.
  """

  source: sources.Source
  predictions: metrics.Predictions
  way: str = ""


def get_accuracy_details(outcome: Outcome) -> AccuracyDetails:
  """Returns the details of an outcome of `accuracy`."""
  assert isinstance(outcome.details, AccuracyDetails)
  return outcome.details


def accuracy(
  subject: EvalContext,
  *,
  data: Annotated[EvalData | None, catalog.EVAL_DATA] = None,
  split: str = "test",
  batch: Annotated[int, Range(1, 2**16)] | None = None,
  logits: bool | None = None,
  classes: Literal["all", "subset"] = "all",
) -> Measure:
  """Builds a function (params, poll) -> Outcome.

  The outcome has the figures of `metrics.compute_metrics` and all predictions.

  If images may have several labels, images without a label are not scored (ReaL's rule, Beyer et al. 2020). The
  function raises NotFiniteError if the logits of an image are NaN or infinite.

  Args:
    subject: the model and its data.
    data: another dataset with the same classes. Its images are prepared like those of the run.
    split: "train", "val" or "test" as named by the data, or a split of the dataset.
    batch: images per batch.
    logits: whether to keep the logits of all classes, which take 4 bytes each on every host. Logits are required for
      average precision of images with several labels, and for files of predictions. By default they are kept if images
      may have several labels.
    classes: classes with competing logits, for data in which only some classes occur, such as ImageNet-A and -R. "all"
      uses all classes, and "subset" uses only the classes that occur. The two figures differ by many percentage points.
      Their names therefore contain the number of classes: 1000_way_top1, 200_way_top1.

  Raises:
    ConfigError: the model or the data are unsuitable.
  """
  source, size, here = open_source(subject, data, split, "split"), subject.choose_batch_size(batch), get_current_key()
  if not subject.classes:
    raise ConfigError(
      "the model has no classes. Use name='masked' to measure its task, or 'fewshot' to measure its features", "name"
    )
  if len(source.classes) != subject.classes:
    raise ConfigError(
      f"{split!r} has {format_amount(len(source.classes), 'class', 'classes')}, but the model has {subject.classes}",
      "split",
    )
  if subject.names and (moved := class_names.describe_moved(subject.names, source.classes)):
    raise ConfigError(
      f"{split!r} lists classes of the training data at other positions ({moved}, counted from 0). Give both readers "
      "the same list of classes",
      "data" if data else "split",
    )
  with enter_key("classes"):
    competing, way = _competing_classes(subject.choose_data(data), classes)
  predict = subject.compile_predictions(data, source.labels > 1 if logits is None else logits, competing)

  def measure(params: Weights, poll: Poll) -> Outcome:
    with enter_key(here):
      images = subject.open_batches(data, source, size)
      of_images = compute_rows(functools.partial(predict, params), images, poll, size, source.display_name)
    if source.labels > 1:
      labelled = (of_images["label"] >= 0).any(1)
      of_images = {name: values[labelled] for name, values in of_images.items()}
    predictions = metrics.Predictions(**of_images)
    measured = metrics.compute_metrics(predictions, subject.classes)
    return Outcome(
      {_figure_name(way, name): value for name, value in measured.items()}, AccuracyDetails(source, predictions, way)
    )

  return measure


def name_accuracy_figures(data: Bound | None, classes: str) -> list[str]:
  """Returns the names of the figures of `accuracy`, in order.

  Args:
    data: the other dataset, or None for the run's own data, in which all classes occur.
    classes: the argument of `accuracy`.
  """
  empty = metrics.Predictions(*(np.zeros(shape, np.int64) for shape in (0, 0, (0, 1), 0, 0)))
  way = _competing_classes(data, classes)[1] if data else ""
  return [_figure_name(way, name) for name in [*metrics.compute_metrics(empty, 1), "average_precision"]]


def _competing_classes(data: Bound, classes: str) -> tuple[tuple[int, ...] | None, str]:
  """Returns (competing classes or None for all classes, prefix of the figures).

  Raises ConfigError if all classes occur.
  """
  row = catalog.CATALOG.get(data.name)
  if row is None or row.subset is None:
    if classes == "subset":
      known = [name for name, row in catalog.CATALOG.items() if row.subset]
      raise ConfigError(
        f"'subset' is not defined for {data.name}, which contains all classes. Use 'all', or one of the datasets "
        f"{known}"
      )
    return None, ""
  return (row.subset, f"{len(row.subset)}_way_") if classes == "subset" else (None, f"{row.classes}_way_")


def _figure_name(way: str, figure: str) -> str:
  return figure if figure == "images" else way + figure
