"""Defects that were found from outside, each with its row: queues, clocks, health, quota, interruptions and trust."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from launch import board, engine, errors, flags, journal, listing, removal, spec, state, verbs, watch
from launch.errors import LaunchError, QuotaError, UnknownError
from launch.journal import Journal
from launch.lease import Lease
from launch.removal import ELSEWHERE, EXPIRED, ORPHAN, Facts
from launch.state import IDLE, OVER, WATCHING, State
from launch.storage import storage
from launch.watch import Watch
from tests.launch.clouds import Cloud, Engine
from tests.launch.test_watch import LIMITS, events
from tests.launch.world import World, run, running

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def here(tmp_path):
  """A run of this machine."""
  folder = str(tmp_path / "run")
  return spec.checked(spec.Run("vit", "local", "train", (f"--workdir={folder}",), folder, processes=2, limits=LIMITS))


# G1.


def test_g1_time_in_the_queue_is_no_machine_time():
  world = World(run(max_hours=4), total=1000, queue=5.9 * HOUR).to_end()
  assert world.state.end[0] == errors.DONE and world.made == [1] and "expired" not in world.notes


def test_g1_the_clock_of_an_attempt_starts_when_it_is_ready():
  world = World(run(max_hours=4), total=10**9, queue=5 * HOUR).until(lambda w: w.state.ready > 0)
  assert world.state.expires == world.state.ready + 4 * HOUR
  world.to_end()
  assert world.state.end[0] == errors.GAVE_UP and 4 * HOUR <= world.state.used <= 4.1 * HOUR


def test_g1_what_waits_in_the_queue_has_not_expired():
  world = World(run(max_hours=4), queue=5.9 * HOUR).until(lambda w: w.state.look == engine.QUEUED)
  label, born = int(world.state.expires), world.now
  waiting = engine.Resource("vit-a1", "z", "vit", "alice", 1, engine.QUEUED, expires=label)
  for waited in (0, 4.5 * HOUR, 9.9 * HOUR):
    assert removal.judge(waiting, Facts(world.state, True, False, born + waited)) == ""
  assert removal.judge(waiting, Facts(world.state, True, False, born + 11 * HOUR)) == EXPIRED


def test_g1_workers_that_waited_have_their_whole_time(tmp_path):
  files = board.Board(storage(str(tmp_path)), 1)
  assert files.begin(5000.0) == 5000.0
  assert [files.begin(now) for now in (5000.0, 9000.0, 4000.0)] == [5000.0, 5000.0, 4000.0]
  files.storage.write("a1/began.json", b'{"began": "x"}')
  with pytest.raises(UnknownError):
    files.begin(1.0)


# G2.


def forged(book, **changes):
  """Writes a longer journal into the run's directory, as anybody who may write there can."""
  lines = [dict(event) for event in book.events]
  asked = dataclasses.replace(book.run, **changes).dumps()
  line = {**lines[-1], "event": "run", "run": asked, "sha": "e" * 64}
  storage(book.run.folder).write(journal.COPY, "".join(json.dumps(e) + "\n" for e in [*lines, line, line]).encode())


def begun(here):
  book = Journal("vit", storage(here.folder))
  book.append("run", State(), run=here.dumps(), sha="c" * 64)
  book.append("intent", State(attempt=1, try_=1, stage=WATCHING))
  book.append("created", State(attempt=1, try_=1, stage=WATCHING))
  return book


CHANGES = [{"module": "evil"}, {"args": ("--evil",)}, {"python": "/bin/evil"}, {"processes": 3}, {"env": {"A": "b"}}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_g2_a_longer_journal_of_the_bucket_decides_nothing_that_is_executed_here(here, change, capsys):
  forged(begun(here), **change)
  book = verbs.opened("vit")
  assert book.run == here and book.code == "c" * 64 and book.unconfirmed != here
  assert Journal("vit").run == here and len(Journal("vit").events) == 3
  with pytest.raises(LaunchError, match="not confirmed"):
    verbs.adopt(flags.parse(["adopt", "vit"])[0])
  said = capsys.readouterr().out
  assert "module" in change or "program" in said
  with Cloud() as cloud, Watch(book.run, book, Engine(here, cloud)) as made:
    with pytest.raises(LaunchError, match="another run than this machine started"):
      made.to_end()
    assert not cloud.made


def test_g2_a_run_that_only_the_bucket_describes_is_shown_and_confirmed(here, tmp_path, monkeypatch, capsys):
  begun(here)
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
  book = verbs.opened("vit", here.workdir)
  with pytest.raises(LaunchError, match="--yes"):
    verbs.confirmed(book)
  said = capsys.readouterr().out
  assert "backend   local" in said and "c" * 64 in said and "program   train --workdir=" in said
  assert not journal.names()
  assert verbs.confirmed(book, yes=True).unconfirmed is None and Journal("vit").run == here


def test_g2_another_machine_that_goes_on_with_the_same_run_needs_no_question(here):
  book = begun(here)
  other = Journal("vit", storage(here.folder))
  other.append("ready", State(attempt=1, try_=1, stage=WATCHING, ready=1.0))
  book.read()
  assert verbs.confirmed(book) is book and book.events[-1]["event"] == "ready"


# G3.


def test_g3_deadlines_follow_the_clock_of_the_runs_directory(here, monkeypatch, capsys):
  store = storage(here.folder)
  store.write("x", b"")
  before, true = store.clock.now(), time.time()
  monkeypatch.setattr(time, "time", lambda: true + DAY)
  assert abs(store.clock.now() - before) < 5
  with Cloud() as cloud, Watch(here, Journal("vit", storage(here.folder)), Engine(here, cloud)) as made:
    made.begin(None)
    assert made.to_end() == errors.DONE
  assert "this machine's clock differs by 86400 s" in capsys.readouterr().out
  assert all(abs(event["time"] - true) < 60 for event in Journal("vit").events)


def test_g3_nothing_expires_by_the_clock_of_a_laptop():
  resource = engine.Resource("vit-a1", "z", "vit", "alice", 1, engine.READY, expires=1000)
  live = State(attempt=1, stage=WATCHING)
  assert removal.judge(resource, Facts(live, True, False, 0.0)) == ""
  assert removal.judge(resource, Facts(live, True, False, 1001.0)) == EXPIRED


# G4.


def resource(attempt, state_=engine.READY, expires=0):
  return engine.Resource(f"vit-a{attempt}", "z", "vit", "alice", attempt, state_, detail="X", expires=expires)


@pytest.mark.parametrize(
  ("facts", "attempt", "state_", "flag"),
  [
    (None, 1, engine.LOST, ELSEWHERE),
    (Facts(State(1, stage=WATCHING), True, True, 9.0), 1, engine.READY, ""),
    (Facts(State(1, stage=WATCHING), True, True, 9.0), 1, engine.LOST, ""),  # who watches deletes it
    (Facts(State(1, stage=IDLE), True, True, 9.0), 2, engine.READY, ""),  # the next attempt, not yet in the journal
    (Facts(State(2, stage=WATCHING), True, True, 9.0), 1, engine.READY, ELSEWHERE),
    (Facts(State(1, stage=WATCHING), True, False, 9.0), 1, engine.READY, ""),  # its watcher was killed
    (Facts(State(1, stage=IDLE), True, False, 9.0), 2, engine.READY, ELSEWHERE),
    (Facts(State(1, stage=WATCHING), True, False, 9.0), 1, engine.LOST, "X"),
    (Facts(State(2, stage=WATCHING), True, False, 9.0), 1, engine.READY, ORPHAN),
    (Facts(State(2, stage=WATCHING), True, False, 9.0, settled=False), 1, engine.READY, ""),
    (Facts(State(1, stage=OVER, end=(0, "")), False, False, 9.0), 1, engine.READY, ORPHAN),
    (Facts(State(1, stage=OVER, end=(44, ""), kept=True), False, False, 9.0), 1, engine.READY, ""),
  ],
)
def test_g4_what_may_be_deleted_by_others_follows_from_journal_and_lease(facts, attempt, state_, flag):
  assert removal.judge(resource(attempt, state_), facts) == flag


def test_g4_gc_reads_journal_and_lease_again_before_a_removal(here, monkeypatch, capsys):
  book = begun(here)
  book.append("end", State(1, stage=OVER, end=(12, "x")), code=12, text="x")
  with Cloud() as cloud:
    cloud.states = {1: (engine.READY, 0.0)}
    monkeypatch.setattr(listing, "engine_of", lambda asked: Engine(asked, cloud))
    monkeypatch.setattr(spec, "owner", lambda: here.owner)
    found = listing._found

    def slow(*words):
      """Another machine goes on with the run after it was listed."""
      rows = found(*words)
      Journal("vit", storage(here.folder)).append("resumed", State(1, try_=2, stage=WATCHING))
      return rows

    monkeypatch.setattr(listing, "_found", slow)
    assert listing.gc(flags.parse(["gc", "--yes"])[0]) == errors.DONE
    assert "ORPHAN" in (said := capsys.readouterr().out) and "is not deleted" in said and cloud.live() == [1]
    monkeypatch.setattr(listing, "_found", found)
    lease = Lease(storage(here.folder), 60)
    lease.take()
    assert listing.gc(flags.parse(["gc", "--yes"])[0]) == errors.DONE and cloud.live() == [1]


def test_g4_without_an_answer_of_the_runs_directory_only_force_deletes(here, monkeypatch, capsys):
  book = begun(here)
  book.append("end", State(1, stage=OVER, end=(12, "x")), code=12, text="x")
  with Cloud() as cloud:
    cloud.states = {1: (engine.LOST, 0.0)}
    monkeypatch.setattr(listing, "engine_of", lambda asked: Engine(asked, cloud))
    monkeypatch.setattr(spec, "owner", lambda: here.owner)
    copy = storage(here.folder)._folder / journal.COPY
    copy.unlink(), copy.mkdir()
    assert listing.gc(flags.parse(["gc", "--yes"])[0]) == errors.DONE
    assert "--force deletes all the same" in capsys.readouterr().out and cloud.live() == [1]
    assert listing.gc(flags.parse(["gc", "--yes", "--force"])[0]) == errors.DONE and not cloud.live()


def test_g4_down_stops_where_another_takes_over(here):
  book, calls = begun(here), []
  with Cloud() as cloud:
    cloud.states = {1: (engine.READY, 0.0)}

    def before():
      calls.append(1)
      raise watch.Held("another", " now")

    with pytest.raises(watch.Held):
      removal.deleted(Engine(here, cloud), here, [1], book, lambda _: None, before)
    assert calls and cloud.live() == [1]


# G6, G12.


@pytest.mark.parametrize("form", ["folder", "pipe", "unreadable field", "garbage", "link to itself"])
def test_g6_g12_a_journal_of_another_form_hides_no_other_run(here, form, capsys):
  begun(here)
  path = journal.folder() / "odd.jsonl"
  if form == "folder":
    path.mkdir()
  elif form == "pipe":
    os.mkfifo(path)
  elif form == "link to itself":
    path.symlink_to(path)
  elif form == "garbage":
    path.write_bytes(b"\xff{[\n" * 9)
  else:
    odd = dataclasses.replace(here, name="odd", workdir=f"{here.workdir}-odd", args=())
    book = Journal("odd")
    book.append("run", State(), run=odd.dumps())
    book.append("intent", State(attempt=1, stage=WATCHING))
    path.write_text(path.read_text().replace('"attempt": 1, "try_"', '"attempt": "1", "try_"'))
  assert listing.ls(flags.parse(["ls"])[0]) in (errors.DONE, errors.UNKNOWN)
  said = capsys.readouterr()
  assert "vit-a1" in said.out and ("odd" in said.out + said.err or form == "garbage")


def test_g12_down_deletes_what_an_unreadable_journal_names(here, monkeypatch, capsys):
  begun(here)
  for path in (journal.folder() / "vit.jsonl", storage(here.folder)._folder / journal.COPY):
    path.write_text(path.read_text().replace('"attempt": 1, "try_"', '"attempt": "1", "try_"'))
  with Cloud() as cloud:
    cloud.states = {1: (engine.READY, 0.0)}
    monkeypatch.setattr(verbs, "engine_of", lambda asked: Engine(asked, cloud))
    assert verbs.down(flags.parse(["down", "vit", "--yes"])[0]) == errors.DONE and not cloud.live()
  assert "launch down vit" in capsys.readouterr().out


def test_g6_every_exit_of_a_watcher_names_what_goes_on(here, capsys):
  class Broken(Engine):
    def look(self, attempt):
      raise ZeroDivisionError

  with Cloud() as cloud, Watch(here, Journal("vit", storage(here.folder)), Broken(here, cloud)) as made:
    made.begin(None)
    with pytest.raises(ZeroDivisionError):
      verbs._watched(made, here)
  assert cloud.made == [1] and "left alone: vit-a1 goes on" in capsys.readouterr().out


# G8.


def test_g8_absence_within_the_grace_after_an_answered_request_makes_no_second_attempt():
  world = World(run())
  world.step()
  hidden, world.machines = world.machines, {}
  world.state = dataclasses.replace(world.state, answered=world.now)
  for _ in range(3):
    world.step()
  assert len(world.asked["create"]) == 1
  world.machines = hidden
  assert world.to_end().state.end[0] == errors.DONE and world.made == [1]


def test_g8_one_answer_that_a_running_attempt_is_absent_changes_nothing():
  world = World(run(), total=3000).until(running)
  for _ in range(3):
    hidden, world.machines = world.machines, {}
    world.unreadable = {1}
    world.step()
    world.machines, world.unreadable = hidden, set()
    world.step()
  assert world.state.stage == WATCHING and world.to_end().made == [1]


def test_g8_what_was_accepted_a_moment_ago_is_not_settled():
  asked = run()
  book = Journal("vit")
  book.append("run", State(), run=asked.dumps())
  book.append("intent", State(attempt=1, stage=WATCHING))
  book.append("created", State(attempt=1, stage=WATCHING))
  assert not book.settled(1) and 50 < book.appears(1) <= 60 and not Journal("vit").settled(1)
  book.appeared(1)
  assert book.settled(1)


# G9 and interruptions.


@pytest.mark.parametrize("moment", ["before", "after"])
def test_g9_an_interruption_of_a_request_leaves_the_intent(here, moment, capsys):
  class Interrupted(Engine):
    def create(self, attempt, expires):
      if moment == "after":
        super().create(attempt, expires)
      raise KeyboardInterrupt

  with Cloud() as cloud:
    book = Journal("vit", storage(here.folder))
    with Watch(here, book, Interrupted(here, cloud)) as made:
      made.begin(None)
      assert verbs._watched(made, here) == errors.DETACHED
    assert events(here) == ["run", "intent"] and Journal("vit").state.attempt == 1
    assert "left alone: vit-a1 goes on" in capsys.readouterr().out
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Watch(here, Journal("vit", storage(here.folder)), Engine(here, cloud)) as made:
      assert made.state.attempt == 1 and made.to_end() == errors.DONE
    assert cloud.made == [1] and cloud.most == 1


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_with_a_line(number, tmp_path):
  code = "import os, sys, time; from launch import __main__ as m; "
  code += "m.main = lambda words: (os.kill(os.getpid(), int(words[0])), time.sleep(9)); sys.exit(m.program())"
  result = subprocess.run([sys.executable, "-c", code, str(int(number))], capture_output=True, text=True, timeout=30)
  assert result.returncode == errors.INTERRUPTED and result.stderr == "interrupted\n"


# G10.


@pytest.mark.parametrize("word", [engine.REPAIRING, engine.LOST, engine.STARTING, engine.DELETING])
def test_g10_workers_that_report_progress_outweigh_the_health_of_their_machines(word):
  world = World(run(), total=6000).until(running)
  world.tick_state = world.machines[1].state
  real = world.seen

  def seen():
    found = real()
    return dataclasses.replace(found, look=engine.Look(word, "UNHEALTHY") if running(world) else found.look)

  world.seen = seen
  assert world.to_end().state.end[0] == errors.DONE and world.made == [1]


def test_g10_machines_that_are_lost_and_silent_are_replaced_within_a_minute():
  world = World(run(), total=3000).until(running)
  before = world.now
  world.preempt(False)
  world.until(lambda w: w.state.stage != WATCHING)
  assert world.now - before <= 75


# G11.


@pytest.mark.parametrize("times", [3, 40])
def test_g11_a_quota_that_is_still_held_after_a_preemption_is_waited_for(times):
  world = World(run(), total=3000).until(running)
  world.preempt(True)
  act, refused = world.act, []

  def refusing(action, state_):
    if action.verb == "create" and len(refused) < times:
      refused.append(1)
      raise QuotaError("Quota limit 'TPUV3' has been exceeded")
    act(action, state_)

  world.act = refusing
  assert world.to_end().state.end[0] == errors.DONE and world.made == [1, 2] and len(refused) == times


def test_g11_a_quota_that_the_first_attempt_does_not_get_ends_the_run():
  world = World(run())
  world.refusal = QuotaError("Quota limit 'TPUV3' has been exceeded")
  world.step()
  world.refusal = QuotaError("Quota limit 'TPUV3' has been exceeded")
  assert world.to_end().state.end[0] == errors.DENIED


# Money.


def test_a_run_ends_before_it_exceeds_its_cost():
  asked = run(max_hours=100, max_cost=80.0, price=2.0)  # 16 chips: 2.5 hours
  world = World(asked, total=10**9)
  while world.state.stage != OVER:
    world.step()
    if running(world) and world.state.ready and world.now - world.state.ready > 1300:
      world.preempt(True)
  hours = world.state.used / HOUR
  assert world.state.end[0] == errors.GAVE_UP and "--max-cost=80" in world.state.end[1]
  assert 75.0 < hours * asked.chips * asked.price <= 80.0 and len(world.made) > 3


def test_a_cost_without_a_price_is_refused():
  with pytest.raises(LaunchError, match=r"--max-cost.*--price"):
    run(max_cost=5.0)
  assert listing.chip_hours(run(), state.State(used=HOUR), 0.0) == 16.0
