"""The verdict: figures with intervals, costs and losses as the files have them."""

import dataclasses
import json

import pytest
from scipy import stats

from tests.reports import workdirs
from vit_jax import identity
from vit_jax.reports import recorded, verdict


def read(folder, **changes):
  return recorded.read(workdirs.run(folder, **changes), folder.name)


@pytest.mark.parametrize(("right", "count"), [(358, 360), (0, 5), (5, 5), (1, 1), (31_415, 50_000)])
def test_intervals_are_those_of_scipy(right, count):
  expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
  assert verdict.interval(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_one_run_has_its_figures_costs_and_losses(tmp_path):
  folder = workdirs.run(tmp_path / "a")
  about = "One.\n\nHardware:  two cores,\n           a minute\nResult:    99 % top-1\n"
  recipe = {"config": "configs/digits.py", "about": about, "changes": ["optim.lr: 1 -> 2"]}
  (folder / identity.RECIPE).write_text(json.dumps(recipe))
  plan = {"problem": None, "hours": 2.5, "core_days": 3.0, "rented": "v3-32"}
  (folder / "plan.json").write_text(json.dumps([plan]))
  chapter = verdict.chapter([recorded.read(folder, "a")])
  cells = workdirs.texts(chapter)
  low, high = (100 * end for end in verdict.interval(0.9, 360))
  assert chapter.parts[0].text == f"top1: 90.00 % (95 %: {low:.2f} to {high:.2f}). Finished, 12 steps."
  assert cells["Figures", "top1"] == ["90.00 %", f"{low:.2f} to {high:.2f} %"]
  assert cells["Figures", "loss"] == ["0.5000", ""]
  assert cells["Cost", "images seen"] == ["192"]
  assert cells["Cost", "core-hours, with start and evaluations"] == ["0.08"]
  assert cells["Cost", "planned on v3-32"] == ["72 core-hours, 2.5 hours"]
  assert cells["Where the time went", "restarts"] == ["1"]
  assert cells["Where the time went", "of the steps, done in vain"] == ["3.0 s"]
  assert cells["Where the time went", "between attempts"] == ["14.0 s"]
  assert cells["What the recipe says", "Result"] == ["99 % top-1"]
  assert cells["What the recipe says", "Hardware"] == ["two cores, a minute"]
  assert cells["What the recipe says", "changed by flags"] == ["optim.lr: 1 -> 2"]


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
  words = verdict.chapter([read(tmp_path / "a", finished=False)]).parts[0].text
  assert words.endswith("Not finished: step 12 of 12 (100%).")


def test_several_runs_are_ranked_averaged_over_seeds_and_their_differences_named(tmp_path):
  many = [read(tmp_path / name, seed=seed, top1=top1, optim__lr=rate)
          for name, seed, top1, rate in (("a", 0, 0.8, 1e-3), ("b", 1, 0.9, 1e-3), ("c", 0, 0.5, 1e-2))]  # fmt: skip
  assert [run.name for run in verdict.ranked(many)] == ["b", "a", "c"]
  chapter = verdict.chapter(many)
  cells = workdirs.texts(chapter)
  assert "top1 is b: 90.00 %" in chapter.parts[0].text
  assert cells["Over seeds", "a, b"] == ["85.00 ± 7.07 (2)"]
  assert cells["Runs", "c"][0] == "50.00 %" and cells["Runs", "c"][-1] == "finished, 12 steps"
  table = next(part for part in chapter.parts if getattr(part, "title", "") == "Where their configs differ")
  assert [list(row) for row in (table.head, *table.rows)] == [
    ["", "optim.lr", "seed"], ["a", "0.001", "0"], ["b", "0.001", "1"], ["c", "0.01", "0"],
  ]  # fmt: skip


def test_a_lower_loss_is_better(tmp_path):
  many = [read(tmp_path / name) for name in ("a", "b")]
  only = [{**run.__dict__, "result": {"steps": 12, "loss": loss}} for run, loss in zip(many, (2.0, 1.0), strict=True)]
  assert [run.name for run in verdict.ranked([recorded.Recorded(**each) for each in only])] == ["b", "a"]


def unlike(folder, name, shots, **figures):
  """A run of the task of that name, with a result of these figures and of a probe by ten images of each class."""
  run = read(folder)
  task = dataclasses.replace(run.run.task, name=name)
  result = {"steps": 12, "train_seconds": 1.0, "digits/ema_ridge_25shot": 0.9, "digits/ridge_10shot": shots, **figures}
  return dataclasses.replace(run, run=dataclasses.replace(run.run, task=task), result=result)


@pytest.mark.parametrize("backwards", [False, True])
def test_runs_of_different_tasks_are_compared_by_a_probe_that_all_have_in_any_order(tmp_path, backwards):
  runs = [unlike(tmp_path / "a", "masked_patches", 0.4, loss=3.0, accuracy=0.6)]
  runs.append(unlike(tmp_path / "b", "masked_autoencoder", 0.3, loss=0.6, rmse=0.8))
  runs = runs[::-1] if backwards else runs
  assert verdict.shared_headline(runs) == "digits/ridge_10shot"
  assert verdict.chapter(runs).parts[0].text.startswith("The best of 2 runs by digits/ridge_10shot is a: 40.00 %")
  assert [run.name for run in verdict.ranked(runs)] == ["a", "b"]


def test_runs_of_different_tasks_without_a_figure_in_common_are_not_ranked(tmp_path):
  runs = [unlike(tmp_path / name, name, 0.4) for name in ("masked_patches", "masked_autoencoder")]
  runs[1].result.pop("digits/ridge_10shot")
  assert verdict.shared_headline(runs) is None and verdict.ranked(runs[::-1]) == runs[::-1]
  assert "none is the best" in verdict.chapter(runs).parts[0].text
