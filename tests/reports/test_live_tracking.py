"""Tests of vit_jax/reports/live_tracking.py: exports during a run send each line once, and never stop the run."""

import json
import logging
import subprocess
import time
import typing

import pytest

from tests import runs
from tests.reports.test_trackers import READ, write
from vit_jax.config.run import Log
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.reports import live_tracking, trackers


def test_key_of_the_config_accepts_all_trackers():
  (names, _) = typing.get_args(typing.get_type_hints(Log)["tracker"])
  assert set(typing.get_args(names)) == trackers.TRACKERS.keys()


@pytest.fixture
def exports(monkeypatch):
  """Commands that were run in place of exports. Each is a call of the function that a test stores in `answer`."""
  calls = []

  def run(words, **options):
    calls.append(words)
    return exports.answer()

  exports = lambda: None  # noqa: E731 - an object with attributes
  exports.calls, exports.answer = calls, lambda: subprocess.CompletedProcess([], 0, "sent\n", "")
  monkeypatch.setattr(live_tracking.subprocess, "run", run)
  monkeypatch.setattr(live_tracking, "PAUSE", 0.01)
  return exports


def test_runs_without_a_tracker_export_nothing(exports, tmp_path):
  write(tmp_path / "run", 3)
  tracking = live_tracking.LiveTracking(tmp_path / "run", None)
  with tracking:
    time.sleep(0.05)
  tracking.finish()
  assert exports.calls == []


def test_metrics_are_exported_again_and_again_and_at_the_end(exports, tmp_path, capsys):
  write(tmp_path / "run", 3)
  tracking = live_tracking.LiveTracking(tmp_path / "run", "mlflow")
  with tracking:
    while len(exports.calls) < 3:
      time.sleep(0.01)
  tracking.finish()
  count = len(exports.calls)
  time.sleep(0.05)
  assert len(exports.calls) == count and "  tracker   sent" in capsys.readouterr().out
  assert exports.calls[0][1:] == ["-m", "vit_jax.report", "--export=mlflow", str(tmp_path / "run")]


def refuse():
  return subprocess.CompletedProcess([], 2, "", "noise\nerror: mlflow rejected the metrics\n")


def hang():
  raise subprocess.TimeoutExpired([], 120)


def lack_memory():
  raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
  ("answer", "problem"),
  [
    (refuse, "mlflow rejected the metrics"),
    (hang, "mlflow did not answer for 120 s"),
    (lack_memory, "Cannot allocate"),
  ],
)
def test_failures_are_reported_once_and_tried_again(exports, tmp_path, caplog, answer, problem):
  write(tmp_path / "run", 3)
  exports.answer = answer
  tracking = live_tracking.LiveTracking(tmp_path / "run", "mlflow")
  with caplog.at_level(logging.WARNING), tracking:
    while len(exports.calls) < 3:
      time.sleep(0.01)
  tracking.finish()
  (record,) = caplog.records
  assert record.getMessage().startswith("log.tracker: ") and problem in record.getMessage()


def test_a_slow_export_does_not_delay_the_run(exports, tmp_path):
  write(tmp_path / "run", 3)
  exports.answer = lambda: time.sleep(3) or refuse()
  began = time.monotonic()
  with pytest.raises(InterruptedError), live_tracking.LiveTracking(tmp_path / "run", "mlflow"):
    while not exports.calls:
      time.sleep(0.01)
    raise InterruptedError
  assert time.monotonic() - began < 2


def test_runs_without_metrics_are_not_exported(exports, tmp_path):
  tracking = live_tracking.LiveTracking(tmp_path, "mlflow")
  with tracking:
    time.sleep(0.05)
  tracking.finish()
  assert exports.calls == []


def read_expected(workdir):
  rows = {}
  for line in (workdir / "metrics.jsonl").read_text().splitlines():
    values = json.loads(line)
    rows.setdefault(values.pop("step"), {}).update(values)
  return rows


@pytest.mark.long
@pytest.mark.parametrize("tracker", ["mlflow", "trackio", "wandb"])
def test_a_run_and_its_restart_are_one_run_in_the_tracker(tracker, tmp_path, monkeypatch):
  pytest.importorskip(tracker, reason=f"the extra {tracker} is not installed")
  prepare_dataset("digits")
  workdir = tmp_path / "run"
  for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
    monkeypatch.delenv(name, raising=False)
  words = ["train", *runs.words(workdir, log__tracker=tracker)]
  output = runs.finish(runs.several(words, [*words, "--config.total=16"], TRACKIO_DIR=str(tmp_path / "trackio")))
  assert output.count("  tracker   ") == 2 and "Training continues" not in output
  lines = read_expected(workdir)
  assert max(lines) == 16
  if tracker == "mlflow":
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("vit_jax").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((row.step, row.value) for row in history) == [
      (step, row["train/loss"]) for step, row in sorted(lines.items()) if "train/loss" in row
    ]
  else:
    assert READ[tracker](tmp_path) == lines


@pytest.mark.long
def test_a_tracker_that_fails_does_not_stop_a_run(tmp_path):
  pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
  prepare_dataset("digits")
  words = runs.words(tmp_path / "run", log__tracker="mlflow")
  output = runs.finish(runs.command("train", *words, MLFLOW_TRACKING_URI="sqlite:////dev/null/mlflow.db"))
  assert output.count("Training continues") == 1 and (tmp_path / "run/result.json").exists()
