"""Tests of the verdict on a try, which follows from the ends of its workers."""

import itertools

import pytest

from launch import states
from launch.mailbox import ENDED, EXITED, READY, RUNNING, Order, WorkerReport
from tests.launch.world import run

LONG = 1e6  # seconds since the first sign of trouble


def judge(*codes, waited=LONG, hangs=0, ages=(), order=None, asked=()):
  """Returns the verdict on workers with these exit codes.

  Args:
    *codes: exit code of each worker, or None for a running worker.
    waited: seconds since the first sign of trouble.
    hangs: number of earlier hangs on the same machines.
    ages: age of the report of each worker in seconds.
    order: order of the attempt, or None.
    asked: workers that have asked their program to stop.
  """
  reports = {}
  for worker, code in enumerate(codes):
    phase = RUNNING if code is None else EXITED
    report = WorkerReport(
      worker, 1, phase, exit=code, clock=float(worker), tail=f"tail {worker}", host=f"h{worker}", asked=worker in asked
    )
    reports[worker] = (report, ages[worker] if ages else 1.0)
  return states.judge_try(run(), 1, reports, order, waited, hangs)


def test_zero_of_all_is_done_and_zero_with_saved_workers_is_saved():
  assert judge(0, 0, 0, 0).kind == states.DONE
  assert judge(0, 42, 42, 0, asked=[1]).kind == states.SAVED
  assert judge(0, 0, 0, None, waited=0.0).kind == states.TROUBLE


def test_only_a_requested_end_does_not_count_as_a_failure():
  for codes in ((42,) * 4, (130,) * 4, (143, 1, 143, 143)):
    assert judge(*codes).kind == states.FAILED
    assert judge(*codes, asked=[2]).kind == states.SAVED
  assert (
    judge(42, 42, None, 42, asked=[2]).kind == states.SAVED
  )  # the machine of this worker shut down before the last report
  assert judge(42, 42, None, 42, ages=(1, 1, 999, 1)).kind == states.SAVED
  assert "w00 (h0) ended with 42, the exit code of a stop on request" in judge(42, 42, 42, 42).text


@pytest.mark.parametrize("codes", sorted(set(itertools.permutations([134, 134, 1, 143]))))
def test_worker_with_an_independent_end_is_the_cause(codes):
  found = judge(*codes)
  assert found.kind == states.FAILED and f"w0{codes.index(1)}" in found.text
  assert found.tail == f"tail {codes.index(1)}"


@pytest.mark.parametrize("code", states.FATAL)
@pytest.mark.parametrize("other", [0, 1, 42, 43, 134, 137])
def test_permanent_failure_has_priority(code, other):
  found = judge(other, 134, code, other)
  assert (found.kind, found.code) == (states.FINAL, code) and "w02" in found.text


def test_first_of_several_independent_failures_is_named():
  assert "w01" in judge(134, 137, 1, 134).text
  assert "w02" in judge(43, 134, 1, 134).text  # the hanging worker waits for the failed worker


def test_second_hang_requires_other_machines():
  assert judge(43, 134, 134, 134).kind == states.FAILED
  assert judge(43, 134, 134, 134, hangs=1).kind == states.FRESH


def test_only_dependent_ends_indicate_a_lost_host():
  assert "which indicates that another process died" in judge(134, 134, 134, 134).text


def test_verdict_waits_for_the_other_workers():
  assert judge(1, None, None, None, waited=1.0).kind == states.TROUBLE
  assert judge(1, None, None, None).kind == states.FAILED


def test_silence_of_one_worker_is_named_and_of_all_needs_new_machines():
  assert "w03" in judge(None, None, None, None, ages=(1, 1, 1, 999)).text
  assert judge(None, None, None, None, ages=(999,) * 4, waited=1.0).kind == states.TROUBLE
  assert judge(None, None, None, None, ages=(999,) * 4).kind == states.FRESH


def test_worker_that_gave_up_has_its_reason():
  reports = {
    0: (WorkerReport(0, 1, READY), 1.0),
    1: (WorkerReport(1, 1, ENDED, detail="the code has another hash"), 1.0),
  }
  found = states.judge_try(run(), 1, reports, None, LONG, 0)
  assert found.kind == states.FRESH and "w01 stopped: the code has another hash" in found.text


def test_ends_of_an_earlier_try_are_ignored():
  reports = {w: (WorkerReport(w, 1, EXITED, exit=1), 1.0) for w in range(4)}
  assert states.judge_try(run(), 2, reports, None, LONG, 0).kind == states.GOING


def test_stop_order_determines_the_verdict():
  stop = Order(1, stop=True)
  assert judge(42, 42, 143, 42, order=stop).kind == states.STOPPED
  assert judge(42, None, 42, 42, order=stop).kind == states.GOING
  assert judge(0, 0, 0, 0, order=stop).kind == states.DONE


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
def test_progress_shows_the_slowest_worker_and_waiting_workers(reports, text):
  assert states.summarise_progress(run(), {report.worker: (report, 1.0) for report in reports}) == text
