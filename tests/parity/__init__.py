"""Numbers that the original codes computed, and what checks ours against them; fixtures/README.md says which."""

import json
import pathlib
from collections.abc import Iterator

from tests.parity import augmentation, models, optimizers, position_tables, probes, schedules, selfsup
from tests.parity.compare import Result

FOLDER = pathlib.Path(__file__).parent / "fixtures"
KINDS = {  # folder -> which files, what checks them
  "models": ("*.json", models.check),
  "posemb": ("*.npz", position_tables.check),
  "fewshot": ("*.npz", probes.check),
  "schedules": ("*.json", schedules.check),
  "optimizers": ("*.npz", optimizers.check),
  "augment": ("*.npz", augmentation.check),
  "selfsup": ("*.npz", selfsup.check),
}


def fixtures(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
  """(kind, file) of every fixture that a folder of fixtures holds, or that lies in it as in one of its parts."""
  result = []
  for kind, (pattern, _) in KINDS.items():
    part = folder / kind if (folder / kind).is_dir() else folder
    if part is folder and folder.name != kind and not (kind in FOUND and FOUND[kind](folder)):
      continue
    result += [(kind, file) for file in sorted(part.glob(pattern)) if file.stem != "inputs"]
  return result


def _has_models(folder):
  """Whether a folder of any name holds descriptions of models."""
  files = sorted(folder.glob("*.json"))
  return bool(files) and "tensors" in json.loads(files[0].read_text())


def _has_self_distillation(folder):
  """Whether a folder of any name holds numbers of self-distillation."""
  return any(selfsup.find_check(file) for file in folder.glob("*.npz"))


FOUND = {"models": _has_models, "selfsup": _has_self_distillation}  # in a folder of any name


def check(kind: str, file: pathlib.Path) -> Iterator[Result]:
  """The results of one file; a file that cannot be understood is a failure, not the end."""
  try:
    yield from KINDS[kind][1](file)
  except (ArithmeticError, AssertionError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
    yield Result(file.stem, float("inf"), f"{type(error).__name__}: {error}")
