"""Tests of results computed ahead by threads: their order, their errors, and closing without waiting."""

import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from vit_jax.data import prefetch


def own_threads():
  return {thread for thread in threading.enumerate() if thread.name == "images"}


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (3, 2), (8, 20)])
def test_results_are_in_order_for_any_thread_timing(threads, ahead):
  def work(i, ended):
    time.sleep(0.002 * (i % 3))
    return i

  results = prefetch.Prefetch(work, range(5, 45), threads, ahead)
  assert list(results) == list(range(5, 45))
  results.close()


def test_number_of_results_computed_ahead_is_limited():
  made = []
  results = prefetch.Prefetch(lambda i, ended: made.append(i), range(2**62), 2, 5)
  assert not made
  next(results)
  time.sleep(0.1)
  assert 1 <= len(made) <= 6
  results.close()


def test_error_takes_the_place_of_its_result():
  def work(i, ended):
    if i == 2:
      raise LookupError("the third")
    return i

  results = prefetch.Prefetch(work, range(5), 2, 3)
  assert [next(results), next(results)] == [0, 1]
  with pytest.raises(LookupError, match="the third"):
    next(results)
  assert list(results) == [3, 4]
  results.close()


def test_threads_end_when_the_object_is_closed_or_collected():
  before = own_threads()
  for end in (prefetch.Prefetch.close, lambda results: None):
    results = prefetch.Prefetch(lambda i, ended: i, range(2**62), 4, 8)
    next(results)
    assert len(own_threads() - before) == 4
    end(results)
    del results
    gc.collect()
    assert own_threads() == before


def test_closing_does_not_wait_for_a_blocked_thread(monkeypatch):
  monkeypatch.setattr(prefetch, "PATIENCE", 0.1)
  never = threading.Event()
  results = prefetch.Prefetch(lambda i, ended: i if i < 1 else never.wait(), range(9), 2, 4)
  next(results)
  start_time = time.monotonic()
  results.close()
  assert time.monotonic() - start_time < 1
  never.set()


def test_running_work_is_notified_of_closing():
  seen = []
  results = prefetch.Prefetch(lambda i, ended: seen.append(ended.wait(10)) if i else i, range(9), 1, 4)
  next(results)
  results.close()
  assert seen == [True]


@pytest.mark.long
def test_process_ends_although_a_thread_blocks_on_a_pipe(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  code = f"""
from vit_jax.data import prefetch
results = prefetch.Prefetch(lambda i, ended: i if i < 1 else open({str(tmp_path / "pipe")!r}).read(), range(9), 2, 4)
print(next(results))
"""
  done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
  assert (done.stdout, done.stderr) == ("0\n", "")
