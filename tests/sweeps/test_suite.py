"""Tests of tables of suites: groups and means compared with published rows, and missing results."""

import json
import statistics

import pytest

from vit_jax.data.catalog import vtab
from vit_jax.sweeps import suite
from vit_jax.sweeps.trials import Trial

# Dosovitskiy et al. 2021, table 9, and its means by group, of three and all tasks.
ROWS = {
  "H/14": (
    (95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6, 91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2),
    (86.7, 87.0, 65.0, 77.63),
  ),
  "L/16": (
    (90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3, 70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7),
    (83.3, 84.7, 57.5, 72.71),
  ),
}
TASKS = list(vtab.TASKS)


def cells(text):
  """Returns [head, row] of a Markdown table."""
  return [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "---" not in line]


def run(task, top1=None, status="done", seed=0, error=""):
  config = json.dumps({"model": {"name": "ViT-B/16"}})
  figures = {} if top1 is None else {"top1": top1}
  return Trial(f"{task}{seed}", {"data.name": task, "seed": seed}, {}, None, config, status, error, figures)


@pytest.mark.parametrize("name", ROWS)
def test_means_match_published_rows(name):
  row, means = ROWS[name]
  head, found = cells(suite.format_table({task: [v / 100] for task, v in zip(TASKS, row, strict=True)}, TASKS, name))
  assert head == [
    "model",
    *(task.title for task in vtab.TASKS.values()),
    "Natural",
    "Specialized",
    "Structured",
    "Mean",
  ]
  assert found[:20] == [name, *map(str, row)]
  assert [float(cell) for cell in found[20:]] == pytest.approx(means, abs=0.051)
  assert float(found[-1]) != pytest.approx(statistics.mean(means[:3]), abs=0.1)  # not the mean of the groups


def test_incomplete_means_state_their_number_of_tasks():
  head, row = cells(suite.format_table({"dtd": [0.5, 0.6], "dmlab": [0.3, 0.2]}, TASKS, "m"))
  assert head[-4:] == ["Natural (1 of 7)", "Specialized (0 of 4)", "Structured (1 of 8)", "Mean (2 of 19)"]
  spread = 100 * statistics.stdev([0.4, 0.4])
  assert row[-4:] == ["55.00 ± 7.07", "-", "25.00 ± 7.07", f"40.00 ± {spread:.2f}"]
  assert row[head.index("SVHN")] == "-"


def test_report_names_missing_tasks_and_their_prepare_command():
  absent = run(
    "sun397", status="absent", error="dataset is not there; prepare it with: python -m vit_jax.prepare sun397"
  )
  trials = [run("dtd", 0.5, seed=seed) for seed in range(3)] + [absent, run("dmlab", status="diverged", error="NaN")]
  text = suite.format_suite(trials, trials, "data.name")
  assert (
    "Missing results of 2 of 3 tasks:" in text and "python -m vit_jax.prepare sun397" in text and "- dmlab: NaN" in text
  )
  assert "ViT-B/16" in text and "Mean (1 of 3)" in text


def test_suite_of_other_tasks_has_one_mean():
  head, row = cells(suite.format_table({"a": [0.5], "b": [0.7]}, ["a", "b"], "m"))
  assert (head, row) == (["model", "a", "b", "Mean"], ["m", "50.0", "70.0", "60.00"])
