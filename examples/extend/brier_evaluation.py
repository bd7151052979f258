"""An evaluation: the Brier score (Brier 1950), the mean squared distance between probabilities and one-hot labels."""

import functools
from collections.abc import Callable
from typing import Annotated

import jax
import numpy as np

from vit_jax import register
from vit_jax.data import catalog
from vit_jax.evals.subject import EvalContext, Outcome, compute_rows, open_source
from vit_jax.schema import Choice


@register.evaluation("brier", figures=("brier_loss", "images"))
def brier(
  subject: EvalContext,
  *,
  data: Annotated[Choice | None, catalog.EVAL_DATA] = None,
  split: str = "test",
) -> Callable:
  """Prepares the measurement of the Brier score, from 0 to 2, on a split of images with one label.

  Args:
    subject: the model and the data of the run.
    data: another dataset with the same classes.
    split: "train", "val" or "test", or a split of the dataset.

  Returns:
    A function (params, poll) -> Outcome.
  """
  source = open_source(subject, data, split, "split")
  predict = subject.compile_predictions(data, logits=True)

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> Outcome:
    size = subject.choose_batch_size(None)
    images = subject.open_batches(data, source, size)
    of_images = compute_rows(
      functools.partial(predict, params), images, poll, size, source.display_name
    )  # names for error messages
    probabilities = np.asarray(jax.nn.softmax(of_images["logits"]))
    targets = np.eye(probabilities.shape[1])[of_images["label"]]
    score = float(np.mean(np.sum((probabilities - targets) ** 2, axis=1)))
    return Outcome({"brier_loss": score, "images": len(targets)}, None)

  return measure
