"""Tests of single decisions, which the scenarios of test_decisions.py reach only by chance."""

import dataclasses
import itertools

import pytest

from launch import decisions, errors, mailbox, states
from launch.states import IDLE, WATCHING, Observation, State
from tests.launch.world import run

NOW = 1e9
LIVE = State(attempt=1, try_=1, stage=WATCHING, since=NOW - 500, look=states.READY, look_since=NOW - 400, seen=True,
             ready=NOW - 400, exists=NOW - 400, answered=NOW - 490, starting=NOW - 400, expires=NOW + 9000)  # fmt: skip
LOST = dataclasses.replace(LIVE, look=states.LOST, gone_since=NOW - 15)  # seen lost once
GOING = dataclasses.replace(LIVE, stage=states.DELETING, since=NOW - 60, retry=NOW - 1, end=(0, "done"))


def decide(state, word, detail="", **words):
  """Returns the decision about a status of the machines."""
  return decisions.decide(run(), state, Observation(NOW, states.MachineStatus(word, detail), **words))


def make_reports(*ages, phase=mailbox.RUNNING):
  return {w: (mailbox.WorkerReport(w, 1, phase, clock=NOW), age) for w, age in enumerate(ages)}


def test_single_absence_of_a_deleted_attempt_is_ignored():
  state, actions = decide(GOING, states.ABSENT)
  assert state.stage == states.DELETING and not actions
  state, actions = decide(state, states.ABSENT)
  assert state.stage == IDLE and [action.event for action in actions] == ["deleted"]
  state, _ = decide(decide(decide(GOING, states.ABSENT)[0], states.DELETING)[0], states.ABSENT)
  assert state.stage == states.DELETING  # the absences must be consecutive


@pytest.mark.parametrize(("ages", "believed"), [((1, 1, 1, 1), False), ((1, 1, 1), True), ((1, 1, 1, 900), True)])
def test_only_fresh_reports_of_all_workers_outweigh_bad_health(ages, believed):
  state, _ = decide(LOST, states.LOST, reports=make_reports(*ages))
  assert (state.stage == states.DELETING) == believed


@pytest.mark.parametrize("word", states.GONE)
@pytest.mark.parametrize("reports", [None, {}, make_reports(900, 900, 900, 900)])
def test_a_single_answer_that_machines_are_gone_is_ignored(word, reports):
  state, actions = decide(LIVE, word, reports=reports)
  assert state.stage == WATCHING and not actions
  state, _ = decide(state, states.READY, reports=reports)
  assert state.stage == WATCHING and state.look == states.READY
  later = Observation(NOW + 5000, states.MachineStatus(word), reports)  # again the only answer
  assert decisions.decide(run(), state, later)[0].stage == WATCHING


def test_two_false_answers_with_healthy_reports_between_them_are_ignored():
  state, _ = decide(LIVE, states.LOST)
  healthy = Observation(NOW + 300, None, make_reports(1, 1, 1, 1))
  state, _ = decisions.decide(run(), state, healthy)
  state, _ = decisions.decide(run(), state, Observation(NOW + 600, states.MachineStatus(states.LOST)))
  assert state.stage == WATCHING


def test_two_false_answers_with_a_lasting_other_state_between_them_are_ignored():
  state = LIVE
  for seconds, word in ((0, states.LOST), (15, states.QUEUED), (900, states.QUEUED), (915, states.LOST)):
    state, _ = decisions.decide(run(), state, Observation(NOW + seconds, states.MachineStatus(word), {}))
    assert state.stage == WATCHING


@pytest.mark.parametrize(
  ("word", "fields", "stage"),
  [
    (states.READY, {"phase": mailbox.ENDED, "detail": "waited 1200 s for an order"}, states.DELETING),
    (states.READY, {"phase": mailbox.EXITED, "exit": states.HANG}, states.OVER),  # the machines are kept
    (states.LOST, {"phase": mailbox.EXITED, "exit": 42}, states.DELETING),
  ],
)
@pytest.mark.parametrize("asked", [False, True])
def test_damaged_order_never_restarts_programs_that_were_asked_to_stop(word, fields, stage, asked):
  state = dataclasses.replace(LIVE, trouble=NOW - 300, gone_since=NOW - 300 if word == states.LOST else 0.0)
  rows = {w: (mailbox.WorkerReport(w, 1, asked=asked, **fields), 1.0) for w in range(4)}
  state, actions = decide(state, word, reports=rows, order=None)
  assert (state.end is not None) == asked
  if asked:
    assert state.end[0] == errors.DETACHED and "stopped on request" in state.end[1] and state.stage == stage
    assert not any(action.verb == "order" for action in actions)


@pytest.mark.parametrize("word", [states.LOST, states.DELETING])
def test_machines_that_are_lost_at_the_first_look_are_replaced_at_the_second(word):
  state, _ = decide(dataclasses.replace(LIVE, look="", seen=False), word, reports={})
  assert state.stage == WATCHING
  state, _ = decisions.decide(run(), state, Observation(NOW + 15, states.MachineStatus(word), {}))
  assert state.stage == states.DELETING


@pytest.mark.parametrize("other", [states.DELETING, states.REPAIRING, states.QUEUED, states.STARTING])
@pytest.mark.parametrize(("reports", "seconds"), [({}, 15), (None, run().limits.silence + 15)])
def test_lost_machines_whose_state_alternates_are_replaced(reports, seconds, other):
  state, now, words = LIVE, NOW, itertools.cycle([states.LOST, other])
  while state.stage == WATCHING:
    state, _ = decisions.decide(run(), state, Observation(now, states.MachineStatus(next(words)), reports))
    now += 15
  assert seconds <= now - 15 - NOW <= seconds + 15


def test_absence_before_the_first_look_does_not_count_as_a_loss():
  state = dataclasses.replace(LIVE, look="", seen=False, ready=0.0, exists=0.0, answered=0.0)
  for word in (states.ABSENT, states.ABSENT, states.QUEUED, states.LOST):
    state, _ = decide(state, word, reports={})
    assert state.stage == WATCHING


def test_lost_machines_are_replaced_at_once_after_their_time_limit():
  state, _ = decide(dataclasses.replace(LIVE, expires=NOW - 1000), states.LOST)
  assert state.stage == states.DELETING


@pytest.mark.parametrize(("clock", "expired"), [(NOW + 9500, False), (0.0, True), (NOW - 9500, False)])
def test_limit_expires_only_by_two_clocks(clock, expired):
  now = NOW + (0 if clock > NOW else 9500)
  state = dataclasses.replace(LIVE, look_since=now - 10)
  state, _ = decisions.decide(run(), state, Observation(now, states.MachineStatus(states.READY), clock=clock))
  assert (state.stage == states.DELETING) == expired


def test_seconds_of_a_deleted_attempt_count():
  state = dataclasses.replace(GOING, used=100.0, absent=5)
  assert decide(state, states.ABSENT)[0].used == 500.0


def test_deletion_without_a_response_is_repeated():
  assert [action.verb for action in decide(GOING, states.READY)[1]] == ["delete"]
  assert not decide(dataclasses.replace(GOING, retry=NOW + 1), states.READY)[1]


def test_sleeping_laptop_does_not_give_up_a_deletion():
  state = dataclasses.replace(GOING, since=NOW - 5000)
  assert decide(state, states.READY)[0].stage == states.DELETING
  state, actions = decide(dataclasses.replace(state, deletion_polls=9), states.READY)
  assert state.stage == IDLE and state.unverified == (1,) and actions[0].event == "unverified"


def test_attempt_is_not_created_after_a_failed_deletion():
  state = dataclasses.replace(GOING, since=NOW - 5000, deletion_polls=9, end=None)
  assert decide(state, states.READY)[0].end[0] == errors.BILLING
  assert decide(state, states.DELETING)[0].end is None


def test_stop_order_ends_a_run_with_lost_machines():
  state, _ = decide(LOST, states.LOST, reports={}, order=mailbox.Order(1, stop=True))
  assert state.end[0] == errors.DETACHED and state.stage == states.DELETING


def test_quota_error_ends_only_the_first_attempt():
  refusal = errors.QuotaError("quota")
  state = dataclasses.replace(LIVE, attempt=2, ready=0.0, seen=False)
  assert decide(state, states.ABSENT, refusal=refusal)[0].end is None
  assert decide(dataclasses.replace(state, attempt=1), states.ABSENT, refusal=refusal)[0].end[0] == errors.DENIED
  assert decide(dataclasses.replace(state, since=NOW - 1e5), states.ABSENT, refusal=refusal)[0].end[0] == errors.DENIED


def test_machine_time_starts_with_the_first_worker():
  rows = {
    w: (dataclasses.replace(report, started=NOW - 450), 1.0) for w, (report, _) in make_reports(1, 1, 1, 1).items()
  }
  state, _ = decide(LIVE, states.READY, reports=rows)
  assert state.ready == NOW - 450 and state.expires == NOW - 450 + run().seconds
  earlier = {w: (dataclasses.replace(report, started=NOW - 900), 1.0) for w, (report, _) in rows.items()}
  assert decide(LIVE, states.READY, reports=earlier)[0].ready == LIVE.ready  # the reports are older than this attempt


def test_last_reports_of_lost_machines_are_not_failures():
  rows = {w: (mailbox.WorkerReport(w, 1, mailbox.EXITED, exit=1), 1.0) for w in range(4)}
  state, _ = decide(dataclasses.replace(LOST, trouble=NOW - 300), states.LOST, reports=rows)
  assert state.failures == 0 and state.lost == 1
  state, _ = decide(dataclasses.replace(LIVE, trouble=NOW - 300), states.READY, reports=rows)
  assert state.failures == 1 and state.lost == 0


@pytest.mark.parametrize(("starts", "left"), [((50, 50, 50, 50), 2), ((51, 50, 51, 51), 2), ((51, 51, 51, 60), 0)])
def test_only_a_later_start_of_all_workers_resets_failures(starts, left):
  rows = {w: (dataclasses.replace(report, began=starts[w]), 1.0) for w, (report, _) in make_reports(1, 1, 1, 1).items()}
  state = dataclasses.replace(LIVE, best_start=50, failures=2, lost=3)
  assert decide(state, states.READY, reports=rows)[0].failures == left


def test_workers_may_restart_twice_by_themselves():
  rows = {w: (dataclasses.replace(report, try_=2), age) for w, (report, age) in make_reports(1, 1, 1, 1).items()}
  state, actions = decide(LIVE, states.READY, reports=rows)
  assert state.worker_restarts == 1 and state.failures == 0 and actions[0].order == mailbox.Order(2)
  assert decide(dataclasses.replace(LIVE, worker_restarts=2), states.READY, reports=rows)[0].failures == 1


def test_future_times_are_corrected_after_a_clock_is_set_back():
  later = dict.fromkeys(("since", "look_since", "starting", "ready", "answered", "trouble"), NOW + 50000.0)
  state, _ = decide(dataclasses.replace(LIVE, **later, expires=NOW + 1e6), states.READY)
  assert all(getattr(state, key) <= NOW for key in later) and state.expires <= NOW + run().seconds
  state, _ = decide(dataclasses.replace(LIVE, gone_since=NOW + 50000.0), states.LOST, reports=None)
  assert state.gone_since == NOW


def test_executed_order_has_no_further_effect():
  state = dataclasses.replace(LIVE, trouble=NOW - 5, start_known=True)
  assert decide(state, states.READY, order=mailbox.Order(1))[0].starting == LIVE.starting
  assert decide(state, states.READY, order=mailbox.Order(2))[0].starting == NOW


def test_single_absence_of_a_live_attempt_is_ignored():
  state, actions = decide(LIVE, states.ABSENT)
  assert state.stage == WATCHING and not actions
  state = dataclasses.replace(state, gone_since=NOW - 15)
  assert decide(state, states.ABSENT, reports={})[0].stage == states.DELETING


@pytest.mark.parametrize(("answered", "verbs"), [(NOW - 10, []), (NOW - 100, ["create"]), (0.0, ["create"])])
def test_absence_shortly_after_a_request_sends_no_second_request(answered, verbs):
  state = dataclasses.replace(LIVE, answered=answered, seen=False, ready=0.0, retry=0.0)
  assert [action.verb for action in decide(state, states.ABSENT)[1]] == verbs
