"""Single decisions, which the scenarios of test_decisions.py reach only by chance."""

import dataclasses

import pytest

from launch import decisions, errors, mailbox, states
from launch.states import IDLE, WATCHING, Observation, State
from tests.launch.world import run

NOW = 1e9
LIVE = State(attempt=1, try_=1, stage=WATCHING, since=NOW - 500, look=states.READY, look_since=NOW - 400, seen=True,
             ready=NOW - 400, exists=NOW - 400, answered=NOW - 490, starting=NOW - 400, expires=NOW + 9000)  # fmt: skip
GOING = dataclasses.replace(LIVE, stage=states.DELETING, since=NOW - 60, retry=NOW - 1, end=(0, "done"))


def look(state, word, detail="", **words):
  """The decision about a look at the machines."""
  return decisions.decide(run(), state, Observation(NOW, states.MachineStatus(word, detail), **words))


def reports(*ages, phase=mailbox.RUNNING):
  return {w: (mailbox.WorkerReport(w, 1, phase, clock=NOW), age) for w, age in enumerate(ages)}


def test_one_answer_that_a_deleted_attempt_is_absent_is_not_believed():
  state, actions = look(GOING, states.ABSENT)
  assert state.stage == states.DELETING and not actions
  state, actions = look(state, states.ABSENT)
  assert state.stage == IDLE and [action.event for action in actions] == ["deleted"]
  state, _ = look(look(look(GOING, states.ABSENT)[0], states.DELETING)[0], states.ABSENT)
  assert state.stage == states.DELETING  # the answers must follow each other


@pytest.mark.parametrize(("ages", "believed"), [((1, 1, 1, 1), False), ((1, 1, 1), True), ((1, 1, 1, 900), True)])
def test_only_fresh_reports_of_all_workers_outweigh_the_health_of_the_machines(ages, believed):
  state, _ = look(LIVE, states.LOST, reports=reports(*ages))
  assert (state.stage == states.DELETING) == believed


@pytest.mark.parametrize(("clock", "expired"), [(NOW + 9500, False), (0.0, True), (NOW - 9500, False)])
def test_a_limit_has_passed_only_by_the_services_time_and_by_another_clock(clock, expired):
  now = NOW + (0 if clock > NOW else 9500)
  state = dataclasses.replace(LIVE, look_since=now - 10)
  state, _ = decisions.decide(run(), state, Observation(now, states.MachineStatus(states.READY), clock=clock))
  assert (state.stage == states.DELETING) == expired


def test_seconds_of_an_attempt_count_after_it_is_gone():
  state = dataclasses.replace(GOING, used=100.0, absent=5)
  assert look(state, states.ABSENT)[0].used == 500.0


def test_a_deletion_without_an_answer_is_requested_again():
  assert [action.verb for action in look(GOING, states.READY)[1]] == ["delete"]
  assert not look(dataclasses.replace(GOING, retry=NOW + 1), states.READY)[1]


def test_a_laptop_that_slept_gives_no_deletion_up():
  state = dataclasses.replace(GOING, since=NOW - 5000)
  assert look(state, states.READY)[0].stage == states.DELETING
  state, actions = look(dataclasses.replace(state, deletion_polls=9), states.READY)
  assert state.stage == IDLE and state.unverified == (1,) and actions[0].event == "unverified"


def test_no_attempt_is_created_beside_one_that_could_not_be_deleted():
  state = dataclasses.replace(GOING, since=NOW - 5000, deletion_polls=9, end=None)
  assert look(state, states.READY)[0].end[0] == errors.BILLING
  assert look(state, states.DELETING)[0].end is None


def test_an_order_to_stop_ends_a_run_whose_machines_are_lost():
  state, _ = look(LIVE, states.LOST, order=mailbox.Order(1, stop=True))
  assert state.end[0] == errors.DETACHED and state.stage == states.DELETING


def test_quota_is_waited_for_after_a_preemption_and_an_end_before():
  refusal = errors.QuotaError("quota")
  state = dataclasses.replace(LIVE, attempt=2, ready=0.0, seen=False)
  assert look(state, states.ABSENT, refusal=refusal)[0].end is None
  assert look(dataclasses.replace(state, attempt=1), states.ABSENT, refusal=refusal)[0].end[0] == errors.DENIED
  assert look(dataclasses.replace(state, since=NOW - 1e5), states.ABSENT, refusal=refusal)[0].end[0] == errors.DENIED


def test_machine_time_starts_when_the_first_worker_starts():
  rows = {w: (dataclasses.replace(report, started=NOW - 450), 1.0) for w, (report, _) in reports(1, 1, 1, 1).items()}
  state, _ = look(LIVE, states.READY, reports=rows)
  assert state.ready == NOW - 450 and state.expires == NOW - 450 + run().seconds
  earlier = {w: (dataclasses.replace(report, started=NOW - 900), 1.0) for w, (report, _) in rows.items()}
  assert look(LIVE, states.READY, reports=earlier)[0].ready == LIVE.ready  # of a run before this attempt


def test_last_reports_of_lost_machines_are_no_failure():
  rows = {w: (mailbox.WorkerReport(w, 1, mailbox.EXITED, exit=1), 1.0) for w in range(4)}
  state, _ = look(dataclasses.replace(LIVE, trouble=NOW - 300), states.LOST, reports=rows)
  assert state.failures == 0 and state.lost == 1
  state, _ = look(dataclasses.replace(LIVE, trouble=NOW - 300), states.READY, reports=rows)
  assert state.failures == 1 and state.lost == 0


@pytest.mark.parametrize(("starts", "left"), [((50, 50, 50, 50), 2), ((51, 50, 51, 51), 2), ((51, 51, 51, 60), 0)])
def test_only_a_later_start_of_all_workers_restores_the_budget(starts, left):
  rows = {w: (dataclasses.replace(report, began=starts[w]), 1.0) for w, (report, _) in reports(1, 1, 1, 1).items()}
  state = dataclasses.replace(LIVE, best_start=50, failures=2, lost=3)
  assert look(state, states.READY, reports=rows)[0].failures == left


def test_workers_may_restart_twice_by_themselves():
  rows = {w: (dataclasses.replace(report, try_=2), age) for w, (report, age) in reports(1, 1, 1, 1).items()}
  state, actions = look(LIVE, states.READY, reports=rows)
  assert state.worker_restarts == 1 and state.failures == 0 and actions[0].order == mailbox.Order(2)
  assert look(dataclasses.replace(LIVE, worker_restarts=2), states.READY, reports=rows)[0].failures == 1


def test_times_in_the_future_are_those_of_a_clock_that_was_set_back():
  later = dict.fromkeys(("since", "look_since", "starting", "ready", "answered", "trouble"), NOW + 50000.0)
  state, _ = look(dataclasses.replace(LIVE, **later, expires=NOW + 1e6), states.READY)
  assert all(getattr(state, key) <= NOW for key in later) and state.expires <= NOW + run().seconds


def test_an_order_that_was_carried_out_changes_nothing():
  state = dataclasses.replace(LIVE, trouble=NOW - 5, start_known=True)
  assert look(state, states.READY, order=mailbox.Order(1))[0].starting == LIVE.starting
  assert look(state, states.READY, order=mailbox.Order(2))[0].starting == NOW


def test_one_answer_that_a_live_attempt_is_absent_is_not_believed():
  state, actions = look(LIVE, states.ABSENT)
  assert state.stage == WATCHING and not actions
  assert look(state, states.ABSENT)[0].stage == states.DELETING


@pytest.mark.parametrize(("answered", "verbs"), [(NOW - 10, []), (NOW - 100, ["create"]), (0.0, ["create"])])
def test_absence_shortly_after_an_answered_request_makes_no_second_request(answered, verbs):
  state = dataclasses.replace(LIVE, answered=answered, seen=False, ready=0.0, retry=0.0)
  assert [action.verb for action in look(state, states.ABSENT)[1]] == verbs
