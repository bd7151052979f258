"""Tests that batches are equal for any number of threads, workers and processes, and from any start step."""

import dataclasses
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.streams import RANDOM, same, source, train, training
from vit_jax.data import loader, sources, stream
from vit_jax.data.views import Fields
from vit_jax.schema import Choice


@pytest.mark.parametrize("threads", [1, 7])
def test_batch_is_a_function_of_seed_and_step(threads):
  whole = train(source(50, gradient=True), 16, 9, **RANDOM)
  same(whole, train(source(50, gradient=True), 16, 9, **RANDOM, threads=threads))
  for start in (1, 4, 8):
    same(whole[start:], train(source(50, gradient=True), 16, 9 - start, start=start, **RANDOM, threads=threads))
  same(whole, train(source(50, gradient=True), 16, 9, **RANDOM, threads=threads, prefetch=4))


def test_start_at_a_late_step_is_immediate():
  assert len(train(source(50), 16, 1, start=10**12)) == 1


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_together_build_the_same_batch(hosts):
  whole = train(source(50, gradient=True), 80, 4, **RANDOM)
  parts = [np.arange(80)[host::hosts] for host in range(hosts)]
  for rows in parts:
    got = train(source(50, gradient=True), 80, 4, rows=rows.tolist(), **RANDOM)
    same([{key: value[rows] for key, value in b.items()} for b in whole], got)


@pytest.mark.parametrize("prefetch", [1, 5, 30])
def test_prefetched_batches_are_read_before_they_are_requested(prefetch):
  made, read = source(200), []
  counted = dataclasses.replace(made, read=lambda i: (read.append(i), made.read(i))[1])
  batches = training(counted, 4, range(4), prefetch=prefetch)
  next(batches)
  deadline = time.monotonic() + 20
  while len(read) < 4 * (1 + prefetch) and time.monotonic() < deadline:
    time.sleep(0.01)
  time.sleep(0.1)
  assert len(read) == 4 * (1 + prefetch)
  batches.close()


@pytest.mark.parametrize(
  ("remote", "order", "count"), [(False, "records", 3), (True, "records", 32), (True, "blocks", 3)]
)
def test_default_thread_count_is_higher_if_each_image_is_a_request(monkeypatch, remote, order, count):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
  made = source(200)
  runs = sources.SpanReader(lambda first, stop: [], lambda stored: stored)
  examples = stream.train_examples(
    dataclasses.replace(made, remote=remote, runs=runs), 0, Fields(), 64, order=Choice(order), image_size=2
  )
  batches = loader.batches(examples, 64, range(64), prefetch=64)
  assert len(batches._filled._pool._threads) == count
  batches.close()


def test_rows_have_the_requested_order():
  rows = [70, 3, 3, 0, 41]
  whole = train(source(90), 80, 2)
  same([{key: value[rows] for key, value in b.items()} for b in whole], train(source(90), 80, 2, rows=rows))


@pytest.mark.long
def test_process_ends_although_its_stream_is_open():
  code = """
import cv2, numpy as np
from vit_jax.data import loader, sources, stream
data = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()
made = sources.Source("m", "t", ("a",), 10, lambda i: (data, 0), str)
next(loader.batches(stream.train_examples(made, 0, image_size=4), 8, range(8)))
"""
  subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
  ("count", "records", "workers"), [(2, 10**6, 0), (96, 10**6, 32), (96, 999, 0), (8, 131_072, 2)]
)
def test_host_with_many_cores_uses_workers_for_many_records(monkeypatch, count, records, workers):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
  made = loader.processes(None, records)
  assert (made.count if made else 0) == workers
  assert loader.processes(None, records, workers=5).count == 5
  assert loader.processes(None, records, workers=0) is None


@pytest.mark.parametrize(
  ("cores", "threads", "workers", "requests", "expected"),
  [
    (2, 2, 0, False, "0 workers and 2 threads on 2 cores. More of either will not help. Make the image files smaller"),
    (16, 16, 0, False, "0 workers and 16 threads on 16 cores. Raise --config.data.workers to up to 5; a restart"),
    (16, 4, 5, False, "5 workers and 4 threads on 16 cores. Raise --config.data.threads to up to 16; a restart"),
    (
      16,
      4,
      1,
      False,
      "1 worker and 4 threads on 16 cores. Raise --config.data.workers to up to 5 and --config.data.threads",
    ),
    (16, 16, 5, False, "5 workers and 16 threads on 16 cores. More of either will not help."),
    (1, 32, 0, True, "0 workers and 32 threads on 1 core. Raise --config.data.threads to up to 256; a restart"),
  ],
)
def test_advice_for_slow_loading_names_settings_and_limits(cores, threads, workers, requests, expected, monkeypatch):
  monkeypatch.setattr(loader, "count_usable_cores", lambda: cores)
  assert loader.suggest_settings(threads, workers, requests).startswith(expected)


def test_default_thread_and_worker_counts(monkeypatch):
  monkeypatch.setattr(loader, "count_usable_cores", lambda: 16)
  assert loader.choose_thread_count(None, False) == 16 and loader.choose_thread_count(None, True) == 32
  assert (
    loader.choose_thread_count(3, True) == 3
    and loader.choose_worker_count(2, 10) == 2
    and loader.choose_worker_count(999, 10) == 256
  )
  assert loader.choose_worker_count(None, loader.MANY) == 5 and loader.choose_worker_count(None, loader.MANY - 1) == 0
  assert loader.processes(list, loader.MANY).count == 5 and loader.processes(list, 10) is None
