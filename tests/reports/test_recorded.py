"""Tests of reading a run from the small files of its workdir, including invalid and truncated files."""

import json

import numpy as np
import pytest

from tests.reports import workdirs
from vit_jax.checkpoints import provenance
from vit_jax.reports import curves, page, recorded, scaling, verdict
from vit_jax.schema import ConfigError


def test_hours_images_and_figures_match_the_files(tmp_path):
  run = recorded.read_run(workdirs.run(tmp_path / "a"), "a")
  assert (run.steps, run.total, run.attempts, run.waited) == (12, 12, 2, 14.0)
  assert run.cores == 2 and run.core_hours == pytest.approx(2 * 144 / 3600)
  assert run.figures == {"top1": 0.9, "loss": 0.5, "images": 360}
  loss = run.series("train/loss")
  np.testing.assert_allclose(loss.images, [32, 64, 96, 128, 160, 192])
  np.testing.assert_allclose(loss.values, [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6])
  # A second formulation: images divided by the rate of one core.
  np.testing.assert_allclose(loss.hours, loss.images / 50 / 3600)
  np.testing.assert_allclose(run.series("test/top1").hours, [192 / 50 / 3600])


def test_unfinished_run_has_the_figures_of_its_last_evaluation(tmp_path):
  run = recorded.read_run(workdirs.run(tmp_path / "a", finished=False), "a")
  assert run.result == {} and run.figures == {"top1": 0.9, "loss": 0.5, "images": 360}
  assert run.total == 12


def test_invalid_lines_and_values_are_ignored(tmp_path):
  folder = workdirs.run(tmp_path / "a")
  with (folder / "metrics.jsonl").open("a") as lines:
    lines.write(
      '{"step": 13, "train/loss": NaN}\n[1]\n{"step": "x"}\n{"step": 14, "train/loss": "<b>"}\n{"step": 15, "tr'
    )
  assert [row["step"] for row in recorded.read_run(folder, "a").rows][-3:] == [12, 13, 14]
  np.testing.assert_array_equal(recorded.read_run(folder, "a").series("train/loss").images[-1], 192)


@pytest.mark.parametrize("text", ["[]", '{"steps": "many"}', "{}"])
def test_invalid_result_is_refused_or_ignored(text, tmp_path):
  folder = workdirs.run(tmp_path / "a")
  (folder / "result.json").write_text(text)
  if text == "[]":
    with pytest.raises(ConfigError, match=r"result\.json"):
      recorded.read_run(folder, "a")
  else:
    assert recorded.read_run(folder, "a").result == {}


def test_plan_and_recipe_are_read(tmp_path):
  folder = workdirs.run(tmp_path / "a")
  plan = {"problem": None, "hours": 2.5, "core_days": 3.0, "rented": "v3-32"}
  (folder / "plan.json").write_text(json.dumps([plan, {**plan, "problem": "does not fit"}]))
  (folder / provenance.RECIPE).write_text(json.dumps({"config": "configs/digits.py"}))
  run = recorded.read_run(folder, "a")
  assert list(run.plans) == [plan] and run.recipe == {"config": "configs/digits.py"}
  for odd in ('{"a": 1}', '[{"problem": null, "hours": 1, "rented": "x"}]', json.dumps([plan | {"core_days": "x"}])):
    (folder / "plan.json").write_text(odd)
    with pytest.raises(ConfigError, match=r"plan\.json"):
      recorded.read_run(folder, "a")


def test_folder_without_a_run_is_named(tmp_path):
  with pytest.raises(ConfigError, match="no run"):
    recorded.read_run(tmp_path, "a")


@pytest.mark.parametrize(
  "odd",
  [
    {"images_per_second_per_chip": 1.0},
    {"train/loss": 10**400, "images_per_second": 1e308, "images_per_second_per_chip": 5e-324},
    {"train/loss": -1e308, "images_per_second": 0.0, "images_per_second_per_chip": 0.0},
  ],
)
def test_unusual_lines_and_results_give_a_page(odd, tmp_path):
  folder = workdirs.run(tmp_path / "a")
  with (folder / "metrics.jsonl").open("a") as lines:
    lines.write(json.dumps({"step": 13, **odd}) + "\n")
  figures = {"top1": -1, "images": 1e308, "images_per_second": "x", "goodput": None, "packages": [1], "a_0shot": 1.0}
  (folder / "result.json").write_text(json.dumps({"steps": 13, "train_seconds": 1.0} | figures))
  run = recorded.read_run(folder, "a")
  assert run.cores in (1, 2)
  for chapter in (verdict.make_chapter([run]), curves.make_chapter([run]), scaling.make_chapter([run])):
    page.render_page("a", "", [chapter])


def test_thinned_series_keeps_its_ends():
  series = recorded.Curve(np.arange(100.0), np.arange(100.0), np.arange(100.0) ** 2)
  few = series.thin_out(7)
  assert len(few.values) == 7 and (few.images[0], few.images[-1], few.values[-1]) == (0, 99, 99**2)
  np.testing.assert_array_equal(series.thin_out(1000).values, series.values)
