"""What stages that hide patches learn, measured over a split: every image once, on any number of devices."""

import functools
from collections.abc import Callable
from typing import Annotated

import jax

from vit_jax.data import catalog
from vit_jax.evals.subject import Outcome, Subject, open_source, rows
from vit_jax.schema import Choice, ConfigError, Range, at, place


def masked(
  subject: Subject,
  *,
  data: Annotated[Choice | None, catalog.EVAL_DATA] = None,
  split: str = "test",
  batch: Annotated[int, Range(1, 2**16)] | None = None,
) -> Callable:
  """(params, poll) -> mean loss and metric of the task over the images of a split, with the same masks for all.

  Args:
    subject: the model and its data.
    data: another dataset; images are prepared as the run's own.
    split: "train", "val" or "test" as the data name them, or a split of the dataset.
    batch: images at a time.
  """
  if subject.classes or subject.predict is None:
    raise ConfigError("the model has classes and hides no patches; take 'accuracy'", "name")
  source, size, here = open_source(subject, data, split, "split"), subject.images_at_once(batch), place()
  predict = subject.predictions(data, logits=False)

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> Outcome:
    with at(here):
      images = subject.batches(data, source, size)
      of_images = rows(functools.partial(predict, params), images, poll, size, source.called)
    figures = {name: float(of_images[name].mean()) for name in of_images if name not in ("label", "position")}
    return Outcome(figures | {"images": len(of_images["position"])}, None)

  return measure


def figure_names() -> list[str]:
  """The figures of any task: it has one of `accuracy` and `rmse`."""
  return ["loss", "accuracy", "rmse", "images"]
