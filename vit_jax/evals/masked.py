"""Evaluation of tasks that mask patches, over a split. Each image is used once, on any number of devices."""

import functools
from typing import Annotated

from vit_jax.data import catalog
from vit_jax.data.bound_data import EvalData
from vit_jax.evals.subject import EvalContext, Measure, Outcome, Poll, Weights, compute_rows, open_source
from vit_jax.schema import ConfigError, Range, enter_key, get_current_key


def masked(
  subject: EvalContext,
  *,
  data: Annotated[EvalData | None, catalog.EVAL_DATA] = None,
  split: str = "test",
  batch: Annotated[int, Range(1, 2**16)] | None = None,
) -> Measure:
  """Builds a function (params, poll) -> Outcome with the mean loss and metric of the task over a split.

  Every measurement uses the same masks.

  Args:
    subject: the model and its data.
    data: another dataset. Its images are prepared like those of the run.
    split: "train", "val" or "test" as named by the data, or a split of the dataset.
    batch: images per batch.

  Raises:
    ConfigError: the task does not mask patches.
  """
  if subject.classes or subject.predict is None:
    raise ConfigError("the model has classes and does not mask patches. Use 'accuracy'", "name")
  source, size, here = open_source(subject, data, split, "split"), subject.choose_batch_size(batch), get_current_key()
  predict = subject.compile_predictions(data, logits=False)

  def measure(params: Weights, poll: Poll) -> Outcome:
    with enter_key(here):
      images = subject.open_batches(data, source, size)
      of_images = compute_rows(functools.partial(predict, params), images, poll, size, source.display_name)
    figures = {name: float(of_images[name].mean()) for name in of_images if name not in ("label", "position")}
    return Outcome(figures | {"images": len(of_images["position"])}, None)

  return measure


def name_masked_figures() -> list[str]:
  """Returns the names of the figures of all tasks. A task has either `loss` and one other figure, or only `entropy`."""
  return ["loss", "accuracy", "rmse", "entropy", "images"]
