"""The compiled train step of each recipe has the stored figures. `make golden` stores new ones."""

import json
import sys

import pytest

from tests.planning import golden

STORED = json.loads(golden.FILE.read_text())
ADVICE = "If the change is wanted, run make golden and commit tests/planning/golden.json"


def test_stored_figures_are_those_of_the_present_recipes():
  assert list(STORED["programs"]) == golden.NAMES, ADVICE
  assert STORED["slice"] == golden.SLICE


@pytest.mark.golden
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", golden.NAMES)
def test_program_has_the_stored_figures(name):
  if golden.read_version() != STORED["libtpu"]:
    problem = f"the figures are those of libtpu {STORED['libtpu']}; {golden.read_version()} is installed"
    if sys.version_info < (3, 12):  # newer versions of Python install a newer JAX with another compiler
      pytest.fail(f"{problem}. Run make golden")
    pytest.skip(problem)
  differences = golden.compare(STORED["programs"][name], golden.measure(name))
  assert not differences, f"{name}: {'; '.join(differences)}. {ADVICE}"


def test_comparison_lists_figures_that_differ_by_more_than_two_percent():
  stored = {"cycles": 1000, "operations": {"copies": 100}, "collectives": {"all-reduce": [3, 500]}, "kernels": {}}
  assert golden.compare(stored, stored | {"cycles": 1020, "operations": {"copies": 98}}) == []
  changed = {"cycles": 1021, "operations": {"other": 1}, "collectives": {"all-reduce": [4, 500]}, "kernels": {"k": 1}}
  assert golden.compare(stored, changed) == [
    "cycles 1,000 -> 1,021",
    "operations copies 100 -> 0",
    "collectives all-reduce number 3 -> 4",
    "operations other 0 -> 1",
    "kernels k 0 -> 1",
  ]
