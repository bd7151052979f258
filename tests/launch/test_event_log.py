"""Tests of the event log, which records each action before it happens, so that another watcher can continue."""

import dataclasses
import json
import os
import time

import pytest

from launch import event_log, storage
from launch.errors import LaunchError, UnknownError
from launch.event_log import EventLog
from launch.states import OVER, WATCHING, State
from tests.launch.world import run


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


STATE = State(attempt=3, try_=2, stage=WATCHING, since=5.5, unverified=(1,), end=(13, "why"))


def test_appended_events_are_read_with_the_state_and_the_run():
  book = EventLog("vit")
  book.append("run", State(), run=run().dumps(), sha="ab")
  book.append("intent", STATE, location="europe-west4-a")
  again = EventLog("vit")
  assert again.state == STATE and again.run == run() and again.find_last_event("intent")["location"] == "europe-west4-a"
  assert [event["number"] for event in again.events] == [0, 1] and again.open and event_log.list_runs() == ["vit"]


def test_requested_attempts_remain_until_their_deletion_is_observed():
  book = EventLog("vit")
  for attempt in (1, 2, 3):
    book.append("intent", dataclasses.replace(STATE, attempt=attempt))
  book.append("deleted", dataclasses.replace(STATE, attempt=2))
  assert EventLog("vit").list_remaining() == [1, 3]
  book.append("end", STATE, code=13, text="")
  assert not EventLog("vit").open


@pytest.mark.parametrize("torn", [b'{"number": 2, "ti', b"\xff\xfe\x00", b"[]", b"{}", b"nul\n" + b"x" * 1000])
def test_incomplete_line_is_ignored_and_replaced(torn):
  book = EventLog("vit")
  book.append("run", State(), run=run().dumps())
  path = event_log.get_log_directory() / "vit.jsonl"
  with open(path, "ab") as file:
    file.write(torn)
  again = EventLog("vit")
  assert again.events == book.events
  again.append("intent", STATE)
  assert [event["event"] for event in EventLog("vit").events] == ["run", "intent"]


def test_another_machine_continues_the_copy_in_the_run_directory(tmp_path, monkeypatch):
  folder = storage.open_storage(str(tmp_path / "run"))
  book = EventLog("vit", folder)
  book.append("run", State(), run=run().dumps())
  book.append("intent", STATE)
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
  other = EventLog("vit", folder)
  assert other.events == book.events and other.unconfirmed == run() and EventLog("vit").events == []
  other.confirm()
  assert other.unconfirmed is None and EventLog("vit").events == book.events
  other.append("deleted", STATE)
  book.read()
  assert book.events == other.events


class Away(storage.Disk):
  """A folder that does not respond if `away` is True."""

  away = True

  def write(self, *arguments):
    if self.away:
      raise UnknownError("no answer")
    return super().write(*arguments)


def test_unreachable_folder_delays_only_the_copy(tmp_path, capsys):
  folder = Away(str(tmp_path))
  book = EventLog("vit", folder)
  book.append("run", State(), run=run().dumps())
  assert "late" in capsys.readouterr().err and EventLog("vit").events == book.events
  folder.away = False
  book.append("intent", STATE)
  assert len(folder.read(event_log.COPY).content.splitlines()) == 2


def test_failed_record_is_an_error_before_a_machine_is_created(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
  with pytest.raises(LaunchError, match="machines are created only after they are recorded"):
    EventLog("vit").append("intent", STATE)


FULL = LaunchError("vit.jsonl: No space left on device")


@pytest.mark.parametrize("torn", [False, True])
def test_full_disk_is_reported_once_and_blocks_only_new_machines(tmp_path, monkeypatch, capsys, torn):
  folder = storage.open_storage(str(tmp_path / "run"))
  book, path = EventLog("vit", folder), event_log.get_log_directory() / "vit.jsonl"
  book.append("run", State(), run=run().dumps())
  book.append("intent", STATE)
  book.append("created", STATE)
  path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:1]) + b'{"number": 9' * torn)
  before = path.read_bytes()
  write, full = EventLog._write, [True]

  def filled(self, text, mode, *rest):
    if full[0]:
      raise FULL
    write(self, text, mode, *rest)

  monkeypatch.setattr(EventLog, "_write", filled)
  again = EventLog("vit", folder)
  assert again.events == book.events and again.list_remaining() == [3] and path.read_bytes() == before
  again.append("ready", STATE)
  again.append("deleted", STATE)
  assert capsys.readouterr().err.count("No space left") == 1
  assert [event["event"] for event in EventLog("vit", folder).events][-2:] == ["ready", "deleted"]
  with pytest.raises(LaunchError, match="only after they are recorded"):
    again.append("intent", dataclasses.replace(STATE, attempt=4))
  full[0] = False
  again.append("end", STATE, code=0, text="")
  assert event_log.parse_events(path.read_bytes()) == again.events and len(again.events) == 6


def test_reading_an_event_log_does_not_change_it(monkeypatch):
  book = EventLog("vit")
  book.append("run", State(), run=run().dumps())
  path = event_log.get_log_directory() / "vit.jsonl"
  path.write_bytes(path.read_bytes() + b'{"number"')  # an incomplete line of another writer
  before = path.read_bytes()
  assert EventLog("vit").events == book.events and path.read_bytes() == before


@pytest.mark.parametrize("event", ["ready", "end"])
def test_workdir_of_another_unfinished_run_is_refused(tmp_path, event):
  folder = storage.open_storage(str(tmp_path / "w"))
  first = EventLog("first", folder)
  first.append("run", State(), run=dataclasses.replace(run(), name="first").dumps())
  first.append("intent", State(attempt=1))
  first.append(event, State(attempt=1))
  with pytest.raises(
    LaunchError, match=r"belongs to the run first, which has not ended\. python -m launch status first"
  ):
    EventLog("second", folder)
  assert event_log.list_runs() == ["first"]
  first.append("deleted", State(attempt=1))
  first.append("end", State(attempt=1, stage=OVER))
  assert EventLog("second", folder).events == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A", "-a", "a" * 99, "a\n"])
def test_invalid_names_are_refused(name):
  with pytest.raises(LaunchError, match="is not allowed"):
    EventLog(name)


@pytest.mark.parametrize(("key", "value"), [("colour", "red"), ("attempt", "x"), ("expires", 1e300), ("end", [1])])
def test_unknown_fields_are_ignored_and_invalid_values_are_errors(key, value):
  book = EventLog("vit")
  book.append("run", State(), run=run().dumps())
  path = event_log.get_log_directory() / "vit.jsonl"
  line = json.loads(path.read_text())
  line["state"][key] = value
  path.write_text(json.dumps(line) + "\n")
  if key == "colour":
    assert EventLog("vit").state == State()
    return
  with pytest.raises(LaunchError, match=rf"vit.jsonl.*{key}.*launch down vit"):
    _ = EventLog("vit").state


def test_unknown_run_is_reported():
  with pytest.raises(LaunchError, match="this machine has no such run"):
    _ = EventLog("vit").run


@pytest.mark.parametrize("clock", [-600.0, 0.0, 86400.0])
@pytest.mark.parametrize(("age", "least", "most"), [(0, 230, 240), (100, 130, 141), (300, 0, 0)])
def test_settling_time_of_a_request_follows_the_folders_clock(tmp_path, monkeypatch, clock, age, least, most):
  folder, now = storage.open_storage(str(tmp_path / "run")), time.time()
  with monkeypatch.context() as patch:
    patch.setattr(time, "time", lambda: now + clock)
    book = EventLog("vit", folder)
    for event in ("intent", "intent"):  # a repeated request
      book.append(event, STATE)
  os.utime(tmp_path / "run" / event_log.COPY, (now - age, now - age))
  other = EventLog("vit", folder)
  other.take_over()
  assert least <= other.get_settling_seconds() <= most and (not other.get_settling_seconds(3)) == (most == 0)
  following = EventLog("vit", folder)
  following.take_over()  # a second watcher does not wait again
  assert (following.get_settling_seconds() == 0) == (most == 0)


def test_absent_attempt_is_settled_if_no_request_is_pending(monkeypatch):
  book = EventLog("vit")
  book.append("intent", STATE)
  assert book.get_settling_seconds(3)
  book.append("created", STATE)
  assert not book.get_settling_seconds(3)
  book.append("intent", dataclasses.replace(STATE, attempt=4))
  assert book.get_settling_seconds(4)
  monkeypatch.setattr(event_log, "IN_FLIGHT", -1.0)
  assert not book.get_settling_seconds(4)
