"""Evaluations that measure the weights periodically during a run and at its end.

An evaluation is a function (subject, *, ...) that returns a function (params, poll) -> Outcome.
"""

from vit_jax.evals.accuracy import accuracy
from vit_jax.evals.dense import dense
from vit_jax.evals.fewshot import fewshot
from vit_jax.evals.masked import masked
from vit_jax.evals.subject import EvalContext, Measure, OpenSplit, Outcome, Poll, ProgressFactory
from vit_jax.evals.table import (
  EVALS,
  KINDS,
  REPEATED,
  BoundEval,
  EvalDefinition,
  bind_evaluation,
  interval,
  list_figure_names,
)
