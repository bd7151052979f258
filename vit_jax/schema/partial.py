"""Completion of evaluations for which a config sets only some keys. The other keys come from the default evaluation."""

from collections.abc import Mapping
from typing import Any

import ml_collections

MEASURING = ("accuracy", "masked")  # evaluations that measure one split
_GROUPS = Mapping | ml_collections.ConfigDict


def add_names(config: Mapping[str, object]) -> Mapping[str, Any]:
  """Returns an editable config in which the evaluations "val" and "test" have a name.

  An evaluation without `name` that sets other keys is completed. By default, "val" is the first evaluation of the test
  split, applied to the split "val", and "test" is an accuracy.

  Args:
    config: the config as the user wrote it.
  """
  evals = config["evals"] if isinstance(config, _GROUPS) and "evals" in config else None
  if not isinstance(evals, _GROUPS) or not any(_is_partial(evals.get(name)) for name in ("val", "test")):
    return config
  result = dict(evals)
  if _is_partial(result.get("test")):
    result["test"] = {"name": "accuracy", **result["test"]}
  if _is_partial(result.get("val")):
    others = [each for name, each in result.items() if name != "val" and isinstance(each, _GROUPS)]
    on_test = [each for each in others if _measures_test_split(each)]
    first = on_test[0] if on_test else {"name": "accuracy"}
    result["val"] = {**first, "split": "val", **result["val"]}
  return {**config, "evals": result}


def _measures_test_split(choice: Mapping[str, object]) -> bool:
  """Returns true if an evaluation measures the test split of the run's own data."""
  return choice.get("name") in MEASURING and choice.get("data") is None and choice.get("split", "test") == "test"


def _is_partial(choice: object) -> bool:
  """Returns true if a value of a config has keys of an evaluation of the run's own data, but no name."""
  return isinstance(choice, _GROUPS) and len(choice) > 0 and "name" not in choice and "data" not in choice
