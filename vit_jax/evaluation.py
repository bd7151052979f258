"""Assembly of an evaluation: the newest state of a run, and what its evaluations measure of it, with intervals."""

import contextlib
import logging
import pathlib
from collections.abc import Callable, Iterable, Mapping

from vit_jax import build, checkpoints, identity, mesh, metrics, steps
from vit_jax.data import class_names
from vit_jax.data.images import ImageError
from vit_jax.evals import Outcome, outcomes
from vit_jax.evals.accuracy import Details
from vit_jax.models import finite
from vit_jax.schema import Choice, ConfigError

Intervals = dict[str, tuple[float, float]]  # figure -> (low, high)


def headline(evals: Mapping[str, Choice]) -> tuple[str, Choice]:
  """The evaluation by accuracy called test, with its name, or else the first; of a run without one, a default one.

  Without one by accuracy, one of what is hidden counts, then one that goes over a split. The first is not enough: a
  workdir stores evaluations in order of their names, and "real" would come before "test".
  """
  kinds = [{name: c for name, c in evals.items() if c.name == kind} for kind in ("accuracy", "masked")]
  kinds.append({name: c for name, c in evals.items() if "split" in c.args})  # which a user registered
  fitting = next(filter(None, kinds), {})
  name = "test" if "test" in fitting else next(iter(fitting), "test")
  return name, fitting.get(name, Choice("accuracy"))


def restored(parts: build.Parts, workdir: pathlib.Path) -> steps.State:
  """Restores the newest readable checkpoint of a run.

  Args:
    parts: the run.
    workdir: its directory.

  Raises:
    ConfigError: there is no checkpoint, or classes have changed their positions since training.
    NotFiniteError: a parameter or its moving average is NaN or infinite.
  """
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), read_only=True)
  with contextlib.closing(store):
    saved = store.restore(parts.state_shapes, identity.check)
  if saved is None:
    raise ConfigError(f"{workdir} has no checkpoint yet; train first")
  state, about = saved
  named = {"parameter": state.params, "moving average of": state.ema}
  finite.check_weights({f"{kind} {path}": value for kind, arrays in named.items() for path, value in arrays.items()})
  if "identity" in about:
    before, now = about["identity"]["data"], parts.identity["data"]
    if moved := class_names.moved(before["classes"], now["classes"]):
      raise ConfigError(
        f"{workdir} was trained with the classes in another order than the data have now ({moved}, counted from 0). "
        "Restore the data as they were, or train again"
      )
    if other := identity.other_data(before, now):
      logging.warning("the data have changed since training: %s", "; ".join(other))
  return state


def measured(
  measures: Mapping[str, Callable], state: steps.State, poll: Callable[[], None]
) -> tuple[dict[str, Outcome], dict[str, Intervals]]:
  """Outcomes of evaluations of a state, and intervals of those by accuracy, both by what the figures' names begin with.

  ConfigError for an image that cannot be decoded. The arguments are those of `outcomes.measure`.
  """
  try:
    result = outcomes.measure(measures, state.params, state.ema, poll)
  except ImageError as error:
    raise ConfigError(str(error)) from error
  details = {prefix: each.details for prefix, each in result.items() if isinstance(each.details, Details)}
  return result, {prefix: intervals(each) for prefix, each in details.items()}


def intervals(details: Details) -> Intervals:
  """Computes the 95 % intervals of figures by accuracy, under their names; see `metrics.intervals`."""
  ends = metrics.intervals(details.predictions, len(details.source.classes))
  return {details.way + figure: each for figure, each in ends.items()}


def methods(details: Details, names: Iterable[str]) -> dict[str, str]:
  """Returns the method of each interval, {figure: "Wilson" or "bootstrap"}, for figures of these names."""
  return {name: metrics.interval_method(name.removeprefix(details.way), details.predictions) for name in names}
