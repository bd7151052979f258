"""Tests of trials and settings: grouping, counting and serialisation."""

import json
import pathlib

from vit_jax.sweeps import trials
from vit_jax.sweeps.trials import Trial


def trial(status="done", figures=(), **changes):
  return Trial(repr(changes), changes, {}, pathlib.Path("x"), "{}", status, figures=dict(figures))


def test_trials_that_differ_only_in_the_seed_form_one_setting():
  rows = [trial(figures={"top1": batch + seed}, batch=batch, seed=seed) for batch in (1, 2) for seed in (3, 4)]
  first, second = trials.group_settings([rows[0], rows[2], rows[1], rows[3]])
  assert (first.changes, second.changes) == ({"batch": 1}, {"batch": 2})
  assert (first.trials, second.trials) == (rows[:2], rows[2:])
  assert first.values("top1") == [4, 5] and first.values("loss") == []
  assert second.to_json(["top1"])["figures"] == {"top1": [5, 6]}


def test_setting_is_done_when_all_of_its_trials_are_done():
  (setting,) = trials.group_settings([trial(seed=1), trial("diverged", seed=2)])
  assert not setting.done
  setting.trials[1].status = "done"
  assert setting.done


def test_serialised_trial_can_be_restored():
  ended = trial(figures={"top1": 0.5}, seed=1, model={"name": "a"})
  ended.attempts, ended.seconds = 2, 3.5
  ended.fail("too large", "diverged")
  record = json.loads(json.dumps(ended.to_json()))
  assert record["changes"] == {"seed": 1, "model": {"name": "a"}}
  fresh = trial("waiting", seed=1, model={"name": "a"})
  fresh.restore(record)
  assert fresh == ended


def test_statuses_are_counted_without_zeros():
  listed = [trial("done"), trial("failed"), trial("done")]
  assert trials.count_statuses(listed, ("failed", "waiting", "done")) == "1 failed, 2 done"
  assert trials.count_statuses(listed, ("diverged",)) == ""


def test_changes_are_formatted_in_one_line():
  assert str(trial(batch=8, seed=1)) == "batch=8 seed=1"
  assert str(trial()) == "unchanged"


def test_tasks_of_a_suite_form_one_setting_without_absent_tasks():
  rows = [trial("absent" if task == "b" else "done", {"top1": lr}, task=task, lr=lr) for lr in (1, 2) for task in "abc"]
  assert len(trials.group_settings(rows)) == 6
  first, second = trials.group_settings(trials.select_measured(rows, "task"), "task")
  assert (first.changes, second.changes) == ({"lr": 1}, {"lr": 2})
  assert [row.changes["task"] for row in first.trials] == ["a", "c"]
  assert first.done and trials.select_measured(rows, None) == rows
