"""Tests of runs of records that are read ahead: one read for any number of threads, and the requested records."""

import collections
import contextlib
import dataclasses
import errno
import functools
import pathlib
import subprocess
import threading
import time
import types

import numpy as np
import pytest

from tests.streams import RANDOM, evaluation, opened, records, same, source, take, train, training
from vit_jax.data import images, loader, order, readahead, repeats, sources, workers
from vit_jax.schema import Choice

BLOCKS = Choice("blocks", {"size": 8, "window": 4, "groups": 4})


class Counted:
  """A source that counts its reads, and that can be slow or fail."""

  def __init__(self, made, seconds=0.0, error=None):
    self.runs, self.alone, self.lock = [], [], threading.Lock()
    self.seconds, self.error, self.made = seconds, error, made
    self.source = dataclasses.replace(made, read=self.one, runs=sources.SpanReader(self.several, self.parse))

  def one(self, record):
    with self.lock:
      self.alone.append(record)
    return self.made.read(record)

  def several(self, first, stop):
    with self.lock:
      self.runs.append((first, stop))
    time.sleep(self.seconds)
    if self.error:
      raise self.error
    return [bytes([record % 256, record // 256]) + self.made.read(record)[0] for record in range(first, stop)]

  def parse(self, stored):
    return stored[2:], self.made.read(stored[0] + 256 * stored[1])[1]


@pytest.mark.parametrize("threads", [1, 7])
def test_stream_matches_single_reads_and_each_run_is_read_once(threads):
  counted = Counted(source(240, gradient=True), seconds=0.001)
  args = RANDOM | {"order": BLOCKS, "threads": threads}
  same(train(source(240, gradient=True), 32, 24, **args), train(counted.source, 32, 24, **args))
  assert not counted.alone
  # At most 1.25 windows of each group and the prefetched batches are read ahead.
  assert sum(stop - first for first, stop in counted.runs) < 24 * 32 + 4 * 1.5 * 32 + 6 * 32
  first_epoch = counted.runs[: 240 // 8]
  assert len(set(first_epoch)) == len(first_epoch)


@pytest.mark.parametrize("start", [1, 7, 13, 40])
def test_start_in_the_middle_of_a_window_reads_the_rest_by_runs(start):
  whole = train(source(300), 16, start + 6, order=BLOCKS)
  counted = Counted(source(300))
  same(whole[start:], train(counted.source, 16, 6, start=start, order=BLOCKS))
  assert not counted.alone


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_processes_share_no_run_and_build_the_same_batches(hosts):
  whole, runs = train(source(300), 16, 18, order=BLOCKS), collections.Counter()
  for host in range(hosts):
    rows = np.arange(16)[host * 16 // hosts : (host + 1) * 16 // hosts]
    counted = Counted(source(300))
    same(
      [{key: value[rows] for key, value in batch.items()} for batch in whole],
      train(counted.source, 16, 18, rows=rows.tolist(), order=BLOCKS),
    )
    assert not counted.alone
    runs.update({first for first, _ in counted.runs[:8]})
  assert max(runs.values()) == 1


def test_threads_that_need_one_run_wait_for_one_request():
  counted = Counted(source(64), seconds=0.1)
  ahead = readahead.ReadAhead(counted.source, order.SequentialOrder(64), 0)
  with contextlib.closing(ahead):
    ahead.expect(range(64))
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: ahead.source.read(i)})) for i in range(64)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert found == {i: source(64).read(i) for i in range(64)}
  assert counted.runs == [(0, 64)] and not counted.alone
  assert ahead.bytes == 0 and not ahead._waiting and not ahead._held


@pytest.mark.parametrize("batch", [24, 32])  # 32 rows are not a multiple of three copies
def test_all_copies_of_a_record_use_one_read(batch, monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  args = RANDOM | {"order": BLOCKS, "repeats": 3}
  counted = Counted(source(240, gradient=True))
  batches = training(counted.source, batch, range(batch), threads=5, **args)
  made = take(batches, 100)
  same(train(source(240, gradient=True), batch, 20, **args), made[:20])
  assert not counted.alone
  first_epoch = counted.runs[: 240 // 8]
  assert len(set(first_epoch)) == len(first_epoch)
  # All requested records were used.
  held = sum(len(reading.values) for reading in batches._chunks.ahead._held)
  assert held <= 4 * (1.5 * 32 + 8) + 6 * batch / 3


def test_copies_of_a_record_are_served_in_any_order():
  made = repeats.RepeatedOrder(order.BlockOrder(240, 8, 0, size=8, window=2, groups=1), 24, 3)
  counted = Counted(source(240))
  ahead = readahead.ReadAhead(counted.source, made, 0)
  ahead.expect(range(24))
  assert [made.record(position) for position in range(24)].count(made.record(0)) == 3
  (reading,) = ahead._waiting[record := made.record(0)]
  done, gate, waiting, taken = reading.done, threading.Event(), [], []

  def result():
    waiting.append(None)
    if len(waiting) < 3:
      gate.wait(60)
    return done.result()

  reading.done = types.SimpleNamespace(result=result)
  threads = [threading.Thread(target=lambda: taken.append(ahead.source.read(record))) for _ in range(2)]
  for thread in threads:
    thread.start()
  while len(waiting) < 2:
    time.sleep(0.001)
  taken.append(ahead.source.read(record))
  gate.set()
  for thread in threads:
    thread.join()
  ahead.close()
  assert taken == [source(240).read(record)] * 3
  assert not counted.alone and not ahead.alone and record not in reading.values


def test_evaluation_reads_adjacent_records_together():
  counted = Counted(source(100))
  found = list(evaluation(counted.source, 64, range(64)))
  same(found, list(evaluation(source(100), 64, range(64))))
  assert sorted(counted.runs) == [(0, 32), (32, 64), (64, 96), (96, 100)] and not counted.alone


def test_memory_is_released_as_images_are_used(monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  counted = Counted(source(400))
  batches = training(counted.source, 16, range(16), order=BLOCKS, threads=2)
  waiting = [next(batches) and batches._chunks.ahead.bytes for _ in range(150)]
  batches.close()
  image = len(source(400).read(0)[0]) + 2
  assert max(waiting) < 4 * (1.25 * 32 + 8 + 4 * 4 + 8) * image
  assert max(waiting[100:]) < 1.3 * max(waiting[20:100])


def test_records_beyond_the_memory_limit_are_read_again_with_one_warning(monkeypatch, caplog):
  whole = train(source(300), 16, 40, order=BLOCKS)
  monkeypatch.setattr(readahead, "compute_memory_limit", lambda processes: 1500)
  counted = Counted(source(300))
  same(whole, train(counted.source, 16, 40, order=BLOCKS))
  assert counted.alone
  assert [record.message for record in caplog.records if "config.data.order.window" in record.message][1:] == []
  assert "config.data.order.window" in caplog.text


def test_processes_of_a_host_together_use_a_quarter_of_its_memory(monkeypatch):
  total = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) * 1024
  assert readahead.compute_memory_limit() == pytest.approx(total / 4, rel=0.01)
  opened_by = []

  def start(pool, opened, size, decoded, lines):
    # Opens the data of a worker here, because starting a worker takes seconds.
    opened_by.append(opened())
    return subprocess.Popen(["sleep", "60"])

  monkeypatch.setattr(workers.WorkerPool, "_start", start)
  made = loader.processes(functools.partial(opened, 300), 300, workers=3)
  with contextlib.closing(loader.batches(opened(300), 16, range(16), 0, made, threads=3)):
    rooms = [chunks.ahead._room for chunks in opened_by]
  assert len(rooms) == 3
  assert sum(rooms) == pytest.approx(total / 4, rel=0.01)


def test_damaged_block_is_read_record_by_record():
  whole = train(source(300), 16, 4, order=BLOCKS)
  counted = Counted(source(300), error=OSError("damaged"))
  same(whole, train(counted.source, 16, 4, order=BLOCKS))
  counted.error = OSError(errno.EIO, "gs://bucket/data-00003-of-00010 cannot be read")
  with pytest.raises(images.ImageError, match=r"made, record \d+: .*gs://bucket/data-00003-of-00010 cannot be read"):
    train(counted.source, 16, 4, order=BLOCKS, on_error="skip")


def test_cached_images_are_not_read_again():
  counted = Counted(source(200))
  train(counted.source, 16, 100, order=BLOCKS)
  assert sum(stop - first for first, stop in counted.runs) <= 2 * 200 + 4 * 1.5 * 32


def test_replacement_of_a_bad_image_is_read_alone(monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  counted = Counted(source(300, bad=[17]))
  batches = training(counted.source, 16, range(16), order=BLOCKS, on_error="skip")
  found = take(batches, 38)  # two epochs: the replacement is removed from its own run
  assert batches.skipped == 1 and 1 <= len(counted.alone) <= 4
  same(found, take(training(source(300, bad=[17]), 16, range(16), order=BLOCKS, on_error="skip"), 38))
  assert 17 not in records(found)


def test_sources_without_runs_are_unchanged():
  made = source(10)
  ahead = readahead.ReadAhead(made, order.RecordOrder(10, 0), 0)
  ahead.expect([1, 2])
  assert ahead.source is made
  ahead.close()
