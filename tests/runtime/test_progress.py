"""Tests of the status file, in which a program reports its progress to its parent."""

import json
import threading
import time
import types

import pytest

from vit_jax import runtime
from vit_jax.runtime import progress


@pytest.fixture
def status(tmp_path, monkeypatch):
  """The status file, and a clock that only the test advances."""
  monkeypatch.setenv("VITJAX_STATUS", str(tmp_path / "status.json"))
  now = [100.0]
  monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
  return tmp_path / "status.json", now


def test_changes_are_written_at_most_once_a_second(status):
  file, now = status
  output = progress.ProgressFile()
  output.say(3, "step", 3)
  assert json.loads(file.read_text()) == {"step": 3, "began": 3, "doing": "step", "polls": 3}
  now[0] += 0.5
  output.say(4, "step", 4)
  assert json.loads(file.read_text())["step"] == 3
  now[0] += 0.6
  output.say(4, "step", 4)
  assert json.loads(file.read_text()) == {"step": 4, "began": 3, "doing": "step", "polls": 4}
  written = file.stat().st_mtime_ns
  now[0] += 5
  output.say(4, "step", 4)  # no change
  assert file.stat().st_mtime_ns == written
  assert [each.name for each in file.parent.iterdir()] == ["status.json"]


def test_status_is_not_written_without_the_variable(tmp_path, monkeypatch):
  monkeypatch.delenv("VITJAX_STATUS", raising=False)
  monkeypatch.chdir(tmp_path)
  progress.ProgressFile().say(1, "step", 1)
  assert not list(tmp_path.iterdir())


def test_unwritable_status_file_does_not_stop_the_run(status, monkeypatch):
  file, now = status
  file.mkdir()  # a file cannot replace a folder
  output = progress.ProgressFile()
  output.say(1, "step", 1)
  file.rmdir()
  now[0] += 2
  output.say(1, "step", 1)
  assert json.loads(file.read_text())["step"] == 1  # the write is tried again
  monkeypatch.setenv("VITJAX_STATUS", str(file.parent / "gone/status.json"))
  progress.ProgressFile().say(1, "step", 1)


def test_reader_never_sees_a_partial_file(tmp_path, monkeypatch):
  file = tmp_path / "status.json"
  monkeypatch.setenv("VITJAX_STATUS", str(file))
  monkeypatch.setattr(progress, "EVERY", 0.0)
  output, stop, seen = progress.ProgressFile(), threading.Event(), []
  output.say(0, "step", 0)

  def read():
    while not stop.is_set():
      seen.append(json.loads(file.read_text())["step"])

  reader = threading.Thread(target=read)
  reader.start()
  for step in range(1, 500):
    output.say(step, "compile" * (step % 50), step)
  stop.set()
  reader.join()
  assert seen == sorted(seen) and len(seen) > 5


def test_watch_reports_step_and_phase_from_its_thread(tmp_path, monkeypatch):
  file = tmp_path / "status.json"
  monkeypatch.setenv("VITJAX_STATUS", str(file))
  with runtime.Watch() as watch, watch.phase("compile"):
    watch.step = 7
    deadline = time.monotonic() + 20
    while not file.exists() and time.monotonic() < deadline:
      time.sleep(0.02)
  output = json.loads(file.read_text())
  assert (output["step"], output["doing"]) == (7, "compile")
