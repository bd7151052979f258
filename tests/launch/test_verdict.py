"""Which end of which worker explains how a try ended."""

import itertools

import pytest

from launch import states
from launch.mailbox import ENDED, EXITED, READY, RUNNING, Order, WorkerReport
from tests.launch.world import run

LONG = 1e6  # seconds since the first sign of trouble


def judged(*codes, waited=LONG, hangs=0, ages=(), order=None, asked=()):
  """The verdict on workers that ended with these codes; None for one that runs. `asked`: those that asked theirs."""
  reports = {}
  for worker, code in enumerate(codes):
    phase = RUNNING if code is None else EXITED
    report = WorkerReport(
      worker, 1, phase, exit=code, clock=float(worker), tail=f"tail {worker}", host=f"h{worker}", asked=worker in asked
    )
    reports[worker] = (report, ages[worker] if ages else 1.0)
  return states.judge_try(run(), 1, reports, order, waited, hangs)


def test_all_zero_is_done_and_zero_with_others_that_saved_is_saved():
  assert judged(0, 0, 0, 0).kind == states.DONE
  assert judged(0, 42, 42, 0, asked=[1]).kind == states.SAVED
  assert judged(0, 0, 0, None, waited=0.0).kind == states.TROUBLE


def test_only_an_end_that_a_worker_asked_for_costs_no_try():
  for codes in ((42,) * 4, (130,) * 4, (143, 1, 143, 143)):
    assert judged(*codes).kind == states.FAILED
    assert judged(*codes, asked=[2]).kind == states.SAVED
  assert judged(42, 42, None, 42, asked=[2]).kind == states.SAVED  # whose machine went down before it could say more
  assert judged(42, 42, None, 42, ages=(1, 1, 999, 1)).kind == states.SAVED
  assert "w00 (h0) ended with 42, the exit code of a stop on request" in judged(42, 42, 42, 42).text


@pytest.mark.parametrize("codes", sorted(set(itertools.permutations([134, 134, 1, 143]))))
def test_the_culprit_is_the_one_whose_end_does_not_follow_from_anothers(codes):
  found = judged(*codes)
  assert found.kind == states.FAILED and f"w0{codes.index(1)}" in found.text
  assert found.tail == f"tail {codes.index(1)}"


@pytest.mark.parametrize("code", states.FATAL)
@pytest.mark.parametrize("other", [0, 1, 42, 43, 134, 137])
def test_an_end_that_another_try_would_repeat_goes_before_all_others(code, other):
  found = judged(other, 134, code, other)
  assert (found.kind, found.code) == (states.FINAL, code) and "w02" in found.text


def test_of_several_that_failed_by_themselves_the_first_in_time_is_named():
  assert "w01" in judged(134, 137, 1, 134).text
  assert "w02" in judged(43, 134, 1, 134).text  # one that hangs waits for the one that is gone


def test_a_second_hang_asks_for_other_machines():
  assert judged(43, 134, 134, 134).kind == states.FAILED
  assert judged(43, 134, 134, 134, hangs=1).kind == states.FRESH


def test_only_ends_that_follow_from_anothers_mean_that_a_host_went_without_a_word():
  assert "which indicates that another process died" in judged(134, 134, 134, 134).text


def test_the_others_are_waited_for_before_anything_is_said():
  assert judged(1, None, None, None, waited=1.0).kind == states.TROUBLE
  assert judged(1, None, None, None).kind == states.FAILED


def test_silence_of_one_is_a_failure_and_silence_of_all_may_be_the_buckets():
  assert "w03" in judged(None, None, None, None, ages=(1, 1, 1, 999)).text
  assert judged(None, None, None, None, ages=(999,) * 4, waited=1.0).kind == states.TROUBLE
  assert judged(None, None, None, None, ages=(999,) * 4).kind == states.FRESH


def test_a_worker_that_has_given_up_says_why():
  reports = {
    0: (WorkerReport(0, 1, READY), 1.0),
    1: (WorkerReport(1, 1, ENDED, detail="the code has another hash"), 1.0),
  }
  found = states.judge_try(run(), 1, reports, None, LONG, 0)
  assert found.kind == states.FRESH and "w01 stopped: the code has another hash" in found.text


def test_ends_of_an_earlier_try_say_nothing_of_this_one():
  reports = {w: (WorkerReport(w, 1, EXITED, exit=1), 1.0) for w in range(4)}
  assert states.judge_try(run(), 2, reports, None, LONG, 0).kind == states.GOING


def test_what_was_ordered_to_stop_is_stopped_whatever_its_codes():
  stop = Order(1, stop=True)
  assert judged(42, 42, 143, 42, order=stop).kind == states.STOPPED
  assert judged(42, None, 42, 42, order=stop).kind == states.GOING
  assert judged(0, 0, 0, 0, order=stop).kind == states.DONE


@pytest.mark.parametrize(
  ("reports", "text"),
  [
    ([], ""),
    ([WorkerReport(0), WorkerReport(1)], "2 installing"),
    ([WorkerReport(0, 1, RUNNING), WorkerReport(1, 1, READY)], "1 of 4 workers running, 1 ready, starting"),
    ([WorkerReport(0, 1, RUNNING, doing="compile"), WorkerReport(1, 1, RUNNING, doing="start")],
     "2 of 4 workers running, compile"),
    ([WorkerReport(0, 1, RUNNING, step=7, doing="save"), WorkerReport(1, 1, RUNNING, step=6, doing="step")],
     "2 of 4 workers running, step 6, step"),
  ],
)  # fmt: skip
def test_progress_is_that_of_the_slowest_and_of_those_that_do_not_run_yet(reports, text):
  assert states.summarise_progress(run(), {report.worker: (report, 1.0) for report in reports}) == text
