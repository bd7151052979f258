"""Tests of commands on disjoint devices: the division of devices, the number of commands, and their end."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from vit_jax.schema import ConfigError
from vit_jax.sweeps import pool

pytestmark = pytest.mark.heavy


def wait_until(condition, seconds=30):
  """Waits until a condition is true."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def script(text):
  return [sys.executable, "-c", text]


def test_cores_are_divided_without_overlap(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 1, 2, 7, 9}, raising=False)
  assert [group.cores for group in pool.divide_devices(2)] == [(1, 2), (4, 7)]
  assert pool.divide_devices(1) == [pool.DeviceGroup()]
  with pytest.raises(
    ConfigError, match=r"--parallel: 6 groups of this machine's 5 CPU cores. Allowed: \[1, 2, 3, 4, 5\]"
  ):
    pool.divide_devices(6)
  with pytest.raises(ConfigError, match="--parallel: 0 groups"):
    pool.divide_devices(0)


def test_only_visible_gpus_are_divided(monkeypatch):
  monkeypatch.setattr(pool, "_count_devices", lambda: ("gpu", 4))
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  assert [group.environment for group in pool.divide_devices(2)] == [
    {"CUDA_VISIBLE_DEVICES": "0,1"},
    {"CUDA_VISIBLE_DEVICES": "2,3"},
  ]
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
  assert [group.environment["CUDA_VISIBLE_DEVICES"] for group in pool.divide_devices(3)] == ["5", "6", "7"]


def test_tpu_chips_form_boxes_of_one_process_each(monkeypatch):
  monkeypatch.setattr(pool, "_count_devices", lambda: ("tpu", 4))
  first, second = (group.environment for group in pool.divide_devices(2))
  assert (first["TPU_VISIBLE_CHIPS"], second["TPU_VISIBLE_CHIPS"]) == ("0,1", "2,3")
  assert first["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,2,1"
  assert first["VITJAX_PROCESSES"] == "1"
  with pytest.raises(ConfigError, match=r"this machine's 4 TPU chips. Allowed: \[1, 2, 3, 4\]"):
    pool.divide_devices(5)


def test_command_has_its_own_cores_environment_and_log(tmp_path):
  core = min(os.sched_getaffinity(0))
  text = "import os; print(os.environ['X'], sorted(os.sched_getaffinity(0)))"
  with contextlib.closing(pool.Pool([pool.DeviceGroup({"X": "here"}, (core,))])) as running:
    running.start("a", script(text), tmp_path / "logs" / "a")
    assert not running.has_room
    codes = {}
    wait_until(lambda: codes.update(running.collect_finished()) or codes)
    assert (codes, running.has_room, running.names) == ({"a": 0}, True, [])
  assert (tmp_path / "logs" / "a").read_text() == f"here [{core}]\n"


def test_closing_sends_sigterm_first_and_returns_exit_codes(tmp_path):
  polite = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); print('up', flush=True); time.sleep(99)"
  )
  running = pool.Pool([pool.DeviceGroup()] * 2)
  running.start("polite", script(polite), tmp_path / "polite")
  running.start("failing", script(polite.replace("time.sleep(99)", "sys.exit(3)")), tmp_path / "failing")
  wait_until(lambda: all("up" in (tmp_path / name).read_text() for name in ("polite", "failing")))
  codes = running.close()
  assert codes["polite"] == 42
  assert codes["failing"] in (3, 42, -signal.SIGTERM)  # it ends by itself, or the signal arrives while it exits


def test_command_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
  monkeypatch.setattr(pool, "PATIENCE", 0.5)
  deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
  running = pool.Pool([pool.DeviceGroup()])
  running.start("deaf", script(deaf), tmp_path / "deaf")
  wait_until(lambda: "up" in (tmp_path / "deaf").read_text())
  assert running.close() == {"deaf": -signal.SIGKILL}


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a child is told of its parent's death on Linux only")
def test_children_of_a_killed_process_receive_sigterm(tmp_path):
  child = (
    "import signal, sys, time, pathlib\n"
    "def stop(*_):\n"
    f"  pathlib.Path({str(tmp_path / 'stopped')!r}).write_text('')\n"
    "  sys.exit()\n"
    "signal.signal(15, stop)\n"
    "print('up', flush=True)\n"
    "time.sleep(99)\n"
  )
  parent = (
    "import pathlib, time\n"
    "from vit_jax.sweeps import pool\n"
    f"pool.Pool([pool.DeviceGroup()]).start('a', {script(child)!r}, pathlib.Path({str(tmp_path / 'log')!r}))\n"
    "time.sleep(99)\n"
  )
  process = subprocess.Popen(script(parent))
  wait_until(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
  process.kill()
  process.wait()
  wait_until((tmp_path / "stopped").exists)
