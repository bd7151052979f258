"""Tests of deletions, which are confirmed or named, also of machines that are missing in the event log."""

import dataclasses
import time

import pytest

from launch import event_log, removal, spec, states
from launch.event_log import EventLog
from launch.states import WATCHING, State
from tests.launch.clouds import Cloud, Engine

LIMITS = spec.Limits(poll=0.02, delete=0.3)
STATE = State(attempt=2, try_=3, stage=WATCHING)


@pytest.fixture
def run(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  return spec.check_and_complete(spec.Run("vit", "local", "train", (), str(tmp_path / "run"), limits=LIMITS))


@pytest.fixture
def book(run):
  made = EventLog("vit")
  made.append("run", State(), run=run.dumps())
  for attempt in (1, 2):
    made.append("intent", dataclasses.replace(STATE, attempt=attempt))
    made.append("created", dataclasses.replace(STATE, attempt=attempt))
  return made


def make_cloud(*attempts):
  cloud = Cloud()
  cloud.states = dict.fromkeys(attempts, (states.READY, 0.0))
  return cloud


def test_all_attempts_are_deleted_and_the_state_is_kept(run, book):
  cloud = make_cloud(1, 2)
  assert removal.delete(Engine(run, cloud), run, [1, 2], book) == [] and not cloud.states
  assert book.list_remaining() == [] and book.state == STATE


def test_late_resource_is_waited_for_and_deleted(run, book, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 0.4)
  book.append("intent", dataclasses.replace(STATE, attempt=3))
  cloud, start_time, came = make_cloud(), time.monotonic(), []

  def wait(seconds):
    time.sleep(seconds)
    if time.monotonic() - start_time > 0.33 and not came:  # limits.delete is 0.3
      came.append(cloud.states.setdefault(3, (states.READY, 0.0)))

  assert removal.delete(Engine(run, cloud), run, [1, 2, 3], book, wait) == [] and not cloud.states
  assert "delete" in cloud.calls and book.list_remaining() == [] and time.monotonic() - start_time > 0.4


def test_other_runs_and_spared_attempts_are_kept(run, book):
  cloud = make_cloud(1, 2, 3)
  found, troubles = removal.list_strays(Engine(run, cloud), run, [2])
  assert [each.attempt for each in found] == [1, 3] and troubles == {}
  other = dataclasses.replace(run, workdir=run.workdir + "-b")
  engine_ = Engine(run, cloud)
  assert removal.list_strays(engine_, other, []) == ([], {}) and removal.list_strays(engine_, run, [1, 2, 3]) == (
    [],
    {},
  )


def test_run_without_pending_requests_is_not_waited_for(run, book, capsys):
  start_time = time.monotonic()
  assert removal.delete_strays(Engine(run, make_cloud()), run, book, [], lambda _: pytest.fail("waits"))
  assert time.monotonic() - start_time < 0.2 and capsys.readouterr().out == ""


def test_request_of_an_earlier_watcher_is_waited_for(run, book, capsys, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 1.0)
  book.append("intent", dataclasses.replace(STATE, attempt=3))
  book.take_over()
  book.append("created", dataclasses.replace(STATE, attempt=3))
  book.append("deleted", dataclasses.replace(STATE, attempt=3))
  cloud, waits = make_cloud(), []

  def wait(_):
    waits.append(1)
    cloud.states.setdefault(3, (states.READY, 0.0))
    time.sleep(0.05)

  assert removal.delete_strays(Engine(run, cloud), run, book, [], wait) and len(waits) >= 3
  assert not cloud.live() and "vit-a3 exists" in capsys.readouterr().out


def test_failed_deletion_is_named_with_its_command(run, book, capsys):
  cloud = make_cloud(1)
  cloud.fail_at = set(range(1, 10**4))
  assert not removal.delete_strays(Engine(run, cloud), run, book, [], time.sleep)
  assert "remove vit-a1" in capsys.readouterr().out
