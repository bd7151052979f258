"""Stored figures of the train step of each recipe: make golden, or python -m tests.planning.golden [RECIPE ...]

The train step is compiled for v3-8 with two blocks and 8 images per core. golden.json contains the figures, so that a
review shows each change of a compiled program. The figures depend on the version of the TPU compiler.
"""

import collections
import importlib.metadata
import inspect
import json
import pathlib
import sys
from typing import Any

from tests import recipes
from vit_jax import config, models
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.parallel import hardware
from vit_jax.planning import costs, estimate, hlo
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun

FILE = pathlib.Path(__file__).parent / "golden.json"
SLICE = "v3-8"
# Plans of `folder` and `noisy_student` need data. Ablations have the models of `digits`, `glyphs` and `scenes`.
NAMES = [name for name in recipes.NAMES if name not in ("folder", "noisy_student") and "/" not in name]
SMALL = {"batch": "64", "optim.accumulate": "1"}
TOLERANCE = 0.02


def read_version() -> str:
  """Returns the version of the TPU compiler."""
  return importlib.metadata.version("libtpu")


def measure(name: str) -> dict[str, Any]:
  """Compiles the train step of a recipe and returns its figures.

  Args:
    name: name of the recipe.

  Returns:
    `cycles`, the cycles of a step without collectives and kernels; `operations`, the number of operations by kind;
    `collectives`, {kind: [number, bytes]}; `kernels`, the number of calls by name.
  """
  with estimate.use_tpu_compiler(kernels=False):
    devices = estimate.make_topology_devices(hardware.parse_slice(SLICE))
    compiled = build.build(load(name), devices, catalog.open_known_split).compile()
  text = compiled.as_text()
  assert text is not None
  program = hlo.read_program(text)
  kinds = collections.Counter(costs.find_kind(operation) for operation in program.operations)
  return {
    "cycles": program.cycles,
    "operations": dict(sorted(kinds.items())),
    "collectives": {kind: [each.calls, round(each.moved)] for kind, each in sorted(program.collectives.items())},
    "kernels": dict(sorted(program.kernels.items())),
  }


def compare(stored: dict[str, Any], measured: dict[str, Any]) -> list[str]:
  """Returns a line for each figure that differs by more than `TOLERANCE`.

  Args:
    stored: figures of golden.json.
    measured: figures of `measure`.
  """
  before, after = flatten(stored), flatten(measured)
  return [
    f"{name} {before[name]:,} -> {after[name]:,}"
    for name in dict.fromkeys((*before, *after))
    if abs(after[name] - before[name]) > TOLERANCE * before[name]
  ]


def flatten(figures: dict[str, Any]) -> collections.Counter[str]:
  """Returns the figures by name, such as "operations copies". Absent figures are 0.

  Args:
    figures: figures of `measure`.
  """
  flat = collections.Counter({"cycles": figures["cycles"]})
  for group in ("operations", "kernels"):
    flat.update({f"{group} {name}": number for name, number in figures[group].items()})
  for kind, (number, size) in figures["collectives"].items():
    flat.update({f"collectives {kind} number": number, f"collectives {kind} bytes": size})
  return flat


def load(name: str) -> BoundRun:
  """Returns the run of a recipe with a small batch, and with two blocks in each stack of blocks.

  Args:
    name: name of the recipe.
  """
  edited = recipes.load(name)
  for key, text in (SMALL | recipes.needed(name, {"init.from": "weights.npz"})).items():
    flags.set_value(edited, key, text)
  if "depth" in inspect.signature(models.lookup(edited.model.name)).parameters:
    flags.set_value(edited, "model.depth", "2")
  if "depth" in edited.task:
    edited.task.depth = 2  # of a decoder
  return build.complete(config.resolve(edited))


def main() -> None:
  """Measures the recipes that the arguments name, or all, and stores their figures."""
  stored = json.loads(FILE.read_text())["programs"] if FILE.exists() else {}
  for name in sys.argv[1:] or NAMES:
    stored[name] = measure(name)
    print(f"{name:20} {stored[name]['cycles']:>12,} cycles", flush=True)
    programs = {name: stored[name] for name in NAMES if name in stored}
    FILE.write_text(json.dumps({"libtpu": read_version(), "slice": SLICE, "programs": programs}, indent=1) + "\n")


if __name__ == "__main__":
  main()
