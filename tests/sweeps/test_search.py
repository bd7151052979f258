"""Tests of a study from start to end. tests/test_sweep.py has a test with real training."""

import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import pytest

from tests import runs
from tests.sweeps import studies
from vit_jax import runtime
from vit_jax.schema import ConfigError
from vit_jax.sweeps import pool, search


def write_result(trial, top1):
  """Writes the config and the result of a finished trial."""
  trial.workdir.mkdir(parents=True)
  (trial.workdir / "config.json").write_text(trial.config)
  result = {"val/top1": top1, "val/loss": 1 - top1, "train_seconds": 1.0}
  (trial.workdir / "result.json").write_text(json.dumps(result))


def test_best_setting_is_selected_and_finished_runs_are_reused(tmp_path, capsys):
  rows = [{"optim.lr": rate, "seed": seed} for rate in (0.1, 0.2) for seed in (0, 1)]
  study = studies.study(tmp_path, rows, final=[{"data.train": "train[:160]"}])
  listed = study.make_trials()
  for trial, top1 in zip(listed, (0.1, 0.9, 0.6, 0.6), strict=True):
    write_result(trial, top1)
  (last,) = study.make_last_runs(search.group_settings(listed)[1])
  last.workdir.mkdir(parents=True)
  (last.workdir / "config.json").write_text(last.config)
  (last.workdir / "result.json").write_text('{"top1": 0.7, "train_seconds": 1.0}')
  search.run_study(study, listed, [pool.DeviceGroup()], retry=False)
  written = json.loads((tmp_path / "sweep.json").read_text())
  assert written["best"] == {"optim.lr": 0.2}
  assert [run["figures"]["top1"] for run in written["final"]] == [0.7]
  assert "70.00 (1)" in capsys.readouterr().out


def test_suite_selects_one_setting_for_all_tasks(tmp_path, capsys):
  tasks = ("test[:64]", "test[64:]")
  rows = [{"data.test": task, "optim.lr": rate} for rate in (0.1, 0.2) for task in tasks]
  final = [{"data.test": task, "data.train": "train[:160]"} for task in tasks]
  study = studies.study(tmp_path, rows, final=final, over="data.test")
  listed = study.make_trials()
  for trial, top1 in zip(
    listed, (0.9, 0.1, 0.6, 0.7), strict=True
  ):  # the best setting of the first task is not the best of both tasks
    write_result(trial, top1)
  for last, top1 in zip(study.make_last_runs(search.group_settings(listed, "data.test")[1]), (0.5, 0.7), strict=True):
    last.workdir.mkdir(parents=True)
    (last.workdir / "config.json").write_text(last.config)
    (last.workdir / "result.json").write_text(json.dumps({"top1": top1}))
  search.run_study(study, listed, [pool.DeviceGroup()], retry=False)
  assert json.loads((tmp_path / "sweep.json").read_text())["best"] == {"optim.lr": 0.2}
  output = capsys.readouterr().out
  assert "65.00" in output and "60.00" in output  # the mean that decided, and the mean on test


def test_no_finished_setting_is_an_error_after_the_table_is_written(tmp_path):
  study = studies.study(
    tmp_path, [{"batch": 100}]
  )  # more than the number of images, which the trial's process would report
  listed = study.make_trials()
  listed[0].fail("too large", "diverged")
  with pytest.raises(ConfigError, match="no setting was selected"):
    search.run_study(study, listed, [pool.DeviceGroup()], retry=False)
  assert "diverged" in (tmp_path / "sweep.md").read_text()


def test_workdir_in_use_is_refused(tmp_path):
  study = studies.study(tmp_path)
  with (
    runtime.lock_workdir(tmp_path),
    pytest.raises(ConfigError, match=f"{tmp_path} is in use by process {os.getpid()}"),
  ):
    search.run_study(study, study.make_trials(), [pool.DeviceGroup()], retry=False)


@pytest.mark.parametrize(
  ("number", "code"), [(signal.SIGTERM, 42), (signal.SIGHUP, 42), (signal.SIGINT, 130)], ids=lambda value: str(value)
)
def test_stop_request_ends_a_search_with_its_exit_code(number, code):
  before = signal.getsignal(number)
  with search.handle_stop_signals() as poll:
    poll()
    signal.raise_signal(number)
    with pytest.raises(runtime.Stop, match="the same command continues") as stop:
      poll()
  assert stop.value.code == code
  assert signal.getsignal(number) is before


def test_signal_ignored_by_nohup_stays_ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with search.handle_stop_signals() as poll:
      signal.raise_signal(signal.SIGHUP)
      poll()
  finally:
    signal.signal(signal.SIGHUP, before)


def test_only_the_first_stop_request_counts_until_ctrl_c():
  with search.handle_stop_signals() as poll:
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
      signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):  # a user who waits can still interrupt
      signal.raise_signal(signal.SIGINT)
    with pytest.raises(runtime.Stop) as stop:
      poll()
  assert stop.value.code == 42


ON_A_TERMINAL = """
import faulthandler, io, os, pathlib, signal, sys
faulthandler.register(signal.SIGUSR2, file=(pathlib.Path(sys.argv[1]) / "stacks").open("w"))
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
terminal = os.open(sys.argv[2], os.O_RDWR | os.O_NOCTTY)
for descriptor in range(3):
  os.dup2(terminal, descriptor)
# The former streams may seek, which a terminal cannot. Without a buffer, no text remains for a closed terminal.
raw = [os.fdopen(descriptor, "wb", 0, closefd=False) for descriptor in (1, 2)]
sys.stdout, sys.stderr = (io.TextIOWrapper(each, write_through=True) for each in raw)
from tests.sweeps import studies
from vit_jax import cli
from vit_jax.sweeps import execution, pool, record, search
folder = pathlib.Path(sys.argv[1])
trials = studies.waiting(folder, 1)
wait = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); print('up', flush=True); time.sleep(600)"
written = record.SweepRecord(studies.study(folder), trials)
def verb():
  with search.handle_stop_signals() as poll:
    execution.run_trials(written, trials, [pool.DeviceGroup()], lambda trial: ["python", "-c", wait], poll)
cli.run_verb(verb)
"""


@pytest.mark.long
def test_closed_terminal_stops_a_search_that_draws_on_it(tmp_path):
  here, there = pty.openpty()
  words = [sys.executable, "-c", ON_A_TERMINAL, str(tmp_path), os.ttyname(there)]
  process = subprocess.Popen(words, cwd=runs.ROOT, start_new_session=True)
  deadline = time.monotonic() + 100
  while not any("up" in log.read_text() for log in tmp_path.glob("logs/*")):
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.1)
  for end in (there, here):
    os.close(end)
  process.send_signal(signal.SIGHUP)  # as the kernel does for the processes of a terminal
  try:
    assert process.wait(timeout=200) == 42
  except subprocess.TimeoutExpired:
    signals = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    process.send_signal(signal.SIGUSR2)
    time.sleep(2)
    process.kill()
    pytest.fail(signals + (tmp_path / "stacks").read_text())
