"""Evaluations that measure the weights periodically during a run and at its end.

An evaluation is a function (subject, *, ...) that returns a function (params, poll) -> Outcome.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vit_jax import schema
from vit_jax.data import augment, loader, stream
from vit_jax.evals.accuracy import accuracy, name_accuracy_figures
from vit_jax.evals.dense import FIGURES as DENSE_FIGURES
from vit_jax.evals.dense import dense
from vit_jax.evals.fewshot import fewshot, name_fewshot_figures
from vit_jax.evals.masked import masked, name_masked_figures
from vit_jax.evals.subject import EvalContext, Measure
from vit_jax.schema import Choice, ConfigError, DerivedTable, Duration, enter_key, lookup, select_arguments


def interval(steps_of: Callable[[Duration], int], *, every: Duration = Duration("20%")) -> int:
  """Returns the number of steps between two measurements of a run. The end of the run is always measured.

  Args:
    steps_of: converts a duration to steps.
    every: duration between two measurements.
  """
  return max(1, steps_of(every))


class EvalDefinition(NamedTuple):
  """An evaluation that a config can choose.

  Attributes:
    measure: (subject, *, keys of the config) -> (params, poll) -> Outcome.
    figures: returns the names of the measured figures for bound arguments.
  """

  measure: Callable
  figures: Callable[[Mapping[str, Any]], list[str]]


# One row for each evaluation. The two tables below are derived from it.
KINDS = {
  "accuracy": EvalDefinition(accuracy, lambda args: name_accuracy_figures(args["data"], args["classes"])),
  "fewshot": EvalDefinition(fewshot, lambda args: name_fewshot_figures(args["shots"], args["seeds"], args["probes"])),
  "dense": EvalDefinition(dense, lambda args: list(DENSE_FIGURES)),
  "masked": EvalDefinition(masked, lambda args: name_masked_figures()),
}
EVALS = DerivedTable(KINDS, lambda name, kind: kind.measure)
REPEATED = DerivedTable(KINDS, lambda name, kind: (kind.measure, interval))  # for evaluations during a run


def make_evaluation(choice: Choice, subject: EvalContext) -> Measure:
  """Returns the function (params, poll) -> Outcome of a bound choice.

  Args:
    choice: an evaluation with all of its arguments.
    subject: the model and its data.
  """
  function, *_ = lookup(EVALS, choice.name)
  return function(subject, **select_arguments(choice, function))


def preparation_arguments(data: Choice) -> dict[str, Any]:
  """Returns the arguments that determine how images of a bound data choice are prepared.

  Other data are prepared in the same way unless an evaluation defines another preparation. The argument `exif` is
  omitted because it is a property of each dataset.

  Args:
    data: a bound data choice.
  """
  prepared = select_arguments(data, stream.eval_examples, loader.batches, augment.normalise)
  return {key: value for key, value in prepared.items() if key != "exif"}


def bind_evaluation(choice: Choice, table: schema.Table, prepared: Mapping[str, Any]) -> Choice:
  """Checks all arguments of an evaluation and fills in defaults.

  Args:
    choice: the evaluation.
    table: `EVALS` or `REPEATED`.
    prepared: {argument: value} for the preparation of other data, see `preparation_arguments`.

  Raises:
    ConfigError: an argument is invalid, or the image size of the other data differs from that of the model.
  """
  with enter_key("data"):
    data = schema.convert(choice.args.get("data"), Choice | None)
  if data is not None:
    choice = Choice(choice.name, {**choice.args, "data": Choice(data.name, {**prepared, **data.args})})
  bound = schema.bind(choice, lookup(table, choice.name), table)
  if data is not None and "image_size" in prepared:
    size = bound.args["data"].args["image_size"]
    if size != prepared["image_size"]:
      raise ConfigError(f"{size}, but the model needs {prepared['image_size']} px. Remove this key", "data.image_size")
  return bound


def figure_names(choice: Choice) -> list[str]:
  """Returns the names of the figures that a bound choice measures. For `masked` these are the figures of all tasks.

  Args:
    choice: a bound evaluation.

  Example:
    from vit_jax import evals
    from vit_jax.schema import Choice

    assert evals.figure_names(Choice("dense")) == ["mean_iou", "pixel_accuracy", "images"]
  """
  return list(KINDS[choice.name].figures(choice.args))
