"""Evaluations that measure the weights periodically during a run and at its end.

An evaluation is a function (subject, *, ...) that returns a function (params, poll) -> Outcome.
"""

from vit_jax.evals.accuracy import accuracy
from vit_jax.evals.dense import dense
from vit_jax.evals.fewshot import fewshot
from vit_jax.evals.masked import masked
from vit_jax.evals.subject import EvalContext, Outcome, ProgressFactory
from vit_jax.evals.table import (
  EVALS,
  KINDS,
  REPEATED,
  EvalDefinition,
  bind_evaluation,
  figure_names,
  interval,
  make_evaluation,
  preparation_arguments,
)
