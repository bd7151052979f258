"""What a program says of its progress to the one that started it."""

import json
import threading
import time
import types

import pytest

from vit_jax import runtime
from vit_jax.runtime import progress


@pytest.fixture
def status(tmp_path, monkeypatch):
  """The file, and a clock that passes only where a test lets it."""
  monkeypatch.setenv("VITJAX_STATUS", str(tmp_path / "status.json"))
  now = [100.0]
  monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
  return tmp_path / "status.json", now


def test_what_changed_is_written_once_a_second(status):
  file, now = status
  said = progress.ProgressFile()
  said.say(3, "step", 3)
  assert json.loads(file.read_text()) == {"step": 3, "began": 3, "doing": "step", "polls": 3}
  now[0] += 0.5
  said.say(4, "step", 4)
  assert json.loads(file.read_text())["step"] == 3
  now[0] += 0.6
  said.say(4, "step", 4)
  assert json.loads(file.read_text()) == {"step": 4, "began": 3, "doing": "step", "polls": 4}
  written = file.stat().st_mtime_ns
  now[0] += 5
  said.say(4, "step", 4)  # nothing new
  assert file.stat().st_mtime_ns == written
  assert [each.name for each in file.parent.iterdir()] == ["status.json"]


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
  monkeypatch.delenv("VITJAX_STATUS", raising=False)
  monkeypatch.chdir(tmp_path)
  progress.ProgressFile().say(1, "step", 1)
  assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_ends_nothing(status, monkeypatch):
  file, now = status
  file.mkdir()  # which no file replaces
  said = progress.ProgressFile()
  said.say(1, "step", 1)
  file.rmdir()
  now[0] += 2
  said.say(1, "step", 1)
  assert json.loads(file.read_text())["step"] == 1  # tried again
  monkeypatch.setenv("VITJAX_STATUS", str(file.parent / "gone/status.json"))
  progress.ProgressFile().say(1, "step", 1)


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
  file = tmp_path / "status.json"
  monkeypatch.setenv("VITJAX_STATUS", str(file))
  monkeypatch.setattr(progress, "EVERY", 0.0)
  said, stop, seen = progress.ProgressFile(), threading.Event(), []
  said.say(0, "step", 0)

  def read():
    while not stop.is_set():
      seen.append(json.loads(file.read_text())["step"])

  reader = threading.Thread(target=read)
  reader.start()
  for step in range(1, 500):
    said.say(step, "compile" * (step % 50), step)
  stop.set()
  reader.join()
  assert seen == sorted(seen) and len(seen) > 5


def test_a_watch_says_step_and_phase_from_its_thread(tmp_path, monkeypatch):
  file = tmp_path / "status.json"
  monkeypatch.setenv("VITJAX_STATUS", str(file))
  with runtime.Watch() as watch, watch.phase("compile"):
    watch.step = 7
    deadline = time.monotonic() + 20
    while not file.exists() and time.monotonic() < deadline:
      time.sleep(0.02)
  said = json.loads(file.read_text())
  assert (said["step"], said["doing"]) == (7, "compile")
