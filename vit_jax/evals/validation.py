"""Default validation: runs on the user's own files get a validation split for choosing settings, and measure test once.

Datasets with a published protocol keep it: their readers have no key `validation`.
"""

from collections.abc import Mapping

from vit_jax import schema
from vit_jax.data import catalog
from vit_jax.data.readers import folder
from vit_jax.evals import selection
from vit_jax.schema import Choice
from vit_jax.schema.partial import MEASURING


def add_splits(data: Choice, evals: Mapping[str, Choice]) -> dict[str, Choice]:
  """Sets the split of evaluations without a split, if their name is a split of the run's data.

  Args:
    data: the data choice, bound or not.
    evals: evaluations of the run, not bound yet.
  """
  slots = ("train", selection.VAL, selection.TEST)
  splits = {*slots, *(data.args.get(slot) for slot in slots)}
  return {
    name: choice.replace(split=name)
    if choice.name in MEASURING and name in splits and not {"split", "data"} & choice.args.keys()
    else choice
    for name, choice in evals.items()
  }


def add_share(data: Choice, evals: Mapping[str, Choice]) -> Choice:
  """Adds the default `validation` share to a data choice if its reader supports it and the run needs it.

  A choice is not changed if it sets `validation`, `val` or another `train`, or if the run measures neither `val` nor
  `test`.

  Args:
    data: the data choice, not bound yet.
    evals: evaluations of the run, not bound yet.
  """
  row = catalog.CATALOG.get(data.name)
  if row is None or "validation" not in schema.read_keywords(row.reader):
    return data
  if "validation" in data.args or data.args.get("val") is not None or data.args.get("train", "train") != "train":
    return data
  measured = any(_select_evaluations(split, data, evals) for split in (selection.VAL, selection.TEST))
  return data.replace(validation=folder.SHARE) if measured else data


def add_evaluations(data: Choice, evals: Mapping[str, Choice]) -> dict[str, Choice]:
  """Adds an evaluation of the validation split if the data have such a split.

  An evaluation of `test` is copied to `val`. If any evaluation measures `val`, an evaluation of `test` without its own
  `every` runs only at the end.

  Args:
    data: the bound data choice.
    evals: evaluations of the run, not bound yet.
  """
  on_test, on_val = (_select_evaluations(split, data, evals) for split in (selection.TEST, selection.VAL))
  share = bool(data.args.get("validation")) and data.args.get("val") is None
  wanted = share or (data.args.get("val") and not any("every" in choice.args for choice in on_test.values()))
  result = dict(evals)
  if on_test and not on_val and wanted and "val" not in evals:
    first = next(iter(on_test.values()))
    on_val = {"val": first.replace(split="val")}
    result = on_val | result
  if on_val:
    result |= {name: choice.replace(every="100%") for name, choice in on_test.items() if "every" not in choice.args}
  return result


def _select_evaluations(split: str, data: Choice, evals: Mapping[str, Choice]) -> dict[str, Choice]:
  """Returns the evaluations of a split, "val" or "test", of the run's data."""
  same = (split, data.args.get(split))
  return {
    name: choice
    for name, choice in evals.items()
    if choice.name in MEASURING and selection.find_split(choice.args) in same
  }
