"""Evaluation of a run: restores its newest checkpoint and measures it, with intervals."""

import contextlib
import logging
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from vit_jax import checkpoints, evals
from vit_jax.checkpoints import forms, provenance
from vit_jax.data import class_names
from vit_jax.data.images import ImageError
from vit_jax.evals import Outcome, metrics, outcomes
from vit_jax.evals.accuracy import AccuracyDetails
from vit_jax.evals.intervals import METHODS, NONE
from vit_jax.models import finite
from vit_jax.parallel import sharding
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import steps
from vit_jax.training.experiment import Experiment

Intervals = dict[str, tuple[float, float]]  # figure -> (low, high)


def select_headline(choices: Mapping[str, evals.BoundEval]) -> tuple[str, evals.BoundEval]:
  """Returns the main (headline) evaluation of a run, and its name.

  The order of preference is: an accuracy evaluation, a masked-image evaluation, then any evaluation with a split.
  Within each group, the name "test" is preferred, then the first name. A run without any of these gets a default
  accuracy evaluation. The first evaluation would not be a suitable choice. A workdir stores evaluations in order of
  their names, so "real" would precede "test".

  Args:
    choices: evaluations of a run by name.
  """
  kinds = [{name: each for name, each in choices.items() if each.name == kind} for kind in ("accuracy", "masked")]
  kinds.append({name: each for name, each in choices.items() if each.split})  # evaluations that a user registered
  fitting = next(filter(None, kinds), {})
  name = "test" if "test" in fitting else next(iter(fitting), "test")
  return name, fitting.get(name) or evals.bind_evaluation(Choice("accuracy"), evals.REPEATED, {})


def restore_newest(experiment: Experiment, workdir: pathlib.Path) -> steps.State[jax.Array]:
  """Restores the newest readable checkpoint of a run.

  Args:
    experiment: the run.
    workdir: its directory.

  Raises:
    ConfigError: the run has not saved a checkpoint, or the order of the classes has changed since training.
    NotFiniteError: a parameter or its moving average is NaN or infinite.
  """
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(experiment.mesh), read_only=True)
  with contextlib.closing(store):
    saved = store.restore(experiment.state_shapes, forms.check_metadata)
  if saved is None:
    raise ConfigError(f"{workdir} has no checkpoint yet. Train first")
  state, about = saved
  named = {"parameter": state.params, "moving average of": state.ema}
  finite.check_weights({f"{kind} {path}": value for kind, arrays in named.items() for path, value in arrays.items()})
  if "identity" in about:
    before, now = about["identity"]["data"], experiment.identity["data"]
    if moved := class_names.describe_moved(before["classes"], now["classes"]):
      raise ConfigError(
        f"{workdir} was trained with classes in another order than the current data ({moved}, counted from 0). "
        "Restore the data as they were, or train again"
      )
  warn_of_other_data(experiment, about)
  return state


def warn_of_other_data(experiment: Experiment, about: Mapping[str, Any]) -> None:
  """Warns if the data of a run have changed. The warning names the splits with different images.

  Args:
    experiment: the run.
    about: description in the checkpoint.
  """
  if "identity" not in about:
    return
  before = about["identity"]["data"]
  other = provenance.compare_data(before, experiment.identity["data"]) + provenance.compare_splits(
    before, experiment.images.source
  )
  if other:
    logging.warning("the data have changed since training: %s", "; ".join(other))


def measure_state(
  measures: Mapping[str, evals.Measure], state: steps.State[jax.Array], poll: Callable[[], None]
) -> tuple[dict[str, Outcome], dict[str, Intervals]]:
  """Measures a state with all evaluations.

  Args:
    measures: functions that measure parameters, by name of the evaluation.
    state: the weights.
    poll: called after each batch. It may raise an exception to stop.

  Returns:
    (outcomes of all evaluations, intervals of the accuracy evaluations). The keys of both are the prefixes of the
    figures' names.

  Raises:
    ConfigError: an image cannot be decoded.
  """
  try:
    result = outcomes.run_evaluations(measures, state.params, state.ema, poll)
  except ImageError as error:
    raise ConfigError(str(error)) from error
  details = {prefix: each.details for prefix, each in result.items() if isinstance(each.details, AccuracyDetails)}
  return result, {prefix: measure_intervals(each) for prefix, each in details.items()}


def measure_intervals(details: AccuracyDetails) -> Intervals:
  """Computes the 95 % intervals of the figures of an accuracy evaluation; see `metrics.compute_intervals`."""
  ends = metrics.compute_intervals(details.predictions, len(details.source.classes))
  return {details.way + figure: each for figure, each in ends.items()}


def describe_intervals(measured: dict[str, Outcome], intervals: dict[str, Intervals]) -> list[str]:
  """Returns lines that name the method of the intervals, and the figures without an interval.

  Args:
    measured: outcomes by prefix.
    intervals: intervals by prefix.
  """
  if not intervals:
    return []
  without = [
    prefix + name
    for prefix, ends in intervals.items()
    for name in measured[prefix].figures
    if name not in ends and not name.endswith(("images", "average_precision"))
  ]
  return [METHODS] + [f"No interval for {', '.join(without)}: {NONE}."] * bool(without)


def list_methods(details: AccuracyDetails, names: Iterable[str]) -> dict[str, str]:
  """Returns the method of each interval, "Wilson" or "bootstrap".

  Args:
    details: details of an accuracy evaluation.
    names: names of figures.
  """
  return {name: metrics.choose_interval_method(name.removeprefix(details.way), details.predictions) for name in names}
