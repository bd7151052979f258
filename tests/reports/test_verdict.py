"""Tests of the verdict: figures with intervals, costs and losses match the files."""

import dataclasses
import json

import pytest

from tests.reports import workdirs
from tests.training.test_comparison import publish
from vit_jax.checkpoints import provenance
from vit_jax.evals import intervals
from vit_jax.reports import recorded, verdict


def read(folder, **changes):
  return recorded.read_run(workdirs.run(folder, **changes), folder.name)


def test_single_run_has_its_figures_costs_and_losses(tmp_path):
  folder = workdirs.run(tmp_path / "a")
  about = "One.\n\nHardware:  two cores,\n           a minute\nResult:    99 % top-1\n"
  recipe = {"config": "configs/digits.py", "about": about, "changes": ["optim.lr: 1 -> 2"]}
  (folder / provenance.RECIPE).write_text(json.dumps(recipe))
  plan = {"problem": None, "hours": 2.5, "core_days": 3.0, "rented": "v3-32"}
  (folder / "plan.json").write_text(json.dumps([plan]))
  chapter = verdict.make_chapter([recorded.read_run(folder, "a")])
  cells = workdirs.texts(chapter)
  low, high = (100 * end for end in intervals.compute_wilson_interval(0.9, 360))
  assert chapter.parts[0].text == f"test/top1: 90.00 % (95 %: {low:.2f} to {high:.2f}). Finished, 12 steps."
  assert cells["Figures", "top1"] == ["90.00 %", f"{low:.2f} to {high:.2f} %"]
  assert cells["Figures", "loss"] == ["0.5000", ""]
  assert cells["Cost", "images seen"] == ["192"]
  assert cells["Cost", "core-hours, with start and evaluations"] == ["0.08"]
  assert cells["Cost", "planned on v3-32"] == ["core-hours: 72, hours: 2.5"]
  assert cells["Time by phase", "restarts"] == ["1"]
  assert cells["Time by phase", "of the steps, repeated after restarts"] == ["3.0 s"]
  assert cells["Time by phase", "between attempts"] == ["14.0 s"]
  assert cells["Expected by the recipe", "Result"] == ["99 % top-1"]
  assert cells["Expected by the recipe", "Hardware"] == ["two cores, a minute"]
  assert cells["Expected by the recipe", "changed by flags"] == ["optim.lr: 1 -> 2"]


def test_unfinished_run_reports_its_progress(tmp_path):
  words = verdict.make_chapter([read(tmp_path / "a", finished=False)]).parts[0].text
  assert words.endswith("Not finished: step 12 of 12 (100%).")


def test_several_runs_are_ranked_averaged_over_seeds_and_compared(tmp_path):
  many = [read(tmp_path / name, seed=seed, top1=top1, optim__lr=rate)
          for name, seed, top1, rate in (("a", 0, 0.8, 1e-3), ("b", 1, 0.9, 1e-3), ("c", 0, 0.5, 1e-2))]  # fmt: skip
  assert [run.name for run in verdict.rank_runs(many)] == ["b", "a", "c"]
  chapter = verdict.make_chapter(many)
  cells = workdirs.texts(chapter)
  assert chapter.parts[0].text.startswith("The best of 3 runs by test/top1 (split 'test') is b: 90.00 %")
  assert cells["Over seeds", "a, b"] == ["85.00 ± 7.07 (2)"]
  assert cells["Runs", "c"][0] == "50.00 %" and cells["Runs", "c"][-1] == "finished, 12 steps"
  table = next(part for part in chapter.parts if getattr(part, "title", "") == "Differences between their configs")
  assert [list(row) for row in (table.head, *table.rows)] == [
    ["key", "optim.lr", "seed"], ["a", "0.001", "0"], ["b", "0.001", "1"], ["c", "0.01", "0"],
  ]  # fmt: skip


def with_target(folder, value, record=None, **changes):
  """Returns a run with a target for top-1 on test. `record` is the entry of its result."""
  run = read(folder, log__target__metric="top1", log__target__value=value, **changes)
  return dataclasses.replace(run, result=run.result | {"target": record}) if record else run


def test_time_to_target_is_a_row_of_a_run_and_a_column_of_several(tmp_path):
  record = {"metric": "test/top1", "value": 0.85, "step": 6, "hours": 1.25}
  reached = with_target(tmp_path / "a", 0.85, record)
  cells = workdirs.texts(verdict.make_chapter([reached]))
  assert cells["Cost", "time to test/top1 85.00 %"] == ["step 6, 1.25 h"]
  missed = with_target(tmp_path / "b", 0.85, record | {"step": None, "hours": None}, seed=1)
  running = with_target(tmp_path / "c", 0.85, finished=False, seed=2)  # from its metrics
  table = next(part for part in verdict.make_chapter([reached, missed, running]).parts if hasattr(part, "rows"))
  column = list(table.head).index("time to test/top1 85.00 %")
  assert {row[0]: row[column] for row in table.rows} == {"a": "step 6, 1.25 h", "b": "not reached", "c": "step 12"}
  (known,) = [dataclasses.replace(running, progress=record | {"step": 3})]  # from its newest checkpoint
  assert (known.target["step"], known.target["hours"]) == (3, 1.25)
  other = with_target(tmp_path / "d", 0.95, finished=False)
  table = next(
    part for part in verdict.make_chapter([reached, other, read(tmp_path / "e")]).parts if hasattr(part, "rows")
  )
  column = list(table.head).index("time to target")
  assert [row[column] for row in table.rows] == [
    "test/top1 85.00 %: step 6, 1.25 h", "test/top1 95.00 %: not reached", "-",
  ]  # fmt: skip
  assert not any("time to" in name for name in next(
    part for part in verdict.make_chapter([read(tmp_path / "f"), read(tmp_path / "g")]).parts if hasattr(part, "rows")
  ).head)  # fmt: skip


def test_lower_loss_is_better(tmp_path):
  many = [read(tmp_path / name) for name in ("a", "b")]
  only = [{**run.__dict__, "result": {"steps": 12, "loss": loss}} for run, loss in zip(many, (2.0, 1.0), strict=True)]
  assert [run.name for run in verdict.rank_runs([recorded.RecordedRun(**each) for each in only])] == ["b", "a"]


def unlike(folder, name, shots, **figures):
  """Returns a run of the given task. Its result has these figures and a probe with ten images of each class."""
  run = read(folder)
  task = dataclasses.replace(run.run.task, name=name)
  result = {"steps": 12, "train_seconds": 1.0, "digits/ema_ridge_25shot": 0.9, "digits/ridge_10shot": shots, **figures}
  return dataclasses.replace(run, run=dataclasses.replace(run.run, task=task), result=result)


@pytest.mark.parametrize("backwards", [False, True])
def test_runs_of_different_tasks_are_ranked_by_a_shared_probe(tmp_path, backwards):
  runs = [unlike(tmp_path / "a", "masked_patches", 0.4, loss=3.0, accuracy=0.6)]
  runs.append(unlike(tmp_path / "b", "masked_autoencoder", 0.3, loss=0.6, rmse=0.8))
  runs = runs[::-1] if backwards else runs
  assert verdict.find_shared_headline(runs) == "digits/ridge_10shot"
  assert (
    verdict.make_chapter(runs)
    .parts[0]
    .text.startswith("The best of 2 runs by digits/ridge_10shot (split 'digits') is a: 40.00 %")
  )
  assert [run.name for run in verdict.rank_runs(runs)] == ["a", "b"]


def test_runs_of_different_tasks_without_a_shared_figure_are_not_ranked(tmp_path):
  runs = [unlike(tmp_path / name, name, 0.4) for name in ("masked_patches", "masked_autoencoder")]
  runs[1].result.pop("digits/ridge_10shot")
  assert verdict.find_shared_headline(runs) is None and verdict.rank_runs(runs[::-1]) == runs[::-1]
  assert "they are not ranked" in verdict.make_chapter(runs).parts[0].text


def validated(folder, val, test, **changes):
  """Returns a run with these accuracies on 360 images of each split. `test` was measured once, at the end."""
  run = read(folder, evals__val__name="accuracy", evals__val__split="val", evals__test__every="100%", **changes)
  result = {**run.result, "top1": test, "val/top1": val, "val/images": 360, "val/loss": 0.1}
  return dataclasses.replace(run, result=result)


def test_runs_are_ranked_by_the_validation_split_and_the_page_names_it(tmp_path):
  many = [validated(tmp_path / "low", 0.80, 0.99, optim__lr=1e-3), validated(tmp_path / "high", 0.95, 0.90)]
  assert [run.name for run in verdict.rank_runs(many)] == ["high", "low"]
  chapter = verdict.make_chapter(many)
  words = chapter.parts[0].text
  assert words.startswith("The best of 2 runs by val/top1 (split 'val') is high: 95.00 %")
  assert "'test'" not in words  # test was not used for the selection and was measured once
  table = next(part for part in chapter.parts if getattr(part, "title", "") == "Runs")
  assert list(table.head[1:4]) == ["val/top1", "95 % (Wilson)", "test/top1"]
  assert workdirs.texts(chapter)["Runs", "low"][2] == "99.00 %"


def test_selection_on_the_test_split_is_reported(tmp_path):
  words = (
    verdict.make_chapter([read(tmp_path / name, top1=top1) for name, top1 in (("a", 0.9), ("b", 0.8))]).parts[0].text
  )
  assert "by test/top1 (split 'test')" in words and "selected on 'test'" in words


def test_evaluations_of_test_during_training_are_reported(tmp_path, monkeypatch):
  run = read(tmp_path / "a")
  once = verdict.make_chapter([run]).parts[0].text
  assert "was measured" not in once
  early = [{"step": step, "test/top1": 0.5} for step in (3, 6)]
  words = verdict.make_chapter([dataclasses.replace(run, rows=[*early, *run.rows])]).parts[0].text
  assert "During training, split 'test' was measured 3 times, 2 of them before the last step. If" in words
  assert words.endswith("To avoid this, use a validation split: config.data.val, or config.data.validation.")
  publish(run.run, 0.8, monkeypatch)
  words = verdict.make_chapter([dataclasses.replace(run, rows=[*early, *run.rows])]).parts[0].text
  assert words.endswith("A run with a validation split is not compared with the published curve.")
  held = dataclasses.replace(validated(tmp_path / "b", 0.9, 0.9), rows=[{"step": 3, "val/top1": 0.5}, *run.rows])
  assert "was measured" not in verdict.make_chapter([held]).parts[0].text


@pytest.mark.parametrize(
  ("one", "other", "clear"), [(0.95, 0.80, True), (0.950, 0.945, False), (1.0, 1.0, False), (0.97, 0.92, True)]
)
def test_lead_counts_only_if_it_is_significant(tmp_path, one, other, clear):
  many = [validated(tmp_path / "a", one, 0.5), validated(tmp_path / "b", other, 0.5, optim__lr=1e-3)]
  words = verdict.make_chapter(many).parts[0].text
  low, high = (100 * end for end in intervals.compute_difference_interval(one, 360, other, 360))
  assert f"(95 %: {low:.2f} to {high:.2f}, Newcombe's interval of two shares)" in words
  assert ("not enough images to decide" in words) == (not clear)
