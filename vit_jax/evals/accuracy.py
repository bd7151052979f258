"""Classification figures over a split: every image once, on any number of devices and processes."""

import functools
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np

from vit_jax import metrics
from vit_jax.data import catalog, class_names, sources
from vit_jax.evals.subject import Outcome, Subject, open_source, rows
from vit_jax.schema import Choice, ConfigError, Range, amount, at, place


class Details(NamedTuple):
  """What the figures are made of."""

  source: sources.Source
  predictions: metrics.Predictions
  way: str = ""  # what the names of figures begin with, where it has to be said which classes compete


def accuracy(
  subject: Subject,
  *,
  data: Annotated[Choice | None, catalog.EVAL_DATA] = None,
  split: str = "test",
  batch: Annotated[int, Range(1, 2**16)] | None = None,
  logits: bool | None = None,
  classes: Literal["all", "subset"] = "all",
) -> Callable:
  """Builds the function (params, poll) -> Outcome: figures of `metrics.measure` over a split, with all predictions.

  If images may have several labels, images without a label are not scored (ReaL's rule, Beyer et al. 2020). The
  function raises NotFiniteError if the logits of an image are NaN or infinite.

  Args:
    subject: the model and its data.
    data: another dataset with the same classes; images are prepared as the run's own.
    split: "train", "val" or "test" as the data name them, or a split of the dataset.
    batch: images at a time.
    logits: keep the logits of all classes, 4 bytes each on every host: for average precision, which images with several
      labels have, and for files of predictions. None keeps them where images may have several labels.
    classes: of data in which not all occur, as ImageNet-A and -R, whose logits compete: those of "all", or of the
      "subset" that occurs alone. Figures differ by many points, so of such data their names say which: 1000_way_top1,
      200_way_top1.
  """
  source, size, here = open_source(subject, data, split, "split"), subject.images_at_once(batch), place()
  if not subject.classes:
    raise ConfigError(
      "the model has no classes: what it learns is measured by name='masked', its features by 'fewshot'", "name"
    )
  if len(source.classes) != subject.classes:
    raise ConfigError(
      f"{split!r} has {amount(len(source.classes), 'class', 'classes')}, the model {subject.classes}", "split"
    )
  if subject.names and (moved := class_names.moved(subject.names, source.classes)):
    raise ConfigError(
      f"{split!r} has classes of the training data at other positions ({moved}, counted from 0). Give both readers the "
      "same list of classes",
      "data" if data else "split",
    )
  with at("classes"):
    competing, way = _competing(subject.data(data), classes)
  predict = subject.predictions(data, source.labels > 1 if logits is None else logits, competing)

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> Outcome:
    with at(here):
      images = subject.batches(data, source, size)
      of_images = rows(functools.partial(predict, params), images, poll, size, source.called)
    if source.labels > 1:
      labelled = (of_images["label"] >= 0).any(1)
      of_images = {name: values[labelled] for name, values in of_images.items()}
    predictions = metrics.Predictions(**of_images)
    measured = metrics.measure(predictions, subject.classes)
    return Outcome({_name(way, name): value for name, value in measured.items()}, Details(source, predictions, way))

  return measure


def figure_names(data: Choice | None, classes: str) -> list[str]:
  """The figures of `accuracy` for such arguments, in order; `data` of None has all classes."""
  nothing = metrics.Predictions(*(np.zeros(shape, np.int64) for shape in (0, 0, (0, 1), 0, 0)))
  way = _competing(data, classes)[1] if data else ""
  return [_name(way, name) for name in [*metrics.measure(nothing, 1), "average_precision"]]


def _competing(data, classes):
  """(the classes that compete or None for all, what figures begin with); ConfigError where there is no subset."""
  row = catalog.CATALOG.get(data.name)
  if row is None or row.subset is None:
    if classes == "subset":
      known = [name for name, row in catalog.CATALOG.items() if row.subset]
      raise ConfigError(f"'subset' of {data.name}, in which all classes occur; allowed: 'all', or data of {known}")
    return None, ""
  return (row.subset, f"{len(row.subset)}_way_") if classes == "subset" else (None, f"{row.classes}_way_")


def _name(way, figure):
  return figure if figure == "images" else way + figure
