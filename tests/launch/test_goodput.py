"""Tests of the goodput table: the times add up for any event log and any record of the program."""

import dataclasses
import json
import time

import pytest
from hypothesis import given, strategies

from launch import logs
from launch.errors import LaunchError
from tests.launch import launches
from vit_jax.training import goodput

T = 1_795_000_000.0


def events(*rows):
  return [{"time": T + at, "event": event, "attempt": attempt} for at, event, attempt in rows]


# 100 s in the queue and 50 s of setup. A preemption after 300 s, and ready again 150 s later. Deleted in 20 s.
JOURNAL = events(
  (0, "run", 0), (1, "intent", 1), (2, "created", 1), (100, "ready", 1), (450, "preempted", 1), (470, "deleted", 1),
  (480, "intent", 2), (560, "ready", 2), (1000, "done", 2), (1020, "deleted", 2), (1020, "end", 2),
)  # fmt: skip


def phases(**seconds):
  return dict.fromkeys(goodput.PHASES, 0.0) | seconds


def workdir(folder, attempts, older=None, lost=None):
  account = {"older": older or {"attempts": 0, "waited": 0.0, "seconds": phases()}, "attempts": attempts}
  (folder / "goodput.json").write_text(json.dumps(account))
  if lost is not None:
    (folder / "result.json").write_text(json.dumps({"goodput": {goodput.LOST: lost}}))
  return launches.run(workdir=str(folder))


def attempt(start_time, **seconds):
  return {"began": T + start_time, "waited": 0.0, "seconds": phases(**seconds)}


def test_names_match_the_goodput_record_of_the_program():
  assert logs.PHASES == goodput.PHASES and (logs.LOST, logs.BETWEEN) == (goodput.LOST, goodput.BETWEEN)


def test_waits_and_times_of_the_program_form_one_table(tmp_path):
  first = attempt(150, start=10.0, compile=40.0, step=230.0, save=20.0)
  run = workdir(tmp_path, [first, attempt(600, start=10.0, step=380.0, evaluation=10.0)], lost=30.0)
  table = logs.compute_goodput(run, JOURNAL)
  assert table["seconds"] == {
    "queueing": 100.0,
    "setup": 50.0,  # a run without TPU
    "training_prep": 20.0,
    "program_startup": 40.0,
    "steps": 580.0,
    "wasted_progress_from_disruption": 30.0,
    "unproductive_checkpoint_save_time": 20.0,
    "custom_badput_events": 10.0,
    "infrastructure_recovery_from_disruption": 150.0,
    "deletion": 20.0,
  }
  assert table["total"] == 1020.0 == sum(table["seconds"].values())
  assert table["goodput"] == 580 / 1020 and table["attempts"] == 2
  printed = logs.format_goodput(table).splitlines()
  assert printed[0] == "vit-b16: goodput 56.86% of 0:17:00 in 2 attempts"
  assert [line.split() for line in printed[1:3]] == [
    ["steps", "0:09:40", "56.9%"],
    ["infrastructure_recovery_from_disruption", "0:02:30", "14.7%"],
  ]


def test_table_without_a_record_uses_the_event_log(tmp_path):
  table = logs.compute_goodput(launches.run(workdir=str(tmp_path)), JOURNAL)
  assert table["seconds"] == {
    "queueing": 100.0,
    "other": 350.0 + 460.0,
    "infrastructure_recovery_from_disruption": 110.0,
  }


def test_training_before_the_run_is_not_counted(tmp_path):
  run = workdir(tmp_path, [attempt(-5000, step=1000.0), attempt(150, step=850.0)])
  assert logs.compute_goodput(run, JOURNAL)["seconds"]["steps"] == 850.0


def test_active_run_is_counted_until_now(tmp_path, monkeypatch):
  monkeypatch.setattr(time, "time", lambda: T + 400)
  table = logs.compute_goodput(workdir(tmp_path, [attempt(150, step=240.0)]), JOURNAL[:4])
  assert table["total"] == 400.0
  assert table["seconds"] == {
    "queueing": 100.0,
    "setup": 50.0,  # a run without TPU
    "steps": 240.0,
    "infrastructure_recovery_from_disruption": 10.0,
  }


SECONDS = strategies.floats(0, 1000)


@given(
  times=strategies.lists(strategies.floats(-100, 2000), max_size=8),
  kinds=strategies.lists(
    strategies.sampled_from(["ready", "preempted", "failed", "intent", "again", "end"]), min_size=9
  ),
  programs=strategies.lists(strategies.tuples(strategies.floats(-2000, 3000), SECONDS, SECONDS), max_size=5),
  lost=SECONDS,
)
def test_times_add_up_with_any_clocks(tmp_path_factory, times, kinds, programs, lost):
  folder = tmp_path_factory.getbasetemp() / "workdir"
  folder.mkdir(exist_ok=True)
  run = workdir(folder, [attempt(start_time, step=step, save=save) for start_time, step, save in programs], lost=lost)
  journal = events((0, "run", 0), *((at, kind, 1) for at, kind in zip(times, kinds, strict=False)), (2000, "end", 1))
  table = logs.compute_goodput(run, journal)
  assert sum(table["seconds"].values()) == pytest.approx(table["total"], abs=1e-3)
  assert all(value > 0 for value in table["seconds"].values()) and 0 <= table["goodput"] <= 1.000001


def test_only_tpu_runs_have_a_tpu_initialization(tmp_path):
  run = workdir(tmp_path, [attempt(150, step=850.0)])
  assert "setup" in logs.compute_goodput(run, JOURNAL)["seconds"]
  on_tpus = logs.compute_goodput(dataclasses.replace(run, tpu="v3-32"), JOURNAL)["seconds"]
  assert on_tpus["tpu_initialization"] == 50.0 and "setup" not in on_tpus


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"older": 1, "attempts": 2}', '{"older": {}, "attempts": [{}]}'])
def test_invalid_record_is_reported(tmp_path, content):
  (tmp_path / "goodput.json").write_text(content)
  with pytest.raises(LaunchError, match=r"goodput\.json"):
    logs.compute_goodput(launches.run(workdir=str(tmp_path)), JOURNAL)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1e308, 10**400, "1", [1], {}, "[" * 10**5])
@pytest.mark.parametrize("where", ["result.json", "goodput.json"])
def test_invalid_time_is_reported(tmp_path, where, value):
  account = {"attempts": [{"began": 0.0, "seconds": {"step": value if where == "goodput.json" else 1.0}}]}
  texts = {"goodput.json": json.dumps(account | {"older": {"attempts": 0}})}
  texts["result.json"] = json.dumps({"goodput": {logs.LOST: value if where == "result.json" else 0.0}})
  for name, text in texts.items():
    (tmp_path / name).write_text(value if value == "[" * 10**5 and name == where else text)
  with pytest.raises(LaunchError, match=r"goodput\.json or result\.json is not in the format"):
    logs.compute_goodput(launches.run(workdir=str(tmp_path)), JOURNAL)


def test_empty_event_log_is_reported():
  with pytest.raises(LaunchError, match="empty"):
    logs.compute_goodput(launches.run(), [])
