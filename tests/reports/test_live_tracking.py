"""Tests of vit_jax/reports/live_tracking.py: exports during a run send each line once, and never stop the run."""

import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
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
def started(tmp_path, monkeypatch):
  """A file to which the commands of `make_tracking` append a line when they start."""
  monkeypatch.setattr(live_tracking, "PAUSE", 0.01)
  write(tmp_path / "run", 3)
  return tmp_path / "started"


def make_tracking(started, script):
  """Returns the exports of a run, with a shell script in place of the verb `report`. $W is the workdir."""
  workdir = started.parent / "run"
  command = ["sh", "-c", f"W='{workdir}'; echo $$ >> '{started}'; {script}"]
  return live_tracking.LiveTracking(workdir, "mlflow", command)


def list_started(started):
  """Returns the process numbers of the exports that have started."""
  return [int(line) for line in started.read_text().split()] if started.exists() else []


def wait_for_exports(started, count=1):
  deadline = time.monotonic() + 60
  while len(list_started(started)) < count and time.monotonic() < deadline:
    time.sleep(0.01)
  assert len(list_started(started)) >= count


def wait_for_end(number, seconds=30):
  """Waits until a process has ended. A zombie has ended."""
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    try:
      if pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
        return
      os.kill(number, 0)
    except (ProcessLookupError, FileNotFoundError):
      return
    time.sleep(0.05)
  pytest.fail("the export still runs")


def test_runs_without_a_tracker_export_nothing(started):
  tracking = live_tracking.LiveTracking(started.parent / "run", None, ["touch", str(started)])
  with tracking:
    time.sleep(0.05)
  tracking.finish()
  assert not started.exists()


@pytest.mark.heavy
def test_metrics_are_exported_again_and_again_and_at_the_end(started, capsys):
  tracking = make_tracking(started, 'echo noise; echo "$W: sent $MLFLOW_HTTP_REQUEST_MAX_RETRIES"; echo more noise')
  with tracking:
    wait_for_exports(started, 3)
  tracking.finish()
  count = len(list_started(started))
  time.sleep(0.1)
  printed = capsys.readouterr().out.splitlines()
  assert len(list_started(started)) == count
  assert printed == [
    "  tracker   sending the last metrics to mlflow ...",
    f"  tracker   {started.parent / 'run'}: sent 1",
  ]


@pytest.mark.heavy
@pytest.mark.sample(4)
@pytest.mark.parametrize(
  ("script", "problem"),
  [
    (f'echo noise >&2; echo "error: $W: mlflow rejected: why. {trackers.ADVICE}" >&2; exit 2', "mlflow rejected: why"),
    ("kill -ALRM $$", "mlflow did not answer for 120 s"),
    ("kill -KILL $$", "the export was ended by SIGKILL"),
    ("exit 7", "the export ended with exit code 7"),
  ],
)
def test_failures_are_reported_once_and_at_the_end_with_a_command(started, caplog, script, problem):
  tracking = make_tracking(started, script)
  with caplog.at_level(logging.WARNING), tracking:
    wait_for_exports(started, 3)
  tracking.finish()
  during, after = (record.getMessage() for record in caplog.records)
  workdir = started.parent / "run"
  assert during.startswith("log.tracker: ") and after.startswith("log.tracker: ")
  assert f"{problem}. Training continues, and later exports send the same metrics" in during
  assert f"{problem}. The run is complete. To send the metrics, run: " in after
  assert after.endswith(f"python -m vit_jax.report --export=mlflow {workdir}")


@pytest.mark.heavy
def test_a_stopped_run_ends_its_export_at_once(started):
  with pytest.raises(InterruptedError), make_tracking(started, "exec sleep 100"):
    wait_for_exports(started)
    start_time = time.monotonic()
    raise InterruptedError
  assert time.monotonic() - start_time < 2
  wait_for_end(*list_started(started))


@pytest.mark.heavy
def test_the_end_of_a_run_waits_for_all_exports_only_until_the_limit(started, caplog, monkeypatch):
  tracking = make_tracking(started, "exec sleep 100")
  with tracking:
    wait_for_exports(started)
    monkeypatch.setattr(live_tracking, "LIMIT", 1.0)
  start_time = time.monotonic()
  tracking.finish()
  assert time.monotonic() - start_time < 10
  assert "mlflow did not answer for 1 s. The run is complete. To send the metrics, run: " in caplog.text
  wait_for_end(*list_started(started))


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_ends_the_last_export_but_is_no_error(started, caplog, number, monkeypatch):
  monkeypatch.setattr(live_tracking, "PAUSE", 100.0)
  tracking = make_tracking(started, "exec sleep 100")
  with tracking:
    pass

  def stop():
    wait_for_exports(started)
    os.kill(os.getpid(), number)

  thread = threading.Thread(target=stop)
  thread.start()
  tracking.finish()
  thread.join()
  assert "log.tracker: stopped on request before the last metrics were sent. The run is complete. " in caplog.text
  wait_for_end(*list_started(started))


KILLED = """
import pathlib, sys
from tests.reports import test_live_tracking
test_live_tracking.live_tracking.PAUSE = 0.01
started = pathlib.Path(sys.argv[1])
with test_live_tracking.make_tracking(started, "exec sleep 100"):
  test_live_tracking.wait_for_exports(started)
  print("started", flush=True)
  sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems end the export by its limit")
def test_a_killed_run_leaves_no_export(started):
  process = subprocess.Popen(
    [sys.executable, "-c", KILLED, started], cwd=runs.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )
  with process:
    assert process.stdout.readline() == b"started\n"
    process.kill()
  wait_for_end(*list_started(started))


def test_runs_without_metrics_are_not_exported(started):
  (started.parent / "run/metrics.jsonl").unlink()
  tracking = make_tracking(started, "")
  with tracking:
    time.sleep(0.05)
  tracking.finish()
  assert not started.exists()


def read_expected(workdir):
  rows = {}
  for line in (workdir / "metrics.jsonl").read_text().splitlines():
    values = json.loads(line)
    rows.setdefault(values.pop("step"), {}).update(values)
  return rows


@pytest.mark.long
@pytest.mark.parametrize("tracker", ["wandb", "mlflow", "trackio"])
def test_a_run_and_its_restart_are_one_run_in_the_tracker(tracker, tmp_path, monkeypatch):
  pytest.importorskip(tracker, reason=f"the extra {tracker} is not installed")
  prepare_dataset("digits")
  workdir = tmp_path / "run"
  for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
    monkeypatch.delenv(name, raising=False)
  words = ["train", *runs.words(workdir, log__tracker=tracker)]
  output = runs.finish(runs.several(words, [*words, "--config.total=16"], TRACKIO_DIR=str(tmp_path / "trackio")))
  assert output.count(f"  tracker   {workdir}: ") == 2 and "WARNING: log.tracker" not in output
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
  assert (
    output.count("To send the metrics, run: python -m vit_jax.report --export=mlflow ") == 1
    and (tmp_path / "run/result.json").exists()
  )
