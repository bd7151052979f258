"""Evaluations: each measures the weights every so often during a run, and at its end.

An evaluation is a function of (subject, *, ...) that gives (params, poll) -> Outcome.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vit_jax import schema
from vit_jax.data import augment, loader, stream
from vit_jax.evals import accuracy as _accuracy
from vit_jax.evals import dense as _dense
from vit_jax.evals import fewshot as _fewshot
from vit_jax.evals import masked as _masked
from vit_jax.evals.accuracy import accuracy
from vit_jax.evals.dense import dense
from vit_jax.evals.fewshot import fewshot
from vit_jax.evals.masked import masked
from vit_jax.evals.subject import Outcome, Screen, Subject
from vit_jax.schema import Choice, ConfigError, Derived, Duration, arguments, at, lookup

__all__ = [
  "EVALS",
  "KINDS",
  "REPEATED",
  "Kind",
  "Outcome",
  "Screen",
  "Subject",
  "bind",
  "figure_names",
  "interval",
  "make",
  "preparation",
]


def interval(steps_of: Callable[[Duration], int], *, every: Duration = Duration("20%")) -> int:
  """Steps of a run from one measurement to the next; there is always one at its end."""
  return max(1, steps_of(every))


class Kind(NamedTuple):
  """An evaluation that a config can choose."""

  measure: Callable  # (subject, *, keys of the config) -> (params, poll) -> Outcome
  figures: Callable[[Mapping[str, Any]], list[str]]  # bound arguments -> names of the figures that it measures


# One row for each evaluation; the two tables below follow from it.
KINDS = {
  "accuracy": Kind(accuracy, lambda args: _accuracy.figure_names(args["data"], args["classes"])),
  "fewshot": Kind(fewshot, lambda args: _fewshot.figure_names(args["shots"], args["seeds"], args["probes"])),
  "dense": Kind(dense, lambda args: list(_dense.FIGURES)),
  "masked": Kind(masked, lambda args: _masked.figure_names()),
}
EVALS = Derived(KINDS, lambda name, kind: kind.measure)
REPEATED = Derived(KINDS, lambda name, kind: (kind.measure, interval))  # during a run


def make(choice: Choice, subject: Subject) -> Callable:
  """The function (params, poll) -> Outcome of a bound choice."""
  function, *_ = lookup(EVALS, choice.name)
  return function(subject, **arguments(choice, function))


def preparation(data: Choice) -> dict[str, Any]:
  """How images of a bound data choice are prepared: other data as these, unless an evaluation says otherwise.

  Whether EXIF counts is a fact of each dataset by itself.
  """
  prepared = arguments(data, stream.eval_examples, loader.batches, augment.normalise)
  return {key: value for key, value in prepared.items() if key != "exif"}


def bind(choice: Choice, table: schema.Table, prepared: Mapping[str, Any]) -> Choice:
  """The choice with every argument checked and filled in; other data are `prepared` as the {argument: value} say."""
  with at("data"):
    data = schema.convert(choice.args.get("data"), Choice | None)
  if data is not None:
    choice = Choice(choice.name, {**choice.args, "data": Choice(data.name, {**prepared, **data.args})})
  bound = schema.bind(choice, lookup(table, choice.name), table)
  if data is not None and "image_size" in prepared:
    size = bound.args["data"].args["image_size"]
    if size != prepared["image_size"]:
      raise ConfigError(f"{size}, but the model takes {prepared['image_size']} px; leave it out", "data.image_size")
  return bound


def figure_names(choice: Choice) -> list[str]:
  """Returns the names of the figures that a bound choice measures; for `masked` those of all tasks."""
  return list(KINDS[choice.name].figures(choice.args))
