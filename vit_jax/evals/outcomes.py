"""Measurement of the weights and their moving average by all evaluations, with the names of result.json."""

from collections.abc import Mapping

import jax

from vit_jax.evals.subject import Measure, Outcome, Poll, Weights


def run_evaluations(
  evals: Mapping[str, Measure],
  params: Weights,
  average: Weights,
  poll: Poll,
) -> dict[str, Outcome]:
  """Runs all evaluations on the weights and on their moving average.

  Args:
    evals: functions (params, poll) -> Outcome by name.
    params: {path: parameter}.
    average: {path: moving average}, or empty.
    poll: called between batches. Raises an exception to stop.

  Returns:
    {prefix of the figures: outcome}. The prefix is "" for the evaluation called test and `<name>/` for others, followed
    by `ema_` for the average.
  """
  outcomes = {}
  if evals and average:
    average = gather_average(params, average)
  for name, evaluation in evals.items():
    for prefix, weights in (("", params), ("ema_", average)):
      if weights:
        outcomes[prefix if name == "test" else f"{name}/{prefix}"] = evaluation(weights, poll)
  return outcomes


def gather_average(params: Weights, average: Weights) -> dict[str, jax.Array]:
  """Moves an average, which is distributed over more devices, to the sharding of the parameters.

  This happens once per measurement instead of once per batch.

  Args:
    params: {path: parameter}.
    average: {path: moving average}.
  """
  shardings = {path: params[path].sharding for path in average}
  return jax.jit(lambda arrays: arrays, out_shardings=shardings)(average)


def collect_figures(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
  """Returns all figures with the names of result.json.

  Args:
    outcomes: the result of `run_evaluations`.

  Example:
    from vit_jax.evals import Outcome, outcomes

    measured = {"": Outcome({"top1": 0.9}, None), "val/ema_": Outcome({"top1": 0.8}, None)}
    assert outcomes.collect_figures(measured) == {"top1": 0.9, "val/ema_top1": 0.8}
  """
  return {prefix + name: value for prefix, outcome in outcomes.items() for name, value in outcome.figures.items()}
