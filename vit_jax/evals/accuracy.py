"""Classification figures over a split: every image once, on any number of devices and processes."""

import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax

from vit_jax import metrics
from vit_jax.data import catalog, sources
from vit_jax.evals.subject import Outcome, Subject, open_source, rows
from vit_jax.schema import Choice, ConfigError, Range


class Details(NamedTuple):
  """What the figures are made of."""

  source: sources.Source
  predictions: metrics.Predictions


def accuracy(
  subject: Subject,
  *,
  data: Annotated[Choice | None, catalog.EVAL_DATA] = None,
  split: str = "test",
  batch: Annotated[int, Range(1, 2**16)] | None = None,
  logits: bool | None = None,
) -> Callable:
  """(params, poll) -> figures of `figures.measure` over the images of a split, with their predictions as details.

  Args:
    subject: the model and its data.
    data: another dataset with the same classes; images are prepared as the run's own.
    split: "train", "val" or "test" as the data name them, or a split of the dataset.
    batch: images at a time.
    logits: keep the logits of all classes, 4 bytes each on every host: for average precision, which images with several
      labels have, and for files of predictions. None keeps them where images may have several labels.
  """
  source, size = open_source(subject, data, split, "split"), subject.images_at_once(batch)
  if len(source.classes) != subject.classes:
    raise ConfigError(f"{split!r} has {len(source.classes)} classes, the model {subject.classes}", "split")
  predict = subject.predictions(data, source.labels > 1 if logits is None else logits)

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> Outcome:
    of_images = rows(functools.partial(predict, params), subject.batches(data, source, size), poll, size)
    predictions = metrics.Predictions(**of_images)
    return Outcome(metrics.measure(predictions, subject.classes), Details(source, predictions))

  return measure
