"""result.json: what a finished run leaves in its workdir."""

import json
import math
import pathlib
from typing import Any

from vit_jax import files
from vit_jax.runtime import say

NUMBERS = ("steps", "images", "seconds", "per_second")  # ends of the names of what readers count with


def read(workdir: pathlib.Path) -> dict[str, Any] | None:
  """The result in a workdir; None where there is none, and where a figure in it is no number, which is said."""
  file = workdir / "result.json"
  result = files.read_json(file)
  wrong = [name for name, value in (result or {}).items() if name.endswith(NUMBERS) and not _fits(name, value)]
  if wrong:
    say(f"{file}: {wrong[0]} is {str(result[wrong[0]])[:80]!r}, which is no number; the result is made again")
  return None if wrong else result


def is_number(value: Any) -> bool:
  """Whether a JSON value is a finite number."""
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def write(workdir: pathlib.Path, result: dict[str, Any]) -> None:
  """Replaces the result."""
  files.write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")


def _fits(name, value):
  # A run that was too short for a lap has no rate.
  return is_number(value) or (value is None and name == "images_per_second")
