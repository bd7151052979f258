"""Tests of former defects of the launcher: unreadable event logs, absence, interruptions, health, quota and cost."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from launch import commands, errors, event_log, flags, listing, spec, states
from launch.errors import LaunchError, QuotaError
from launch.event_log import EventLog
from launch.states import OVER, WATCHING, State
from launch.storage import open_storage
from launch.watch import Watcher
from tests.launch.clouds import Cloud, Engine
from tests.launch.test_watch import LIMITS, events
from tests.launch.world import World, run, running

HOUR = 3600.0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.fixture
def here(tmp_path):
  """A run on this machine."""
  folder = str(tmp_path / "run")
  return spec.check_and_complete(
    spec.Run("vit", "local", "train", (f"--workdir={folder}",), folder, processes=2, limits=LIMITS)
  )


def begin_run(here):
  book = EventLog("vit", open_storage(here.folder))
  book.append("run", State(), run=here.dumps(), sha="c" * 64)
  book.append("intent", State(attempt=1, try_=1, stage=WATCHING))
  book.append("created", State(attempt=1, try_=1, stage=WATCHING))
  return book


# Unreadable event logs.


@pytest.mark.parametrize("form", ["folder", "pipe", "unreadable field", "garbage", "link to itself"])
def test_event_log_in_another_form_does_not_hide_other_runs(here, form, capsys):
  begin_run(here)
  path = event_log.get_log_directory() / "odd.jsonl"
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
    book = EventLog("odd")
    book.append("run", State(), run=odd.dumps())
    book.append("intent", State(attempt=1, stage=WATCHING))
    path.write_text(path.read_text().replace('"attempt": 1, "try_"', '"attempt": "1", "try_"'))
  assert listing.ls(flags.parse_flags(["ls"])[0]) in (errors.DONE, errors.UNKNOWN)
  output = capsys.readouterr()
  assert "vit-a1" in output.out and ("odd" in output.out + output.err or form == "garbage")


def test_down_deletes_machines_named_in_an_unreadable_event_log(here, monkeypatch, capsys):
  begin_run(here)
  for path in (event_log.get_log_directory() / "vit.jsonl", open_storage(here.folder)._folder / event_log.COPY):
    path.write_text(path.read_text().replace('"attempt": 1, "try_"', '"attempt": "1", "try_"'))
  with Cloud() as cloud:
    cloud.states = {1: (states.READY, 0.0)}
    monkeypatch.setattr(commands, "make_engine", lambda asked: Engine(asked, cloud))
    assert commands.down(flags.parse_flags(["down", "vit", "--yes"])[0]) == errors.DONE and not cloud.live()
  assert "launch down vit" in capsys.readouterr().out


def test_every_exit_of_a_watcher_names_continuing_machines(here, capsys):
  class Broken(Engine):
    def look(self, attempt):
      raise ZeroDivisionError

  with Cloud() as cloud, Watcher(here, EventLog("vit", open_storage(here.folder)), Broken(here, cloud)) as made:
    made.begin(None)
    with pytest.raises(ZeroDivisionError):
      commands.watch_to_end(made, here)
  assert cloud.made == [1] and "no longer watched: vit-a1 continues" in capsys.readouterr().out


# Absence.


def test_absence_soon_after_a_request_creates_no_second_attempt():
  world = World(run())
  world.step()
  hidden, world.machines = world.machines, {}
  world.state = dataclasses.replace(world.state, answered=world.now)
  for _ in range(3):
    world.step()
  assert len(world.asked["create"]) == 1
  world.machines = hidden
  assert world.watch_to_end().state.end[0] == errors.DONE and world.made == [1]


def test_single_absence_of_a_running_attempt_is_ignored():
  world = World(run(), total=3000).until(running)
  for _ in range(3):
    hidden, world.machines = world.machines, {}
    world.unreadable = {1}
    world.step()
    world.machines, world.unreadable = hidden, set()
    world.step()
  assert world.state.stage == WATCHING and world.watch_to_end().made == [1]


def test_recently_accepted_attempt_is_not_settled():
  asked = run()
  book = EventLog("vit")
  book.append("run", State(), run=asked.dumps())
  book.append("intent", State(attempt=1, stage=WATCHING))
  book.append("created", State(attempt=1, stage=WATCHING))
  assert 50 < book.get_settling_seconds(1) <= 60 and EventLog("vit").get_settling_seconds(1)
  book.record_appearance(1)
  assert not book.get_settling_seconds(1)


# Interruptions.


@pytest.mark.parametrize("moment", ["before", "after"])
def test_interrupted_request_leaves_its_intent(here, moment, monkeypatch, capsys):
  monkeypatch.setattr(event_log, "IN_FLIGHT", 1.0)  # the second watcher waits so long for the request

  class Interrupted(Engine):
    def create(self, attempt, expires):
      if moment == "after":
        super().create(attempt, expires)
      raise KeyboardInterrupt

  with Cloud() as cloud:
    book = EventLog("vit", open_storage(here.folder))
    with Watcher(here, book, Interrupted(here, cloud)) as made:
      made.begin(None)
      assert commands.watch_to_end(made, here) == errors.DETACHED
    assert events(here) == ["run", "intent"] and EventLog("vit").state.attempt == 1
    assert "no longer watched: vit-a1 continues" in capsys.readouterr().out
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Watcher(here, EventLog("vit", open_storage(here.folder)), Engine(here, cloud)) as made:
      assert made.state.attempt == 1 and made.watch_to_end() == errors.DONE
    assert cloud.made == [1] and cloud.most == 1


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_with_one_line(number, tmp_path):
  code = "import os, sys, time; from launch import __main__ as m; "
  code += "m.main = lambda words: (os.kill(os.getpid(), int(words[0])), time.sleep(9)); sys.exit(m.run_command_line())"
  result = subprocess.run([sys.executable, "-c", code, str(int(number))], capture_output=True, text=True, timeout=30)
  assert result.returncode == errors.INTERRUPTED and result.stderr == "interrupted\n"


# Health.


@pytest.mark.parametrize("word", [states.REPAIRING, states.LOST, states.STARTING, states.DELETING])
def test_progress_reports_outweigh_bad_health_of_machines(word):
  world = World(run(), total=6000).until(running)
  world.tick_state = world.machines[1].state
  real = world.observe

  def observe():
    found = real()
    return dataclasses.replace(found, look=states.MachineStatus(word, "UNHEALTHY") if running(world) else found.look)

  world.observe = observe
  assert world.watch_to_end().state.end[0] == errors.DONE and world.made == [1]


def test_lost_and_silent_machines_are_replaced_within_90_seconds():
  world = World(run(), total=3000).until(running)
  before = world.now
  world.preempt(False)
  world.until(lambda w: w.state.stage != WATCHING)
  assert world.now - before <= 90


# Quota.


@pytest.mark.parametrize("times", [3, 40])
def test_quota_still_in_use_after_a_preemption_is_waited_for(times):
  world = World(run(), total=3000).until(running)
  world.preempt(True)
  act, refused = world.act, []

  def refusing(action, state_):
    if action.verb == "create" and len(refused) < times:
      refused.append(1)
      raise QuotaError("Quota limit 'TPUV3' has been exceeded")
    act(action, state_)

  world.act = refusing
  assert world.watch_to_end().state.end[0] == errors.DONE and world.made == [1, 2] and len(refused) == times


def test_missing_quota_for_the_first_attempt_ends_the_run():
  world = World(run())
  world.refusal = QuotaError("Quota limit 'TPUV3' has been exceeded")
  world.step()
  world.refusal = QuotaError("Quota limit 'TPUV3' has been exceeded")
  assert world.watch_to_end().state.end[0] == errors.DENIED


# Cost.


def test_run_ends_before_it_exceeds_its_cost():
  asked = run(max_hours=100, max_cost=80.0, price=2.0)  # 16 chips for 2.5 hours, with 1140 s reserved for a deletion
  world = World(asked, total=10**9)
  while world.state.stage != OVER:
    world.step()
    if running(world) and world.state.ready and world.now - world.state.ready > 1300:
      world.preempt(True)
  hours = world.state.used / HOUR
  assert world.state.end[0] == errors.GAVE_UP and "--max-cost=80" in world.state.end[1]
  assert 68.0 < hours * asked.chips * asked.price <= 72.0 and len(world.made) > 3


def test_cost_limit_without_a_price_is_refused():
  with pytest.raises(LaunchError, match=r"--max-cost.*--price"):
    run(max_cost=5.0)
  assert listing.compute_chip_hours(run(), states.State(used=HOUR), 0.0) == 16.0
