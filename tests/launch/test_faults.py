"""Tests of former defects of the launcher: queues, trust in the bucket, clocks, and deletions by other machines."""

import dataclasses
import json
import subprocess
import sys
import time

import pytest

from launch import commands, errors, event_log, flags, listing, mailbox, removal, spec, states, watch
from launch.errors import LaunchError, UnknownError
from launch.event_log import EventLog
from launch.mailbox import Lease
from launch.removal import ELSEWHERE, EXPIRED, ORPHAN, RunFacts
from launch.states import IDLE, OVER, WATCHING, State
from launch.storage import open_storage
from launch.watch import Watcher
from tests.launch.clouds import Cloud, Engine
from tests.launch.test_watch import LIMITS
from tests.launch.world import World, run

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def here(tmp_path):
  """A run on this machine."""
  folder = str(tmp_path / "run")
  return spec.check_and_complete(
    spec.Run("vit", "local", "train", (f"--workdir={folder}",), folder, processes=2, limits=LIMITS)
  )


# Time in the queue.


def test_time_in_the_queue_is_not_machine_time():
  world = World(run(max_hours=4), total=1000, queue=5.9 * HOUR).watch_to_end()
  assert world.state.end[0] == errors.DONE and world.made == [1] and "expired" not in world.notes


def test_time_limit_of_an_attempt_starts_when_it_is_ready():
  world = World(run(max_hours=4), total=10**9, queue=5 * HOUR).until(lambda w: w.state.ready > 0)
  assert world.state.expires == world.state.ready + 4 * HOUR
  world.watch_to_end()
  assert world.state.end[0] == errors.GAVE_UP and 4 * HOUR <= world.state.used <= 4.1 * HOUR


def test_queued_attempt_has_not_expired():
  world = World(run(max_hours=4), queue=5.9 * HOUR).until(lambda w: w.state.look == states.QUEUED)
  label, born = int(world.state.expires), world.now
  waiting = states.Resource("vit-a1", "z", "vit", "alice", 1, states.QUEUED, expires=label)
  for waited in (0, 4.5 * HOUR, 9.9 * HOUR):
    assert removal.find_removal_reason(waiting, RunFacts(world.state, True, False, born + waited)) == ""
  assert removal.find_removal_reason(waiting, RunFacts(world.state, True, False, born + 11 * HOUR)) == EXPIRED


def test_waiting_workers_keep_their_whole_time(tmp_path):
  files = mailbox.Mailbox(open_storage(str(tmp_path)), 1)
  assert files.begin(5000.0) == 5000.0
  assert [files.begin(now) for now in (5000.0, 9000.0, 4000.0)] == [5000.0, 5000.0, 4000.0]
  files.storage.write("a1/began.json", b'{"began": "x"}')
  with pytest.raises(UnknownError):
    files.begin(1.0)


# Trust in the files of the run's directory.


def forge_event_log(book, **changes):
  """Writes a longer event log to the run's directory, as each user with write access can."""
  lines = [dict(event) for event in book.events]
  asked = dataclasses.replace(book.run, **changes).dumps()
  line = {**lines[-1], "event": "run", "run": asked, "sha": "e" * 64}
  open_storage(book.run.folder).write(
    event_log.COPY, "".join(json.dumps(e) + "\n" for e in [*lines, line, line]).encode()
  )


def begin_run(here):
  book = EventLog("vit", open_storage(here.folder))
  book.append("run", State(), run=here.dumps(), sha="c" * 64)
  book.append("intent", State(attempt=1, try_=1, stage=WATCHING))
  book.append("created", State(attempt=1, try_=1, stage=WATCHING))
  return book


CHANGES = [{"module": "evil"}, {"args": ("--evil",)}, {"python": "/bin/evil"}, {"processes": 3}, {"env": {"A": "b"}}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_longer_event_log_in_the_bucket_does_not_change_the_program(here, change, capsys):
  forge_event_log(begin_run(here), **change)
  book = commands.open_event_log("vit")
  assert book.run == here and book.code == "c" * 64 and book.unconfirmed != here
  assert EventLog("vit").run == here and len(EventLog("vit").events) == 3
  with pytest.raises(LaunchError, match="not confirmed"):
    commands.adopt(flags.parse_flags(["adopt", "vit"])[0])
  output = capsys.readouterr().out
  assert "module" in change or "program" in output
  with Cloud() as cloud, Watcher(book.run, book, Engine(here, cloud)) as made:
    with pytest.raises(LaunchError, match="differs from the run that this machine started"):
      made.watch_to_end()
    assert not cloud.made


def test_run_described_only_in_the_bucket_requires_confirmation(here, tmp_path, monkeypatch, capsys):
  begin_run(here)
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
  book = commands.open_event_log("vit", here.workdir)
  with pytest.raises(LaunchError, match="--yes"):
    commands.confirm_run(book)
  output = capsys.readouterr().out
  rows = dict(line.split(maxsplit=1) for line in output.splitlines()[1:])
  assert rows["backend"] == "local" and rows["code"] == "c" * 64 and rows["program"].startswith("train --workdir=")
  assert not event_log.list_runs()
  assert commands.confirm_run(book, yes=True).unconfirmed is None and EventLog("vit").run == here


def test_same_run_on_another_machine_requires_no_confirmation(here):
  book = begin_run(here)
  other = EventLog("vit", open_storage(here.folder))
  other.append("ready", State(attempt=1, try_=1, stage=WATCHING, ready=1.0))
  book.read()
  assert commands.confirm_run(book) is book and book.events[-1]["event"] == "ready"


@pytest.mark.heavy
def test_worker_executes_only_the_run_started_on_this_machine(here, tmp_path):
  begin_run(here)
  files = mailbox.Mailbox(open_storage(here.folder), 1)
  attempt = mailbox.Attempt(here, 1, "c" * 64, 2_000_000_000)
  assert event_log.compute_proof(here) == attempt.proof
  words = states.make_engine(here).build_commands(1, 2_000_000_000).script
  assert f"--proof={attempt.proof}" in words
  for changed in (dataclasses.replace(here, module="evil"), dataclasses.replace(here, args=("--evil",))):
    files.publish(dataclasses.replace(attempt, run=changed))
    command = [sys.executable, "-m", "launch.worker", "run", f"--folder={here.folder}", "--worker=0", "--engine=local",
               "--name=vit", f"--home={tmp_path}/home", f"--proof={attempt.proof}"]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode and "changed after the start" in result.stderr
  files.publish(dataclasses.replace(attempt, code="d" * 64))
  assert files.read_attempt().proof != attempt.proof


# Clocks.


def test_deadlines_follow_the_clock_of_the_runs_directory(here, monkeypatch, capsys):
  store = open_storage(here.folder)
  store.write("x", b"")
  before, true = store.clock.now(), time.time()
  monkeypatch.setattr(time, "time", lambda: true + DAY)
  assert abs(store.clock.now() - before) < 5
  with Cloud() as cloud, Watcher(here, EventLog("vit", open_storage(here.folder)), Engine(here, cloud)) as made:
    made.begin(None)
    assert made.watch_to_end() == errors.DONE
  assert "this machine's clock differs by 86400 s" in capsys.readouterr().out
  assert all(abs(event["time"] - true) < 60 for event in EventLog("vit").events)


def test_machines_do_not_expire_by_the_clock_of_a_laptop():
  resource = states.Resource("vit-a1", "z", "vit", "alice", 1, states.READY, expires=1000)
  live = State(attempt=1, stage=WATCHING)
  assert removal.find_removal_reason(resource, RunFacts(live, True, False, 0.0)) == ""
  assert removal.find_removal_reason(resource, RunFacts(live, True, False, 1001.0)) == EXPIRED


# Deletions by other machines.


def resource(attempt, state_=states.READY, expires=0):
  return states.Resource(f"vit-a{attempt}", "z", "vit", "alice", attempt, state_, detail="X", expires=expires)


@pytest.mark.parametrize(
  ("facts", "attempt", "state_", "flag"),
  [
    (None, 1, states.LOST, ELSEWHERE),
    (RunFacts(State(1, stage=WATCHING), True, True, 9.0), 1, states.READY, ""),
    (RunFacts(State(1, stage=WATCHING), True, True, 9.0), 1, states.LOST, ""),  # the watcher deletes it
    (
      RunFacts(State(1, stage=IDLE), True, True, 9.0),
      2,
      states.READY,
      "",
    ),  # the next attempt, not yet in the event log
    (RunFacts(State(2, stage=WATCHING), True, True, 9.0), 1, states.READY, ELSEWHERE),
    (RunFacts(State(1, stage=WATCHING), True, False, 9.0), 1, states.READY, ""),  # its watcher was killed
    (RunFacts(State(1, stage=IDLE), True, False, 9.0), 2, states.READY, ELSEWHERE),
    (RunFacts(State(1, stage=WATCHING), True, False, 9.0), 1, states.LOST, "X"),
    (RunFacts(State(2, stage=WATCHING), True, False, 9.0), 1, states.READY, ORPHAN),
    (RunFacts(State(2, stage=WATCHING), True, False, 9.0, settled=False), 1, states.READY, ""),
    (RunFacts(State(1, stage=OVER, end=(0, "")), False, False, 9.0), 1, states.READY, ORPHAN),
    (RunFacts(State(1, stage=OVER, end=(44, ""), kept=True), False, False, 9.0), 1, states.READY, ""),
  ],
)
def test_removal_reason_follows_from_the_event_log_and_the_lease(facts, attempt, state_, flag):
  assert removal.find_removal_reason(resource(attempt, state_), facts) == flag


def test_gc_reads_event_log_and_lease_again_before_a_removal(here, monkeypatch, capsys):
  book = begin_run(here)
  book.append("end", State(1, stage=OVER, end=(12, "x")), code=12, text="x")
  with Cloud() as cloud:
    cloud.states = {1: (states.READY, 0.0)}
    monkeypatch.setattr(listing, "make_engine", lambda asked: Engine(asked, cloud))
    monkeypatch.setattr(spec, "get_user_label", lambda: here.owner)
    found = listing._find_machines

    def slow(*words):
      """Lists machines. Afterwards, another machine continues the run."""
      rows = found(*words)
      EventLog("vit", open_storage(here.folder)).append("resumed", State(1, try_=2, stage=WATCHING))
      return rows

    monkeypatch.setattr(listing, "_find_machines", slow)
    assert listing.gc(flags.parse_flags(["gc", "--yes"])[0]) == errors.DONE
    assert "ORPHAN" in (output := capsys.readouterr().out) and "is not deleted" in output and cloud.live() == [1]
    monkeypatch.setattr(listing, "_find_machines", found)
    lease = Lease(open_storage(here.folder), 60)
    lease.take()
    assert listing.gc(flags.parse_flags(["gc", "--yes"])[0]) == errors.DONE and cloud.live() == [1]


def test_only_force_deletes_if_the_runs_directory_is_unreadable(here, monkeypatch, capsys):
  book = begin_run(here)
  book.append("end", State(1, stage=OVER, end=(12, "x")), code=12, text="x")
  with Cloud() as cloud:
    cloud.states = {1: (states.LOST, 0.0)}
    monkeypatch.setattr(listing, "make_engine", lambda asked: Engine(asked, cloud))
    monkeypatch.setattr(spec, "get_user_label", lambda: here.owner)
    copy = open_storage(here.folder)._folder / event_log.COPY
    copy.unlink(), copy.mkdir()
    assert listing.gc(flags.parse_flags(["gc", "--yes"])[0]) == errors.DONE
    assert "--force deletes them anyway" in capsys.readouterr().out and cloud.live() == [1]
    assert listing.gc(flags.parse_flags(["gc", "--yes", "--force"])[0]) == errors.DONE and not cloud.live()


def test_down_stops_if_another_watcher_takes_over(here):
  book, calls = begin_run(here), []
  with Cloud() as cloud:
    cloud.states = {1: (states.READY, 0.0)}

    def before():
      calls.append(1)
      raise watch.LeaseHeldError("another", " now")

    with pytest.raises(watch.LeaseHeldError):
      removal.delete(Engine(here, cloud), here, [1], book, lambda _: None, before)
    assert calls and cloud.live() == [1]
