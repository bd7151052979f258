"""One who watches may die at any moment: what was made is written down first, found again, and deleted."""

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


def watched(run, cloud):
  """The exit code of one who watches from the beginning."""
  with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch:
    watch.begin(None)
    return watch.watch_to_end()


def seen(watch):
  """Whether the workers were seen to run."""
  return watch.state.start_known


def events(run):
  return [event["event"] for event in EventLog(run.name).events]


def test_a_run_is_written_down_made_watched_and_deleted(run, capsys):
  with Cloud() as cloud:
    assert watched(run, cloud) == errors.DONE
  assert events(run) == ["run", "intent", "created", "ready", "done", "deleted", "end"]
  assert not cloud.states and "vit: done" in capsys.readouterr().out
  copied = open_storage(run.folder).read(event_log.COPY).content
  assert copied == (event_log.get_log_directory() / "vit.jsonl").read_bytes()


def test_nothing_is_asked_for_before_it_is_on_the_disk(run):
  class Reading(Engine):
    def create(self, attempt, expires):
      assert EventLog(run.name).list_remaining() == [attempt]
      super().create(attempt, expires)

  with Cloud() as cloud, Watcher(run, EventLog(run.name), Reading(run, cloud)) as watch:
    watch.begin(None)
    assert watch.watch_to_end() == errors.DONE


def test_the_first_cause_and_its_log_are_shown_and_not_what_followed(run, capsys):
  with Cloud([{"codes": ((134, 1),)}]) as cloud:
    assert watched(run, cloud) == errors.GAVE_UP
  text = capsys.readouterr().out
  assert "w01 (h1) ended with 1" in text and "the log of 1" in text and "the log of 0" not in text
  assert cloud.made == [1] and events(run).count("again") == 2


@pytest.mark.long
def test_17_whoever_dies_at_whichever_call_another_goes_on_and_nothing_is_left(run, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 0.1)
  crews = [{"codes": ((0, 43), (134, 43))}, {}]  # a hang, another on the same machines, then others
  with Cloud(crews) as cloud:
    assert watched(run, cloud) == errors.DONE and cloud.made == [1, 2]
    total = len([call for call in cloud.calls if call != "look"])
  assert total == 8
  for number in range(1, 60, 3):
    (event_log.get_log_directory() / "vit.jsonl").unlink()
    for name in open_storage(run.folder).names():
      open_storage(run.folder).delete(name)
    with Cloud(crews) as cloud:
      cloud.kill_at = number
      try:
        code = watched(run, cloud)
      except Killed:
        cloud.kill_at = None
        with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud), force=True) as watch:
          code = watch.watch_to_end()
      assert code == errors.DONE and cloud.most == 1 and not cloud.states, number
      assert sorted({*cloud.made}) == [1, 2]


def test_calls_without_an_answer_are_made_again(run):
  with Cloud() as cloud:
    cloud.fail_at = {1, 2, 4, 5, 9, 14, 15, 16, 17, 18}
    assert watched(run, cloud) == errors.DONE and cloud.made == [1]


def test_18_what_cannot_be_deleted_is_named_with_the_command_and_code_13(run, capsys):
  with Cloud(removal=1e9) as cloud:
    assert watched(run, cloud) == errors.BILLING
  text = capsys.readouterr().out
  assert "vit-a1 may still exist" in text and "remove vit-a1" in text and "launch down vit" in text
  assert EventLog(run.name).list_remaining() == [1]


def late(run, cloud, seconds):
  """One who watches is killed while its request is on its way: `seconds` after another has taken over, it is done."""
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
def test_2_what_a_request_of_one_who_was_killed_makes_late_is_deleted(run, capsys, monkeypatch, seconds, word):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 1.0 if seconds > 0.5 else 0.3)
  with Cloud([{"steps": 30 if seconds < 0.5 else 1}]) as cloud:
    assert late(run, cloud, seconds) == errors.DONE and not cloud.live()
  assert word in capsys.readouterr().out and "taken" in events(run)


def test_a_late_resource_without_an_answer_ends_with_13(run, capsys, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 0.1)
  with Cloud() as cloud:
    cloud.silent = {"memory": "503"}
    assert watched(run, cloud) == errors.DONE  # of a run in which nothing was left open it is only said
    (event_log.get_log_directory() / "vit.jsonl").unlink(), open_storage(run.folder).delete(event_log.COPY)
    assert late(run, cloud, 0.0) == errors.BILLING
  assert "memory did not report" in (said := capsys.readouterr().out) and "remove vit-a" in said


def test_a_full_disk_after_the_creation_is_no_refusal_of_the_cloud(run, capsys, monkeypatch):
  write = EventLog._write

  def full(self, text, *rest):
    if '"created"' in text:
      raise LaunchError(f"{self._path}: No space left on device")
    write(self, text, *rest)

  monkeypatch.setattr(EventLog, "_write", full)
  with Cloud() as cloud:
    assert watched(run, cloud) == errors.DONE and cloud.made == [1] and not cloud.states
  assert "No space left on device: 'created' of vit-a1 is not recorded here" in capsys.readouterr().err


def test_a_refusal_is_an_end_with_the_clouds_words(run, capsys):
  with Cloud() as cloud:
    cloud.refuse = ("quota of v3 is used up by vit-a0", errors.DENIED)
    assert watched(run, cloud) == errors.DENIED
  assert "quota of v3 is used up by vit-a0" in capsys.readouterr().out and not cloud.states


def test_25_two_do_not_watch(run):
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


def test_a_run_that_was_kept_is_deleted_before_the_next_is_made(run):
  run = dataclasses.replace(run, keep_on_fail=True)
  with Cloud([{"codes": ((44,),)}, {}]) as cloud:
    assert watched(run, cloud) == 44 and cloud.live() == [1]
    assert watched(run, cloud) == errors.DONE and cloud.made == [1, 2] and cloud.most == 1


def test_one_that_was_stopped_is_resumed_on_its_machines(run):
  with Cloud([{"steps": 60, "began": (0, 5)}]) as cloud:
    with Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
      watch.begin(None)
      while not seen(watch):
        watch.step()
      files = mailbox.Mailbox(open_storage(run.folder), 1)
      files.write_order(mailbox.Order(1, stop=True))
      assert watch.watch_to_end() == errors.DETACHED and cloud.live() == [1]
    with Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
      watch.resume(2)
      files.write_order(mailbox.Order(2))
      assert watch.watch_to_end() == errors.DONE
  assert cloud.made == [1] and not cloud.states


def test_23_a_clock_that_is_wrong_is_said_once(run, capsys):
  run = dataclasses.replace(run, processes=3)
  files = mailbox.Mailbox(open_storage(run.folder), 1)
  with Cloud() as cloud, Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
    cloud.states = {1: (states.READY, 0.0)}
    watch.state = dataclasses.replace(watch.state, attempt=1, stage="watching")
    for _ in range(3):
      for w in range(3):
        files.report(mailbox.WorkerReport(w, clock=time.time() + 500 * (w == 2)))
      watch.step()
  assert capsys.readouterr().out.count("w02: its clock differs from the others by 500 s") == 1


def test_a_report_that_cannot_be_read_is_said_once_and_the_others_count(run, capsys):
  files = mailbox.Mailbox(open_storage(run.folder), 1)
  files.report(mailbox.WorkerReport(0, phase=mailbox.RUNNING, step=7))
  files.storage.write("a1/w01.json", b"{")
  with Cloud() as cloud, Watcher(run, EventLog(run.name), Engine(run, cloud)) as watch:
    cloud.states = {1: (states.READY, 0.0)}
    watch.state = dataclasses.replace(watch.state, attempt=1, stage="watching")
    for _ in range(3):
      watch.step()
  printed = capsys.readouterr().out
  assert printed.count("w01: its report is not in the format") == 1 and "1 of 2 workers running, step 7" in printed


def test_reports_of_a_run_that_is_forgotten_do_not_count(run):
  files = mailbox.Mailbox(open_storage(run.folder), 1)
  for worker in range(2):
    files.report(mailbox.WorkerReport(worker, 1, mailbox.EXITED, exit=0))
  with Cloud([{"codes": ((44,),)}]) as cloud:
    assert watched(run, cloud) == 44


def test_what_was_not_seen_to_be_gone_goes_before_the_same_command_makes_another(run, capsys):
  with Cloud(removal=1e9) as cloud:
    assert watched(run, cloud) == errors.BILLING
    with pytest.raises(LaunchError, match="vit-a1 could not be deleted, and no other") as found:
      watched(run, cloud)
    assert found.value.code == errors.BILLING and "remove vit-a1" in str(found.value)
    assert cloud.made == [1] and not EventLog(run.name).open and EventLog(run.name).list_remaining() == [1]
    cloud.removal = 0.05
    assert watched(run, cloud) == errors.DONE and cloud.made == [1, 2] and cloud.most == 1 and not cloud.states


def test_the_next_attempt_waits_until_nothing_can_come_late_and_what_came_is_gone(run, capsys, monkeypatch):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 5.0)
  with Cloud([{"steps": 10**6}, {"steps": 1}]) as cloud:
    with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch, pytest.raises(Killed):
      watch.begin(None)
      cloud.kill_at = 2
      watch.watch_to_end()
    cloud.kill_at = None
    with Watcher(run, EventLog(run.name, open_storage(run.folder)), Engine(run, cloud)) as watch:
      while not seen(watch):
        watch.step()
      cloud.resources.close()  # machines that are lost report no more
      cloud.states[1] = states.LOST, 0.0
      while watch.state.stage != IDLE:
        watch.step()
      watch.step()
      assert cloud.made == [1] and "the next attempt waits" in capsys.readouterr().out
      cloud.states[1] = states.READY, 0.0  # of the request of the one who was killed
      assert watch.watch_to_end() == errors.DONE
    assert cloud.made == [1, 2] and cloud.most == 1 and not cloud.live()


@pytest.mark.parametrize(("ended", "fails", "code"), [(True, (), 2), (True, range(9999), 13), (False, (), 2)])
def test_what_is_made_after_another_has_ended_the_run_is_deleted_or_named(run, ended, fails, code):
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
  """One that loses two requests, and the answer to the third; looks, of which time decides how many are, not."""

  def requests(self):
    return [call for call in self.calls if call != "look"]

  def count(self, call):
    super().count(call)
    if call != "look" and len(self.requests()) in (1, 2, 4):
      raise errors.UnknownError("no answer")


def test_each_request_is_written_down_before_it_is_made(run):
  with Losing() as cloud:
    assert watched(run, cloud) == errors.DONE
  assert cloud.requests()[:4] == ["create", "create", "create", "created"]
  assert events(run)[:5] == ["run", "intent", "intent", "intent", "created"]


def test_the_engine_of_the_test_is_one():
  assert {name for name in vars(states.Engine) if not name.startswith("_")} <= {*vars(Engine)}
