"""Checks against numbers that the original programs computed. fixtures/README.md lists these numbers."""

import json
import pathlib
from collections.abc import Iterator

from tests.parity import augmentation, models, optimizers, position_tables, probes, schedules, selfsup
from tests.parity.compare import Result

FOLDER = pathlib.Path(__file__).parent / "fixtures"
KINDS = {  # folder -> pattern of its files, function that checks a file
  "models": ("*.json", models.check),
  "posemb": ("*.npz", position_tables.check),
  "fewshot": ("*.npz", probes.check),
  "schedules": ("*.json", schedules.check),
  "optimizers": ("*.npz", optimizers.check),
  "augment": ("*.npz", augmentation.check),
  "selfsup": ("*.npz", selfsup.check),
}


def fixtures(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
  """Returns (kind, file) of every fixture in a folder of fixtures, or in a folder of one kind."""
  result = []
  for kind, (pattern, _) in KINDS.items():
    part = folder / kind if (folder / kind).is_dir() else folder
    if part is folder and folder.name != kind and not (kind in FOUND and FOUND[kind](folder)):
      continue
    result += [(kind, file) for file in sorted(part.glob(pattern)) if file.stem != "inputs"]
  return result


def _has_models(folder):
  """Returns whether a folder of any name contains descriptions of models."""
  files = sorted(folder.glob("*.json"))
  return bool(files) and "tensors" in json.loads(files[0].read_text())


def _has_self_distillation(folder):
  """Returns whether a folder of any name contains numbers of self-distillation."""
  return any(selfsup.find_check(file) for file in folder.glob("*.npz"))


FOUND = {"models": _has_models, "selfsup": _has_self_distillation}  # in a folder of any name


def check(kind: str, file: pathlib.Path) -> Iterator[Result]:
  """Yields the results of one file. A file that cannot be read gives a failed result instead of an exception."""
  try:
    yield from KINDS[kind][1](file)
  except (ArithmeticError, AssertionError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
    yield Result(file.stem, float("inf"), f"{type(error).__name__}: {error}")
