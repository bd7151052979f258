"""Evaluations: each measures the weights every so often during a run, and at its end.

An evaluation is a function of (subject, where, *, ...) that gives (params, poll) -> Outcome.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax import metrics, probes, schema
from vit_jax.data import catalog
from vit_jax.evals import fewshot as _fewshot
from vit_jax.evals.accuracy import accuracy
from vit_jax.evals.fewshot import fewshot
from vit_jax.evals.subject import Outcome, Subject
from vit_jax.schema import Choice

__all__ = ["EVALS", "PREPARED", "Outcome", "Subject", "bind", "figure_names", "make"]

EVALS = {"accuracy": accuracy, "fewshot": fewshot}
# How images are prepared: for other data as for the run's own, unless an evaluation says otherwise.
PREPARED = ("image_size", "test_crop", "mean", "std", "on_error", "threads")


def make(choice: Choice, subject: Subject, where: str) -> Callable:
  """The function (params, poll) -> Outcome of a bound choice."""
  return EVALS[choice.name](subject, where, **choice.args)


def figure_names(choice: Choice) -> list[str]:
  """The figures that a bound choice gives."""
  if choice.name == "fewshot":
    return _fewshot.figure_names(*(choice.args[name] for name in ("shots", "seeds", "probes")))
  nothing = metrics.Predictions(*(np.zeros(shape, np.int64) for shape in (0, 0, (0, 1), 0, 0)))
  return [*metrics.measure(nothing, 1), "average_precision"]


def bind(choice: Choice, prepared: Mapping[str, Any], where: str) -> Choice:
  """The choice with every argument checked and filled in; other data are `prepared` as the {argument: value} say."""
  bound = schema.bind(choice, (schema.lookup(EVALS, choice.name, where),), where)
  args = dict(bound.args)
  if data := args["data"]:
    args["data"] = catalog.bind(Choice(data.name, {**prepared, **data.args}), f"{where}.data")
    size = prepared.get("image_size", args["data"].args["image_size"])
    if args["data"].args["image_size"] != size:
      raise schema.ConfigError(
        f"{where}.data.image_size: {args['data'].args['image_size']}, but the model takes {size} px; leave it out"
      )
  if "probes" in args:
    args["probes"] = {
      name: schema.bind(
        probe, (schema.lookup(probes.PROBES, probe.name, f"{where}.probes.{name}"),), f"{where}.probes.{name}"
      )
      for name, probe in args["probes"].items()
    }
  return Choice(choice.name, args)
