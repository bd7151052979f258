"""Evaluations that measure the weights periodically during a run and at its end.

An evaluation is a function (subject, *, ...) that returns a function (params, poll) -> Outcome.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import schema
from vit_jax.data.bound_data import EvalData
from vit_jax.evals.accuracy import accuracy, name_accuracy_figures
from vit_jax.evals.dense import FIGURES as DENSE_FIGURES
from vit_jax.evals.dense import dense
from vit_jax.evals.fewshot import fewshot, name_fewshot_figures
from vit_jax.evals.masked import masked, name_masked_figures
from vit_jax.evals.subject import EvalContext, Measure
from vit_jax.schema import Bound, Choice, ConfigError, DerivedTable, Duration, enter_key, lookup


def interval(count_steps: Callable[[Duration], int], *, every: Duration = Duration("20%")) -> int:
  """Returns the number of steps between two measurements of a run. The end of the run is always measured.

  Args:
    count_steps: converts a duration to steps.
    every: duration between two measurements.
  """
  return max(1, count_steps(every))


class EvalDefinition(NamedTuple):
  """An evaluation that a config can choose.

  Attributes:
    measure: (subject, *, keys of the config) -> (params, poll) -> Outcome.
    figures: returns the names of the measured figures for bound arguments.
  """

  measure: Callable[..., Measure]
  figures: Callable[[Mapping[str, Any]], Sequence[str]]


# One row for each evaluation. The two tables below are derived from it.
KINDS = {
  "accuracy": EvalDefinition(accuracy, lambda args: name_accuracy_figures(args["data"], args["classes"])),
  "fewshot": EvalDefinition(fewshot, lambda args: name_fewshot_figures(args["shots"], args["seeds"], args["probes"])),
  "dense": EvalDefinition(dense, lambda args: list(DENSE_FIGURES)),
  "masked": EvalDefinition(masked, lambda args: name_masked_figures()),
}


class BoundEval(Bound):
  """A bound choice of an evaluation. An evaluation that a user registered may lack some arguments."""

  @property
  def data(self) -> EvalData | None:
    """The data of the evaluation. None for the data of the run, or if the evaluation uses no data."""
    return self.args.get("data")

  @property
  def split(self) -> str | None:
    """The split that is measured, or None if the evaluation does not measure a single split."""
    return self.args.get("split")

  @property
  def batch(self) -> int | None:
    """Number of images per batch, or None for the batch size of the run."""
    return self.args.get("batch")

  def interval(self, count_steps: Callable[[Duration], int]) -> int:
    """Returns the number of steps between two measurements of a run, see `interval`."""
    return self.call(interval, count_steps)

  def build(self, subject: EvalContext) -> Measure:
    """Builds the function that measures parameters.

    Args:
      subject: the model and its data.
    """
    return self.call(KINDS[self.name].measure, subject)


EVALS = DerivedTable(KINDS, lambda name, kind: kind.measure, kind=BoundEval)
# For evaluations during a run.
REPEATED = DerivedTable(KINDS, lambda name, kind: (kind.measure, interval), kind=BoundEval)


def bind_evaluation(choice: Choice, table: schema.Table, prepared: Mapping[str, object]) -> BoundEval:
  """Checks all arguments of an evaluation and fills in defaults.

  Args:
    choice: the evaluation.
    table: `EVALS` or `REPEATED`.
    prepared: {argument: value} for the preparation of other data, see `EvalData.preparation`. Other data are prepared
      in the same way unless the evaluation defines another preparation.

  Raises:
    ConfigError: an argument is invalid, or the image size of the other data differs from that of the model.
  """
  with enter_key("data"):
    data = schema.convert(choice.args.get("data"), Choice | None)
  if data is not None:
    choice = choice.replace(data=Choice(data.name, {**prepared, **data.args}))
  bound = schema.bind(choice, lookup(table, choice.name), table)
  assert isinstance(bound, BoundEval)
  size = prepared.get("image_size")
  if bound.data is not None and data is not None and size not in (None, bound.data.image_size):
    raise ConfigError(f"{bound.data.image_size}, but the model needs {size} px. Remove this key", "data.image_size")
  return bound


def list_figure_names(choice: Choice) -> list[str]:
  """Returns the names of the figures that a bound choice measures. For `masked` these are the figures of all tasks.

  Args:
    choice: a bound evaluation.

  Example:
    from vit_jax import evals
    from vit_jax.schema import Choice

    assert evals.list_figure_names(Choice("dense")) == ["mean_iou", "pixel_accuracy", "images"]
  """
  return list(KINDS[choice.name].figures(choice.args))
