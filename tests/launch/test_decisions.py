"""Tests of decisions about a run, in a simulated world with its own clock."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import errors, mailbox, spec, states
from launch.states import OVER
from tests.launch.world import World, run, running


def check_end(world):
  """Checks that no machines are left, and returns the exit code of the run."""
  assert not world.live() and world.most <= 1
  return world.state.end[0]


def test_run_without_faults_is_created_once_and_deleted():
  world = World(run()).watch_to_end()
  assert check_end(world) == errors.DONE and world.made == [1] and world.saved == 90 and not world.machines


def test_run_without_capacity_ends_with_its_own_code():
  world = World(run(), queue=1e9).watch_to_end()
  assert check_end(world) == errors.NO_CAPACITY and world.made == [1]
  assert run().limits.queue <= world.now - 1e9 < run().limits.queue + 200


def test_each_of_several_zones_is_tried_once():
  world = World(run(zones=("us-central1-a", "europe-west4-a")), queue=1e9).watch_to_end()
  assert check_end(world) == errors.NO_CAPACITY and world.made == [1, 2]


def test_lost_response_does_not_create_a_second_machine():
  world = World(run())
  world.create_lost = 3
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1]


def test_cloud_without_responses_does_not_change_the_run():
  world = World(run()).until(running)
  world.look_fails = 2000
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1]


def test_workers_without_a_report_are_named_and_replaced():
  world = World(run(), boot=1e9)
  world.until(lambda w: len(w.made) == 2)
  assert "w00, w01, w02, w03: no report within" in world.output[1]
  world.boot = 0.0
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1, 2]


@pytest.mark.parametrize("notice", [True, False])
def test_preemption_does_not_count_as_a_failure(notice):
  world = World(run(max_failures=1), total=2000)
  for number in range(1, 6):
    world.until(lambda w, number=number: len(w.made) == number and running(w))
    world.until(lambda w, number=number: w.saved >= 60 * number)
    world.preempt(notice)
    world.step()
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1, 2, 3, 4, 5, 6]
  assert world.state.failures == 0


def test_pauses_between_attempts_without_progress_grow_to_a_limit():
  world, pauses = World(run(max_hours=500), total=10**9, boot=1e9), []
  for _ in range(8):
    world.until(lambda w: w.state.look == states.READY)
    world.preempt(False)
    before = world.now
    world.until(lambda w: w.state.look == states.QUEUED)
    pauses.append(world.now - before)
  assert pauses == sorted(pauses) and pauses[-1] < 30 * 30 + 120 and pauses[4] > 4 * 30


def test_unreachable_host_is_restarted_in_place():
  world = World(run(), total=3000).until(running)
  world.silent = {2}
  world.until(lambda w: w.state.try_ == 2)
  assert "no report of w02" in world.output[-1] and world.made == [1]
  world.silent = set()
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1]


def test_second_hang_on_the_same_machines_replaces_them():
  world = World(run(), crash={3: (43, 20)}, every=1, total=1000)
  world.until(lambda w: w.state.try_ == 2 or len(w.made) > 1)
  assert world.made == [1] and "w03 (h3) ended with 43" in world.output[-1]
  world.crash = {3: (43, 60)}
  world.until(lambda w: len(w.made) == 2)
  world.crash = {}
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1, 2]


@pytest.mark.parametrize("code", [1, 42, 130])
def test_crash_loop_ends_after_three_tries_and_names_its_first_cause(code):
  world = World(run(), crash={1: (code, 5)}).watch_to_end()
  assert check_end(world) == errors.GAVE_UP and world.made == [1]
  assert (
    "3 tries without a new checkpoint" in world.state.end[1] and f"w01 (h1) ended with {code}" in world.state.end[1]
  )


def test_new_checkpoints_reset_the_count_of_failures():
  world = World(run(), total=3000)
  for step in range(100, 900, 100):
    world.crash = {0: (1, step)}
    world.until(lambda w, step=step: w.saved >= step - 40 and not running(w))
  world.crash = {}
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1]


@pytest.mark.parametrize("code", [2, 44, 45])
def test_permanent_failure_is_not_tried_again(code):
  world = World(run(), crash={2: (code, 30)}).watch_to_end()
  assert check_end(world) == code and world.made == [1] and world.state.try_ == 1


def test_machines_are_kept_after_a_failure_on_request():
  world = World(run(keep_on_fail=True), crash={2: (44, 30)}).watch_to_end()
  assert world.state.end[0] == 44 and world.live() == [1] and world.state.unverified == (1,) and world.state.kept


def test_ignored_deletions_end_the_run():
  world = World(run(), total=3000).until(running)
  world.preempt(False)
  world.delete_ignored = 10**6
  world.watch_to_end()
  assert world.state.end[0] == errors.BILLING and world.made == [1] and world.state.unverified == (1,)


def test_failing_deletions_end_the_run():
  world = World(run(), total=3000).until(running)
  world.preempt(False)
  world.delete_fails = 10**6
  world.watch_to_end()
  assert world.state.end[0] == errors.BILLING and world.made == [1] and world.state.unverified == (1,)


def test_failing_requests_end_the_run_at_the_queue_limit():
  world = World(run())
  world.create_fails = 10**6
  assert check_end(world.watch_to_end()) == errors.NO_CAPACITY and world.made == []


def test_slow_deletion_is_reported_at_the_end():
  world = World(run(), total=3000, removal=10**6).until(running)
  world.preempt(False)
  world.watch_to_end()
  assert world.state.end[0] == errors.DONE and world.made == [1, 2] and world.most == 1
  assert world.state.unverified == (1, 2)


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_pauses_between_failing_requests_grow(verb):
  world = World(run(limits=spec.Limits(delete=7200.0)))
  setattr(world, f"{verb}_fails", 10**6)
  pauses = np.diff(world.watch_to_end().asked[verb])
  assert (pauses[:4] == [15, 30, 60, 120]).all() and (pauses[5:] == 300).all() and len(pauses) > 20


def test_repeated_request_succeeds_once_the_cloud_responds():
  world = World(run())
  world.create_fails = 4
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1] and world.asked["create"][-1] - 1e9 == 225


def test_repaired_node_continues_and_other_nodes_are_replaced():
  world = World(run(), total=3000).until(running)
  world.machines[1].state = states.REPAIRING
  rows = world.reports[1]
  for worker, (report, at) in rows.items():
    changes = {"try_": 2, "phase": mailbox.READY} if worker == 3 else {"phase": mailbox.EXITED, "exit": 134}
    rows[worker] = (dataclasses.replace(report, **changes), at)
  for _ in range(60):
    world.step()
  assert world.state.try_ == 1
  world.machines[1].state = states.READY
  world.until(lambda w: w.state.try_ > 1)
  assert world.made == [1] and world.state.failures == 0
  world.until(running)
  world.machines[1].state, world.silent = states.REPAIRING, {3}
  world.until(lambda w: len(w.made) == 2)
  world.silent = set()
  assert check_end(world.watch_to_end()) == errors.DONE and world.made == [1, 2]


def test_stopped_run_keeps_its_machines_and_ends():
  world = World(run(), total=3000).until(running)
  world.orders[1] = mailbox.Order(1, stop=True)
  world.watch_to_end()
  assert world.state.end[0] == errors.DETACHED and world.live() == [1] and world.state.kept


def test_stopped_jobset_does_not_keep_machines():
  jobset = {"backend": "gke", "image": f"host/p/r/vit@sha256:{'0' * 64}", "project": "", "zones": ()}
  world = World(run(**jobset), total=3000)
  for _ in range(20):
    world.step()
  world.orders[1] = mailbox.Order(1, stop=True)
  world.watch_to_end()
  assert check_end(world) == errors.DETACHED and not world.machines


def test_hours_of_all_attempts_are_added():
  world = World(run(max_hours=1.0), total=10**9)
  while world.state.stage != OVER:
    world.step()
    if running(world) and world.state.ready and world.now - world.state.ready > 1300:
      world.preempt(True)
  assert (
    check_end(world) == errors.GAVE_UP and "--max-hours=1 are used up" in world.state.end[1] and len(world.made) == 3
  )


def test_worker_with_an_unreadable_report_is_treated_as_silent():
  world = World(run(), total=10**6).until(running)
  before = world.now
  world.hidden = {3}
  world.until(lambda w: w.state.try_ == 2)
  assert "no report of w03" in world.output[-1] and 180 <= world.now - before < 240 and world.made == [1]


def test_refusal_of_the_cloud_ends_the_run_with_its_message():
  world = World(run())
  world.step()
  world.machines[1].state, world.machines[1].detail = states.FAILED, "Quota 'TPUV3' exceeded"
  world.machines[1].code = errors.DENIED
  assert check_end(world.watch_to_end()) == errors.DENIED and "Quota" in world.state.end[1]


FAULTS = ("look_fails", "create_fails", "create_lost", "delete_fails", "delete_ignored")
EVENTS = st.one_of(
  st.tuples(st.just("wait"), st.integers(1, 40)),
  st.tuples(st.sampled_from(FAULTS), st.integers(1, 90)),
  st.tuples(st.just("preempt"), st.booleans()),
  st.tuples(st.just("crash"), st.sampled_from([1, 2, 42, 43, 44, 45, 134, 137, 143])),
  st.tuples(st.just("silent"), st.sets(st.integers(0, 3))),
  st.tuples(st.just("state"), st.sampled_from([s for s in states.STATES if s not in (states.ABSENT, states.DELETING)])),
  st.tuples(st.just("gone"), st.just(0)),
  st.tuples(st.just("removal"), st.sampled_from([0, 30, 2000, 10**6])),
  st.tuples(st.just("queue"), st.sampled_from([0, 600, 10**6])),
  st.tuples(
    st.just("order"), st.sampled_from([mailbox.Order(9), mailbox.Order(1, stop=True), mailbox.Order(1, fresh=True)])
  ),
)


def cause(world, event, value):
  """Causes an event."""
  if event == "wait":
    for _ in range(value):
      world.step()
  elif event in FAULTS:
    setattr(world, event, value)
  elif event == "preempt":
    world.preempt(value)
  elif event == "crash":
    world.crash = {value % 4: (value, world.saved + 5)}
  elif event == "state":
    for attempt in world.live():
      world.machines[attempt].state = value
  elif event == "gone":
    world.machines.clear()
  elif event == "order":
    world.orders[world.state.attempt] = value
  else:
    setattr(world, event, value)
  world.step()


@given(st.lists(EVENTS, max_size=25), st.booleans())
def test_all_machines_are_deleted_or_named_and_two_are_never_alive(events, keep):
  world = World(run(zones=("us-central1-a", "europe-west4-a"), keep_on_fail=keep, max_hours=60), total=2000)
  for event in events:
    cause(world, *event)
  world.crash, world.silent = {}, set()
  world.watch_to_end()
  assert world.most <= 1
  assert set(world.machines) <= set(world.state.unverified)
  assert world.live() == ([world.state.attempt] if world.state.kept and world.live() else []) or (
    world.state.end[0] in (errors.BILLING, *errors.EXITS, 2, 44, 45)
  )
  assert world.state.end is not None and {*world.made} <= {*range(1, world.state.attempt + 1)}
