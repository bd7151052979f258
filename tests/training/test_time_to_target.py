"""Tests of the time to target: the first evaluation that reaches a figure, over restarts and in the files of a run."""

import contextlib
import json

import pytest

from tests import runs
from vit_jax import config
from vit_jax.checkpoints import forms
from vit_jax.schema import ConfigError
from vit_jax.training import goodput, loop, time_to_target, training_log

TOP1 = config.Target("test/top1", 0.5)


def walk(target, evaluations, stored=None):
  """Returns the record after evaluations (step, figures), 3,600 seconds each."""
  record = time_to_target.start_record(target, stored)
  for step, figures in evaluations:
    record = time_to_target.update_record(record, step, figures, 3600 * step)
  return record


def test_first_evaluation_at_the_target_counts():
  values = [(1, {"top1": 0.4}), (2, {"val/top1": 0.9}), (3, {"top1": 0.5}), (4, {"top1": 0.9})]
  assert walk(TOP1, values) == {"metric": "test/top1", "value": 0.5, "step": 3, "hours": 3.0}
  assert walk(config.Target("top1", 0.95), values)["step"] is None


def test_losses_must_fall():
  values = [(1, {"loss": 2.0}), (2, {"loss": 0.9})]
  assert walk(config.Target("test/loss", 1.0), values)["step"] == 2


def test_restart_keeps_the_record_of_the_same_target():
  stored = walk(TOP1, [(3, {"top1": 0.6})])
  assert walk(TOP1, [(5, {"top1": 0.9})], json.loads(json.dumps(stored)))["step"] == 3
  assert walk(config.Target("top1", 0.7), [(5, {"top1": 0.9})], stored)["step"] == 5
  assert walk(config.Target(), [], stored) is None


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"metric": "top1"}, r"config\.log\.target\.value: missing, but config\.log\.target\.metric is set"),
    ({"value": 0.5}, r"config\.log\.target\.metric: missing"),
    (
      {"metric": "val/top1", "value": 0.5},
      r"target\.metric: the run does not measure 'val/top1'. Did you mean 'test.*prefix",
    ),
    ({"metric": "ema_top1", "value": 0.5}, r"target\.metric: the run does not measure 'ema_top1'"),
    ({"metric": "images", "value": 5.0}, r"target\.metric: 'images' does not measure quality"),
    ({"metric": "top1", "value": 77.3}, r"target\.value: expected a share between 0 and 1, got 77\.3\."),
  ],
)
def test_invalid_targets_are_errors(changes, message):
  with pytest.raises(ConfigError, match=message):
    runs.run(**{f"log__target__{key}": value for key, value in changes.items()})


def test_average_may_be_the_target():
  run = runs.run(optim__ema=0.9, log__target__metric="ema_top1", log__target__value=0.5)
  assert run.log.target == config.Target("ema_top1", 0.5)


def test_benchmark_of_algoperf_states_its_target():
  run = runs.run("configs/algoperf_vit.py", {})
  assert run.log.target == config.Target("validation/top1", 0.77309)


def test_damaged_record_is_refused():
  record = walk(TOP1, [])
  assert forms.is_target_record(record) and forms.is_target_record(record | {"step": 3, "hours": 0.5})
  for damaged in (None, {}, record | {"hours": "1"}, record | {"step": -1}, record | {"value": None},
                  record | {"value": 10**400}, {"metric": "test/top1", "value": 0.5}):  # fmt: skip
    assert not forms.is_target_record(damaged)


class Store:
  """A store of checkpoints that is not used."""


ROWS = [
  {"step": 2, "train/loss": 1.0},
  {"step": 3, "test/top1": 0.4},
  {"step": 6, "test/top1": 0.6},
  {"step": 9, "test/top1": 0.9},
]


def test_evaluations_of_earlier_attempts_count_without_hours():
  def find(value, stored=None):
    return time_to_target.add_logged_evaluations(
      time_to_target.start_record(config.Target("test/top1", value), stored), ROWS
    )

  assert find(0.5) == {"metric": "test/top1", "value": 0.5, "step": 6, "hours": None}
  assert find(0.95)["step"] is None
  reached = {"metric": "test/top1", "value": 0.5, "step": 6, "hours": 2.5}
  assert find(0.5, reached) == reached and find(0.8, reached)["step"] == 9


@pytest.mark.heavy
@pytest.mark.parametrize(("value", "reached"), [(0.5, True), (0.8, False)])
def test_target_that_is_set_at_a_restart_counts_from_the_first_step(tmp_path, capsys, value, reached):
  """The line of step 9 was written after the checkpoint of step 6, before a kill."""
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
  parts = runs.parts(1, log__target__metric="test/top1", log__target__value=value)
  timer = goodput.GoodputTracker()
  other = {"metric": "test/top1", "value": 0.9, "step": None, "hours": None}
  with contextlib.closing(
    training_log.TrainingLog(parts, tmp_path, 6, timer, timer.phase, Store(), {"target": other})
  ) as log:
    assert log.describe_target()["target"]["step"] == (6 if reached else None)
    text = capsys.readouterr().out
    assert ("      6  reached test/top1 50.00 %, according to metrics.jsonl\n" in text) == reached
    log.write_evaluation(9, {"top1": 0.9})
    record = log.describe_target()["target"]
  assert (record["step"], record["hours"] is None) == ((6, True) if reached else (9, False))


def test_target_of_a_finished_run_is_found_in_its_metrics(tmp_path, capsys):
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
  time_to_target.print_target_of_finished_run(TOP1, None, tmp_path)
  assert "time to test/top1 50.00 %: step 6, according to metrics.jsonl. result.json is" in capsys.readouterr().out
  time_to_target.print_target_of_finished_run(config.Target("top1", 0.95), walk(TOP1, []), tmp_path)
  assert "time to test/top1 95.00 %: not reached, according to" in capsys.readouterr().out
  time_to_target.print_target_of_finished_run(TOP1, walk(TOP1, [(6, {"top1": 0.6})]), tmp_path)
  time_to_target.print_target_of_finished_run(config.Target(), None, tmp_path)
  assert capsys.readouterr().out == ""


@pytest.mark.heavy
def test_log_prints_the_time_and_keeps_it_over_a_restart(tmp_path, capsys):
  parts = runs.parts(1, log__target__metric="top1", log__target__value=0.5)

  def attempt(start, evaluations, about):
    timer = goodput.GoodputTracker()
    lines = training_log.TrainingLog(parts, tmp_path, start, timer, timer.phase, Store(), about)
    with contextlib.closing(lines):
      for step, top1 in evaluations:
        lines.write_evaluation(step, {"top1": top1})
      return lines.describe_target()["target"], json.loads(json.dumps(lines.get_progress(step)))

  record, about = attempt(0, [(3, 0.4), (6, 0.6), (9, 0.7)], {})
  assert record["step"] == 6 and 0 <= record["hours"] < 1 and about["target"] == record
  assert capsys.readouterr().out.count("reached test/top1 50.00 % after ") == 1
  assert attempt(9, [(12, 0.8)], about)[0] == record
  assert "reached" not in capsys.readouterr().out


@pytest.mark.long
def test_result_contains_the_time_also_after_a_restart(tmp_path):
  parts = runs.parts(1, log__target__metric="top1", log__target__value=0.0, optim__lr=1e-6)
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 10), tmp_path)
  record = loop.train(parts, tmp_path)["target"]
  assert record == json.loads((tmp_path / "result.json").read_text())["target"]
  assert (record["metric"], record["value"], record["step"]) == ("test/top1", 0.0, 6) and record["hours"] > 0
