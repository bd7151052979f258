"""Tests of settings, ranks and tables of trials, with values computed by hand."""

import pathlib
import statistics

import numpy as np
import pytest

from vit_jax.config import Sweep
from vit_jax.sweeps import results
from vit_jax.sweeps.trials import Trial, group_settings


def trial(status="done", figures=(), **changes):
  changes = {key.replace("__", "."): value for key, value in changes.items()}
  return Trial(repr(changes), changes, {}, pathlib.Path("x"), "{}", status, figures=dict(figures))


def four(first=(0.5, 0.7), second=(0.9, 0.1), figure="val/top1"):
  return [
    trial(figures={figure: value}, optim__lr=lr, seed=seed)
    for lr, values in ((0.1, first), (0.2, second))
    for seed, value in enumerate(values)
  ]


def test_best_setting_has_the_best_mean_over_complete_seeds():
  candidates = group_settings(four())
  assert [setting.changes["optim.lr"] for setting in results.rank_settings(candidates, "val/top1")] == [0.1, 0.2]
  losses = group_settings(four((0.5, 0.7), (0.1, 0.2), "val/loss"))
  assert [setting.changes["optim.lr"] for setting in results.rank_settings(losses, "val/loss")] == [0.2, 0.1]
  failing = group_settings([*four(), trial("diverged", optim__lr=0.1, seed=2)])
  assert [setting.changes["optim.lr"] for setting in results.rank_settings(failing, "val/top1")] == [0.2]
  equal = group_settings(four((0.5, 0.5), (0.5, 0.5)))
  assert [setting.changes["optim.lr"] for setting in results.rank_settings(equal, "val/top1")] == [0.1, 0.2]
  for setting, loss in zip(equal, (0.3, 0.2), strict=True):
    for one in setting.trials:
      one.figures["val/loss"] = loss
  assert [setting.changes["optim.lr"] for setting in results.rank_settings(equal, "val/top1")] == [0.2, 0.1]


def test_only_varied_keys_are_columns_of_the_table():
  trials = [*four(), trial(optim__lr=0.1, seed=0, batch=3)]
  assert results.find_varied_keys(trials) == ["optim.lr", "seed", "batch"]
  assert results.find_varied_keys(four()[:2]) == ["seed"]
  assert results.find_varied_keys([trial(model={"name": "a"}), trial(model={"name": "b"})]) == ["model"]


@pytest.mark.parametrize(
  ("values", "share", "text"),
  [
    ([], True, "-"),
    ([0.5], True, "50.00 (1)"),
    ([0.5, 0.7, 0.6], True, f"60.00 ± {100 * statistics.stdev([0.5, 0.7, 0.6]):.2f} (3)"),
    ([1.5, 2.5], False, f"2.0000 ± {statistics.stdev([1.5, 2.5]):.4f} (2)"),
  ],
)
def test_mean_and_deviation_are_formatted_with_their_count(values, share, text):
  assert results.format_mean_and_deviation(values, share) == text


def test_table_marks_failed_trials_and_the_best_setting():
  trials = [*four(), trial("failed", model="a|b")]
  best = results.rank_settings(group_settings(trials), "val/top1")[0]
  lines = results.format_settings(trials, ["val/top1"], best).splitlines()
  cells = [[cell.strip() for cell in line.strip("|").replace("\\|", "/").split("|")] for line in lines]
  assert cells[0] == ["optim.lr", "model", "val/top1, %", "trials"]
  assert cells[2] == ["**0.1**", "**-**", "**60.00 ± 14.14 (2)**", "**2 done**"]
  assert cells[3] == ["0.2", "-", "50.00 ± 56.57 (2)", "2 done"]
  assert cells[4] == ["-", "a/b", "-", "1 failed"]
  assert len({len(line) for line in lines}) == 1


def test_sweep_over_seeds_only_has_one_row():
  lines = results.format_settings([trial(figures={"top1": 0.5}, seed=s) for s in (0, 1)], ["top1"], None).splitlines()
  assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["unchanged", "50.00 ± 0.00 (2)", "2 done"]


def test_each_test_metric_of_the_final_runs_has_a_row():
  lines = results.format_final_runs(
    [trial(figures={"top1": value, "loss": 2 * value}) for value in (0.5, 0.7)]
  ).splitlines()
  cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
  assert cells[2:] == [
    ["test/top1", "60.00 ± 14.14 (2)"],
    ["test/loss", f"1.2000 ± {statistics.stdev([1.0, 1.4]):.4f} (2)"],
  ]


def test_setting_without_the_deciding_metric_is_not_ranked():
  without = trial(figures={"loss": 1.0}, optim__lr=0.3, seed=0)
  order = results.rank_settings(group_settings([*four(), without]), "val/top1")
  assert [setting.changes["optim.lr"] for setting in order] == [0.1, 0.2]


def test_setting_of_several_tasks_has_no_deviation():
  rows = [trial(figures={"top1": top1}, task=task) for task, top1 in (("a", 0.5), ("b", 0.7))]
  lines = results.format_settings(rows, ["top1"], None, "task").splitlines()
  assert "60.00 (2)" in lines[2] and "±" not in lines[2] and len(lines) == 3


def measured(lr, seed, val, test, images=106):
  """Returns a trial with results on both splits.

  The config is empty, because the evaluations have the names of their splits.
  """
  figures = {"top1": test, "val/top1": val, "val/loss": 1.0, "val/images": images}
  return trial(figures=figures, optim__lr=lr, seed=seed)


def test_sweep_without_a_decision_is_ranked_by_val_instead_of_test():
  trials = [measured(0.001, 0, 0.8962, 0.99), measured(0.003, 0, 0.9057, 0.97)]
  chosen = results.find_criterion(trials, None)
  assert chosen == ("val/top1", "val")
  assert [s.changes["optim.lr"] for s in results.rank_settings(group_settings(trials), chosen.metric)] == [0.003, 0.001]
  (words,) = results.describe_choice(trials, Sweep([{}], decide=None))
  assert words.startswith(
    "Ranked by val/top1 (split 'val'): higher is better. This sweep does not select a setting. First: "
  )
  assert "First: optim.lr=0.003" in words and "not enough images to decide which is better" in words


def test_comparison_on_test_is_stated():
  trials = [trial(figures={"top1": top1, "images": 1000}, optim__lr=top1, seed=0) for top1 in (0.5, 0.9)]
  (words,) = results.describe_choice(trials, Sweep([{}], decide=None))
  assert "Ranked by test/top1 (split 'test')" in words and "uses 'test'" in words
  assert "Difference from the next setting, optim.lr=0.5: 40.00 points" in words and "not enough" not in words


def test_settings_of_several_seeds_are_compared_with_welchs_test():
  trials = [
    measured(lr, seed, val, 0.5) for lr, vals in ((1, (0.9, 0.92)), (2, (0.89, 0.91))) for seed, val in enumerate(vals)
  ]
  (words,) = results.describe_choice(trials, Sweep([{}]))
  assert "Welch's t-test over seeds). There are not enough runs to decide which is better." in words


def test_comparison_has_few_false_positives():
  draw, alarms = np.random.default_rng(0), 0
  for _ in range(400):  # two settings of equal accuracy
    one, other = ({"val/top1": right / 200, "val/images": 200} for right in draw.binomial(200, 0.9, 2))
    alarms += "not enough" not in results.describe_lead([one], [other], "val/top1", "b")
  assert alarms / 400 < 0.08  # nominal 0.05, four standard deviations are 0.04


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("position", [0, 1])
def test_setting_with_a_non_finite_metric_is_never_the_best(value, position):
  values = [(0.5, 0.7), (0.5, 0.7)]
  values[position] = (value, 0.9)
  [best] = results.rank_settings(group_settings(four(*values)), "val/top1")
  assert best.changes["optim.lr"] == (0.1, 0.2)[1 - position]
