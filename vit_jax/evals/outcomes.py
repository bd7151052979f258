"""All evaluations of a state, of its weights and of their average, under the names of result.json."""

from collections.abc import Callable, Mapping

import jax

from vit_jax.evals.subject import Outcome


def measure(
  evals: Mapping[str, Callable],
  params: dict[str, jax.Array],
  average: dict[str, jax.Array],
  poll: Callable[[], None],
) -> dict[str, Outcome]:
  """Outcomes by what their figures begin with: nothing for the evaluation called test, `<name>/` for others; then
  `ema_` for the average of the weights.

  Args:
    evals: functions (params, poll) -> Outcome by name.
    params: {path: parameter}.
    average: {path: moving average}, or nothing.
    poll: called between batches; raises to stop.
  """
  outcomes = {}
  if evals and average:
    average = gathered(params, average)
  for name, evaluation in evals.items():
    for prefix, weights in (("", params), ("ema_", average)):
      if weights:
        outcomes[prefix if name == "test" else f"{name}/{prefix}"] = evaluation(weights, poll)
  return outcomes


def gathered(params: dict[str, jax.Array], average: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """An average, which is spread over more devices, sharded as the parameters: once, not by every batch."""
  shardings = {path: params[path].sharding for path in average}
  return jax.jit(lambda arrays: arrays, out_shardings=shardings)(average)


def figures(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
  """All figures under the names of result.json."""
  return {prefix + name: value for prefix, outcome in outcomes.items() for name, value in outcome.figures.items()}
