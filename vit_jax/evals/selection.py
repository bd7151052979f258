"""Selection of the figure by which runs, trials and settings are ranked.

The figure belongs to the validation split if this split was measured, or else to the test split.

Every output that ranks runs uses `select_criterion`, and names the split and the metric. Runs are passed as plain
configs, the JSON values of config.json.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

VAL, TEST = "val", "test"
# names of evaluations on images that are held out of training
CALLED_VAL = ("val", "minival", "valid", "validation", "dev")
# numbers in result.json that do not measure the model
NOT_FIGURES = frozenset({"seed", "steps", "train_seconds", "images_per_second", "skipped_images"})


class Criterion(NamedTuple):
  """A figure that ranks runs, and its split.

  Attributes:
    metric: name in result.json: "val/top1", or "top1" for the evaluation "test".
    split: "val", "test", or the name of an evaluation on other data.
  """

  metric: str
  split: str

  def __str__(self) -> str:
    return f"{format_name(self.metric)} (split '{self.split}')"


def format_name(metric: str) -> str:
  """Returns the name of a figure with its evaluation: "test/top1" for "top1"."""
  return metric if "/" in metric else f"{TEST}/{metric}"


def find_split(choice: Mapping[str, Any]) -> str | None:
  """Returns the split of the run's own data that an evaluation measures, or None if it measures other data.

  Args:
    choice: arguments of the evaluation.
  """
  return None if choice.get("data") is not None else choice.get("split", choice.get("test", TEST))


def describe_role(run: Mapping[str, Any], evaluation: str) -> str:
  """Returns the split that an evaluation measures: "val", "test", or another split as text.

  A slice of the run's own data is a validation split if `data.val` names it, or if the evaluation has a name such as
  "val".

  Args:
    run: a plain config.
    evaluation: name of the evaluation.
  """
  choice, data = (run.get("evals") or {}).get(evaluation), run.get("data") or {}
  if not isinstance(choice, Mapping):
    return evaluation
  split = find_split(choice)
  if split is None:
    return f"{choice['data'].get('name')} {choice.get('split', choice.get('test', TEST))}"
  if split in (TEST, data.get(TEST)):
    return TEST
  return VAL if split in (VAL, data.get(VAL)) or evaluation in CALLED_VAL else split


def find_metric_role(run: Mapping[str, Any], metric: str) -> str:
  """Returns the `describe_role` of the evaluation that computes a figure.

  Args:
    run: a plain config.
    metric: name of the figure in result.json.
  """
  return describe_role(run, metric.rpartition("/")[0] or TEST)


def select_criterion(run: Mapping[str, object], figures: Iterable[str]) -> Criterion | None:
  """Selects the figure that ranks a run.

  Top-1 is preferred over other figures. The validation split is preferred over the test split, and the weights over
  their average.

  Args:
    run: a plain config.
    figures: names of numbers in result.json. Those in `NOT_FIGURES` are ignored.

  Returns:
    The criterion, or None if the run has no figures.

  Example:
    run = {"data": {"name": "folder"}, "evals": {"val": {"split": "val"}, "test": {}}}
    assert select_criterion(run, ["val/top1", "top1"]).metric == "val/top1"
  """
  names = [name for name in figures if name not in NOT_FIGURES and not name.endswith(("images", "_std"))]
  names = [name for name in names if name.endswith("top1")] or names
  roles = {name: find_metric_role(run, name) for name in names}
  names = [name for name in names if roles[name] == VAL] or names
  metric = min(names, key=lambda name: ("/" in name, "ema_" in name), default=None)
  return None if metric is None else Criterion(metric, roles[metric])


def select_shared_criterion(runs: Sequence[tuple[Mapping[str, object], Iterable[str]]]) -> Criterion | None:
  """Selects the figure that ranks several runs.

  The result is a figure of the validation split only if all runs have this figure. Otherwise the result is the figure
  that most runs have, with a preference for top-1 on test. Runs without figures are ignored.

  Args:
    runs: pairs (plain config, names of figures).
  """
  runs = [(run, list(figures)) for run, figures in runs]
  runs = [(run, figures) for run, figures in runs if figures]
  own = [each for run, figures in runs if (each := select_criterion(run, figures))]
  for each in dict.fromkeys(own):
    if each.split == VAL and all(each.metric in figures for _, figures in runs):
      return each
  others = [
    each
    for run, names in runs
    if (each := select_criterion(run, [name for name in names if find_metric_role(run, name) != VAL] or names))
  ]
  on_test = [each for each in others if each.metric == "top1"]
  return max(on_test or others, key=others.count, default=None)


def count_measurements(every: Mapping[str, int], step: int) -> dict[str, list[int]]:
  """Returns how often each evaluation was due before a step, and the last step at which it was due.

  Args:
    every: interval of each evaluation in steps.
    step: number of completed steps.
  """
  return {name: [step // steps, step // steps * steps] for name, steps in every.items()}


def describe_selection(run: Mapping[str, object], figures: Iterable[str], counts: Mapping[str, int]) -> dict[str, Any]:
  """Returns the record for result.json: the metric, its split, and how often training measured `test`.

  Args:
    run: a plain config.
    figures: names of the figures in result.json.
    counts: number of steps at which training measured each evaluation.
  """
  chosen = select_criterion(run, figures)
  on_test = [count for name, count in counts.items() if describe_role(run, name) == TEST]
  split = {"metric": format_name(chosen.metric), "split": chosen.split} if chosen else {"metric": None, "split": None}
  return split | {"test_measurements": max(on_test, default=0)}


def format_selection(about: Mapping[str, object]) -> str:
  """Returns a record of `describe_selection` as a sentence, or "" if no figure was measured."""
  if not about.get("metric"):
    return ""
  count, metric, split = about["test_measurements"], about["metric"], about["split"]
  # `evaluate` may have measured the run as well, before or after.
  if split == TEST:
    start = f"Ranked by {metric}: there is no validation split, so '{TEST}' is used."
  else:
    start = f"Ranked by {metric} (split '{split}')."
  if count == 0:
    return f"{start} Training did not measure '{TEST}'."
  return f"{start} Training measured '{TEST}' " + ("once, at the end." if count == 1 else f"{count} times.")
