"""Search for the published curve of a run, and classification of the differences between their configs."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import trees
from vit_jax.certificates.curves import Curve

# Groups of a config that determine the curve of a run. The initial weights of fine-tuned models are not compared.
GROUPS = ("model", "data", "optim", "task", "total", "batch")
# Keys in these groups that do not change the expected curve: files, threads, memory, and the order of operations.
IGNORED = (
  "data.path", "data.test", "data.val", "data.order*", "data.threads", "data.workers", "data.prefetch", "data.on_error",
  "data.max_*", "model.scan", "model.remat", "optim.accumulate", "optim.ema*",
)  # fmt: skip
# Two implementations of the same function.
SAME_ATTENTION = {"xla", "fused"}
# Floating-point types. They change values slightly, so the band is wider.
WIDENED = ("model.dtype", "model.*.dtype", "optim.*dtype")

SHOWN = 3  # maximum number of differences that are shown with their values


class Match(NamedTuple):
  """A published curve, and the differences between its config and that of a run.

  Attributes:
    curve: the curve.
    evaluation: name of the run's evaluation on the same split, or None.
    widened: differences that make the band wider, as lines.
    refused: differences that make the curves incomparable, as lines.
  """

  curve: Curve
  evaluation: str | None
  widened: Sequence[str]
  refused: Sequence[str]

  def explain_refusal(self) -> str:
    """Returns why the run cannot be compared with the curve, or "" if it can."""
    if self.refused:
      others = [line.partition(":")[0] for line in self.refused[SHOWN:]]
      lines = list(self.refused[:SHOWN]) + ([f"and in {', '.join(others)}"] if others else [])
      schedule = (
        ". Runs with different schedules cannot be compared at the same fraction" if self._has_other_schedule() else ""
      )
      return "the config differs in " + "; ".join(lines) + schedule
    if self.evaluation is None:
      return f"no evaluation measures the accuracy on the split {self.curve.split!r}"
    return ""

  def _has_other_schedule(self) -> bool:
    return any(line.startswith(("total:", "optim.schedule")) for line in self.refused)


def find_match(
  run: Mapping[str, Any], curves: Sequence[Curve], complete: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Match | None:
  """Returns the curve that was published for the model, data and task of a run, with the fewest differences.

  Args:
    run: plain config of the run, with all defaults.
    curves: the curves.
    complete: function that adds all defaults to a plain config.

  Returns:
    The match, or None if no curve has this model, dataset and task.
  """
  names = [run[group]["name"] for group in ("model", "data", "task")]
  found = [curve for curve in curves if [curve.config[group]["name"] for group in ("model", "data", "task")] == names]
  matches = [_compare(curve, complete(curve.config), run) for curve in found]
  return min(matches, key=lambda match: (len(match.refused), len(match.widened)), default=None)


def _compare(curve: Curve, published: Mapping[str, Any], run: Mapping[str, Any]) -> Match:
  lines = trees.list_differences(_select_groups(published), _select_groups(run))
  kept = [line for line in lines if not _matches(line, IGNORED)]
  widened = [line for line in kept if _matches(line, WIDENED)]
  refused = [line for line in kept if line not in widened]
  start = run["init"]["from"]
  if (start is not None) != curve.fine_tuned:
    refused.append(f"init.from: {'weights' if curve.fine_tuned else None} -> {start!r}")
  return Match(curve, _find_evaluation(run, published["data"].get(curve.split, curve.split)), widened, refused)


def _select_groups(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the groups of a plain config that determine its curve. Fused attention is replaced by XLA's."""
  groups = {key: values[key] for key in GROUPS}
  attention = groups["model"].get("attention")
  if isinstance(attention, Mapping) and attention["name"] in SAME_ATTENTION:
    groups["model"] = groups["model"] | {"attention": {"dropout": 0.0, **attention, "name": "xla"}}
  return groups


def _matches(line: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(line.partition(":")[0], pattern) for pattern in patterns)


def _find_evaluation(run: Mapping[str, Any], split: str) -> str | None:
  """Returns the name of the run's evaluation that measures the accuracy on a split of the dataset, or None."""
  return next(
    (
      name
      for name, choice in run["evals"].items()
      if choice["name"] == "accuracy"
      and choice["data"] is None
      and run["data"].get(choice["split"], choice["split"]) == split
    ),
    None,
  )
