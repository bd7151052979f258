"""Tests of the watcher, which may die at any moment: machines are recorded before creation and deleted later."""

import dataclasses
import threading
import time

import pytest

from launch import errors, event_log, mailbox, spec, states
from launch.errors import LaunchError
from launch.event_log import EventLog
from launch.mailbox import Lease, LeaseHeldError
from launch.states import IDLE, OVER
from launch.storage import open_storage
from launch.watch import Watcher
from tests.launch.clouds import Cloud, Engine, Killed

LIMITS = spec.Limits(beat=0.02, poll=0.02, silence=10.0, grace=0.2, pause=0.02, delete=0.6, start=20.0, repair=0.5)


@pytest.fixture
def run(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  folder = str(tmp_path / "run")
  run = spec.Run("vit", "local", "train", (f"--workdir={folder}",), folder, processes=2, limits=LIMITS)
  return spec.check_and_complete(run)


def watch_from_start(run, cloud):
  """Watches a run from the beginning and returns the exit code."""
  with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch:
    watch.begin(None)
    return watch.watch_to_end()


def is_start_known(watch):
  """Returns True if running workers were observed."""
  return watch.state.start_known


def events(run):
  return [event["event"] for event in EventLog(run.name).events]


def test_run_is_recorded_created_watched_and_deleted(run, capsys):
  with Cloud() as cloud:
    assert watch_from_start(run, cloud) == errors.DONE
  assert events(run) == ["run", "intent", "created", "ready", "done", "deleted", "end"]
  assert not cloud.states and "vit: done" in capsys.readouterr().out
  copied = open_storage(run.folder).read(event_log.COPY).content
  assert copied == (event_log.get_log_directory() / "vit.jsonl").read_bytes()


def test_attempt_is_on_the_disk_before_its_request(run):
  class Reading(Engine):
    def create(self, attempt, expires):
      assert EventLog(run.name).list_remaining() == [attempt]
      super().create(attempt, expires)

  with Cloud() as cloud, Watcher(run, EventLog(run.name), Reading(run, cloud)) as watch:
    watch.begin(None)
    assert watch.watch_to_end() == errors.DONE


def test_only_the_first_cause_and_its_log_are_shown(run, capsys):
  with Cloud([{"codes": ((134, 1),)}]) as cloud:
    assert watch_from_start(run, cloud) == errors.GAVE_UP
  text = capsys.readouterr().out
  assert "w01 (h1) ended with 1" in text and "the log of 1" in text and "the log of 0" not in text
  assert cloud.made == [1] and events(run).count("again") == 2


@pytest.mark.long
def test_another_watcher_continues_after_a_death_at_any_call(run, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 0.1)
  crews = [{"codes": ((0, 43), (134, 43))}, {}]  # a hang, a second hang on the same machines, and then other machines
  with Cloud(crews) as cloud:
    assert watch_from_start(run, cloud) == errors.DONE and cloud.made == [1, 2]
    total = len([call for call in cloud.calls if call != "look"])
  assert total == 8
  for number in range(1, 60, 3):
    (event_log.get_log_directory() / "vit.jsonl").unlink()
    for name in open_storage(run.folder).list_names():
      open_storage(run.folder).delete(name)
    with Cloud(crews) as cloud:
      cloud.kill_at = number
      try:
        code = watch_from_start(run, cloud)
      except Killed:
        cloud.kill_at = None
        with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud), force=True) as watch:
          code = watch.watch_to_end()
      assert code == errors.DONE and cloud.most == 1 and not cloud.states, number
      assert sorted({*cloud.made}) == [1, 2]


def test_calls_without_a_response_are_repeated(run):
  with Cloud() as cloud:
    cloud.fail_at = {1, 2, 4, 5, 9, 14, 15, 16, 17, 18}
    assert watch_from_start(run, cloud) == errors.DONE and cloud.made == [1]


def test_failed_deletion_is_named_with_its_command_and_exit_code_13(run, capsys):
  with Cloud(removal=1e9) as cloud:
    assert watch_from_start(run, cloud) == errors.BILLING
  text = capsys.readouterr().out
  assert "vit-a1 may still exist" in text and "remove vit-a1" in text and "launch down vit" in text
  assert EventLog(run.name).list_remaining() == [1]


def watch_with_a_late_request(run, cloud, seconds):
  """Kills a watcher during its request, which takes effect `seconds` after another watcher has taken over.

  Returns:
    The exit code of the second watcher.
  """
  cloud.kill_at = cloud.calls.count("create") + 1 + len(cloud.calls)
  with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch, pytest.raises(Killed):
    watch.begin(None)
    watch.watch_to_end()
  cloud.kill_at = None
  timer = threading.Timer(seconds, lambda: cloud.states.update({9: (states.READY, 0.0)}))
  timer.start()
  with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch:
    code = watch.watch_to_end()
  timer.join()
  return code


@pytest.mark.parametrize(("seconds", "word"), [(0.1, "appeared late"), (0.8, "current attempt")])
def test_late_machine_of_a_killed_watcher_is_deleted(run, capsys, monkeypatch, seconds, word):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 1.0 if seconds > 0.5 else 0.3)
  with Cloud([{"steps": 30 if seconds < 0.5 else 1}]) as cloud:
    assert watch_with_a_late_request(run, cloud, seconds) == errors.DONE and not cloud.live()
  assert word in capsys.readouterr().out and "taken" in events(run)


def test_late_resource_without_a_response_ends_with_exit_code_13(run, capsys, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 0.1)
  with Cloud() as cloud:
    cloud.silent = {"memory": "503"}
    assert watch_from_start(run, cloud) == errors.DONE  # only a note, because the run has no pending requests
    (event_log.get_log_directory() / "vit.jsonl").unlink(), open_storage(run.folder).delete(event_log.COPY)
    assert watch_with_a_late_request(run, cloud, 0.0) == errors.BILLING
  assert "memory did not report" in (output := capsys.readouterr().out) and "remove vit-a" in output


def test_full_disk_after_the_creation_does_not_end_the_run(run, capsys, monkeypatch):
  write = EventLog._write

  def full(self, text, *rest):
    if '"created"' in text:
      raise LaunchError(f"{self._path}: No space left on device")
    write(self, text, *rest)

  monkeypatch.setattr(EventLog, "_write", full)
  with Cloud() as cloud:
    assert watch_from_start(run, cloud) == errors.DONE and cloud.made == [1] and not cloud.states
  assert "No space left on device: 'created' of vit-a1 is not recorded here" in capsys.readouterr().err


def test_refusal_ends_the_run_with_the_message_of_the_cloud(run, capsys):
  with Cloud() as cloud:
    cloud.refuse = ("quota of v3 is used up by vit-a0", errors.DENIED)
    assert watch_from_start(run, cloud) == errors.DENIED
  assert "quota of v3 is used up by vit-a0" in capsys.readouterr().out and not cloud.states


def test_two_watchers_are_refused(run):
  run = dataclasses.replace(run, limits=dataclasses.replace(LIMITS, poll=5.0))  # the lease outlasts a slow machine
  with Cloud([{"steps": 10**6}]) as cloud:
    with Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
      watch.begin(None)
      for _ in range(5):
        watch.step()
      with pytest.raises(LeaseHeldError), Watcher(run, EventLog(run.name), Engine(run, cloud)):
        pass
      with Watcher(run, EventLog(run.name), Engine(run, cloud), force=True), pytest.raises(LeaseHeldError):
        watch.watch_to_end()
    assert cloud.live() == [1]


def test_kept_machines_are_deleted_before_the_next_attempt(run):
  run = dataclasses.replace(run, keep_on_fail=True)
  with Cloud([{"codes": ((44,),)}, {}]) as cloud:
    assert watch_from_start(run, cloud) == 44 and cloud.live() == [1]
    assert watch_from_start(run, cloud) == errors.DONE and cloud.made == [1, 2] and cloud.most == 1


def test_stopped_run_is_resumed_on_its_machines(run):
  with Cloud([{"steps": 60, "began": (0, 5)}]) as cloud:
    with Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
      watch.begin(None)
      while not is_start_known(watch):
        watch.step()
      files = mailbox.Mailbox(open_storage(run.folder), 1)
      files.write_order(mailbox.Order(1, stop=True))
      assert watch.watch_to_end() == errors.DETACHED and cloud.live() == [1]
    with Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
      watch.resume(2)
      files.write_order(mailbox.Order(2))
      assert watch.watch_to_end() == errors.DONE
  assert cloud.made == [1] and not cloud.states


def test_wrong_clock_of_a_worker_is_reported_once(run, capsys):
  run = dataclasses.replace(run, processes=3)
  files = mailbox.Mailbox(open_storage(run.folder), 1)
  with Cloud() as cloud, Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
    cloud.states = {1: (states.READY, 0.0)}
    watch.state = dataclasses.replace(watch.state, attempt=1, stage="watching")
    for _ in range(3):
      for w in range(3):
        files.write_report(mailbox.WorkerReport(w, clock=time.time() + 500 * (w == 2)))
      watch.step()
  assert capsys.readouterr().out.count("w02: its clock differs from the others by 500 s") == 1


def test_unreadable_report_is_noted_once_and_other_reports_count(run, capsys):
  files = mailbox.Mailbox(open_storage(run.folder), 1)
  files.write_report(mailbox.WorkerReport(0, phase=mailbox.RUNNING, step=7))
  files.storage.write("a1/w01.json", b"{")
  with Cloud() as cloud, Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
    cloud.states = {1: (states.READY, 0.0)}
    watch.state = dataclasses.replace(watch.state, attempt=1, stage="watching")
    for _ in range(3):
      watch.step()
  printed = capsys.readouterr().out
  assert printed.count("w01: its report is not in the format") == 1 and "1 of 2 workers running, step 7" in printed


def test_reports_of_a_forgotten_run_do_not_count(run):
  files = mailbox.Mailbox(open_storage(run.folder), 1)
  for worker in range(2):
    files.write_report(mailbox.WorkerReport(worker, 1, mailbox.EXITED, exit=0))
  with Cloud([{"codes": ((44,),)}]) as cloud:
    assert watch_from_start(run, cloud) == 44


def test_remaining_machines_are_deleted_before_another_attempt(run, capsys):
  with Cloud(removal=1e9) as cloud:
    assert watch_from_start(run, cloud) == errors.BILLING
    with pytest.raises(LaunchError, match="vit-a1 could not be deleted, and no other") as found:
      watch_from_start(run, cloud)
    assert found.value.code == errors.BILLING and "remove vit-a1" in str(found.value)
    assert cloud.made == [1] and not EventLog(run.name).open and EventLog(run.name).list_remaining() == [1]
    cloud.removal = 0.05
    assert watch_from_start(run, cloud) == errors.DONE and cloud.made == [1, 2] and cloud.most == 1 and not cloud.states


def test_next_attempt_waits_for_late_machines_and_their_deletion(run, capsys, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 5.0)
  with Cloud([{"steps": 10**6}, {"steps": 1}]) as cloud:
    with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch, pytest.raises(Killed):
      watch.begin(None)
      cloud.kill_at = 2
      watch.watch_to_end()
    cloud.kill_at = None
    with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch:
      while not is_start_known(watch):
        watch.step()
      cloud.resources.close()  # lost machines do not report
      cloud.states[1] = states.LOST, 0.0
      while watch.state.stage != IDLE:
        watch.step()
      watch.step()
      assert cloud.made == [1] and "the next attempt waits" in capsys.readouterr().out
      cloud.states[1] = states.READY, 0.0  # from the request of the killed watcher
      assert watch.watch_to_end() == errors.DONE
    assert cloud.made == [1, 2] and cloud.most == 1 and not cloud.live()


@pytest.mark.parametrize(("ended", "fails", "code"), [(True, (), 2), (True, range(9999), 13), (False, (), 2)])
def test_machine_created_after_the_end_of_its_run_is_deleted_or_named(run, ended, fails, code):
  class Asleep(Engine):
    def create(self, attempt, expires):
      Lease(open_storage(run.folder), 60).take(force=True)
      book = EventLog(run.name, open_storage(run.folder))
      if ended:
        book.append("deleted", book.state)
        book.append("end", dataclasses.replace(book.state, stage=OVER, end=(0, "")), code=0, text="")
      super().create(attempt, expires)
      cloud.fail_at = set(fails)

  with Cloud() as cloud, Watcher(run, EventLog(run.name, open_storage(run.folder)), Asleep(run, cloud)) as watch:
    watch.begin(None)
    with pytest.raises(LeaseHeldError) as found:
      watch.watch_to_end()
    assert found.value.code == code and ("remove vit-a1" in str(found.value)) == (code == 13)
    assert cloud.made == [1] and bool(cloud.states) == (code == 13 or not ended)


class Losing(Cloud):
  """A cloud that loses two requests and the response to the third.

  Looks are not counted, because their number depends on time.
  """

  def requests(self):
    return [call for call in self.calls if call != "look"]

  def count(self, call):
    super().count(call)
    if call != "look" and len(self.requests()) in (1, 2, 4):
      raise errors.UnknownError("no answer")


def test_each_request_is_recorded_before_it_is_sent(run):
  with Losing() as cloud:
    assert watch_from_start(run, cloud) == errors.DONE
  assert cloud.requests()[:4] == ["create", "create", "create", "created"]
  assert events(run)[:5] == ["run", "intent", "intent", "intent", "created"]


def test_engine_of_the_tests_has_the_interface_of_engines():
  assert {name for name in vars(states.Engine) if not name.startswith("_")} <= {*vars(Engine)}
