"""Validation by default: a run on files of the user has a validation split for choices, and measures test once.

Datasets with a published protocol keep theirs: their readers have no key `validation`.
"""

from collections.abc import Mapping

from vit_jax import schema, selection
from vit_jax.data import catalog
from vit_jax.data.readers import folder
from vit_jax.schema import Choice
from vit_jax.schema.partial import MEASURING


def with_splits(data: Choice, evals: Mapping[str, Choice]) -> dict[str, Choice]:
  """Returns the evaluations, in which one that is named like a split of the run's data and sets no split measures it.

  Args:
    data: as the config has it, bound or not.
    evals: of the run, not bound yet.
  """
  slots = ("train", selection.VAL, selection.TEST)
  splits = {*slots, *(data.args.get(slot) for slot in slots)}
  return {
    name: Choice(choice.name, {**choice.args, "split": name})
    if choice.name in MEASURING and name in splits and not {"split", "data"} & choice.args.keys()
    else choice
    for name, choice in evals.items()
  }


def with_share(data: Choice, evals: Mapping[str, Choice]) -> Choice:
  """Returns the data choice with a default `validation` share, if its reader can hold one out and a run needs it.

  A choice that sets `validation`, `val` or another `train` stays as it is, as does one that is measured on neither
  `val` nor `test`.

  Args:
    data: as the config has it, not bound yet.
    evals: of the run, not bound yet.
  """
  row = catalog.CATALOG.get(data.name)
  if row is None or "validation" not in schema.keywords(row.reader):
    return data
  if "validation" in data.args or data.args.get("val") is not None or data.args.get("train", "train") != "train":
    return data
  measured = any(_on(split, data, evals) for split in (selection.VAL, selection.TEST))
  return Choice(data.name, {**data.args, "validation": folder.SHARE}) if measured else data


def with_evaluations(data: Choice, evals: Mapping[str, Choice]) -> dict[str, Choice]:
  """Returns the evaluations with one of the validation split, if the data have such a split.

  An evaluation of `test` is copied to `val`. If any evaluation measures `val`, those of `test` without an `every` of
  their own are due at the end alone.

  Args:
    data: bound.
    evals: of the run, not bound yet.
  """
  on_test, on_val = (_on(split, data, evals) for split in (selection.TEST, selection.VAL))
  share = bool(data.args.get("validation")) and data.args.get("val") is None
  wanted = share or (data.args.get("val") and not any("every" in choice.args for choice in on_test.values()))
  result = dict(evals)
  if on_test and not on_val and wanted and "val" not in evals:
    first = next(iter(on_test.values()))
    on_val = {"val": Choice(first.name, {**first.args, "split": "val"})}
    result = on_val | result
  if on_val:
    result |= {
      name: Choice(choice.name, {**choice.args, "every": "100%"})
      for name, choice in on_test.items()
      if "every" not in choice.args
    }
  return result


def _on(split, data, evals) -> dict[str, Choice]:
  """Returns the evaluations of this split, "val" or "test", of the data of the run."""
  same = (split, data.args.get(split))
  return {
    name: choice
    for name, choice in evals.items()
    if choice.name in MEASURING and selection.split_of(choice.args) in same
  }
