"""Reading of runs of neighbouring records in advance, with one request for each run."""

import collections
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from vit_jax.data.dataset_row import Label
from vit_jax.data.mixture_order import MixedOrder
from vit_jax.data.order import Order, Span
from vit_jax.data.prefetch import ThreadPool
from vit_jax.data.repeats import RepeatedOrder
from vit_jax.data.sources import Source, SpanReader

# Number of parallel requests. A host that trains on 5,000 images per second needs 160 runs of 32 images per second. A
# run with 50 ms of latency and 35 ms for 3.5 MB of data leads to 14 parallel requests.
THREADS = 32


def compute_memory_limit(processes: int = 1) -> int:
  """Returns the number of bytes of undecoded images that may wait in each of several processes.

  All processes together may use a quarter of the machine's memory.

  Args:
    processes: number of processes on this machine.
  """
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 // processes


@dataclasses.dataclass(eq=False)
class _PendingRun:
  """A sequence of neighbouring records that is being read or was read.

  Attributes:
    reader: reader of the source.
    run: the records. Only the wanted ones are stored.
    done: future of the read.
    values: stored bytes of the remaining records, by record number. Empty until the read is complete.
    remaining: number of later requests for each record, by record number.
    untaken: number of requests that were not answered yet, by record number.
  """

  reader: SpanReader
  run: Span
  done: Future[Any] | None = None
  values: dict[int, bytes] = dataclasses.field(default_factory=dict)
  remaining: dict[int, int] = dataclasses.field(default_factory=dict)
  untaken: dict[int, int] = dataclasses.field(default_factory=dict)


class ReadAhead:
  """A wrapper of a source that reads records in runs before they are requested. `close` stops its threads.

  The attribute `source` is the source to read from. It delivers each record of a run once, or once per copy, and then
  releases the record. The records of due runs wait in memory until they are requested. All other records are read
  individually, such as an image that replaces a bad one. If runs are not cheaper than single records, `source` is the
  original source.

  Args:
    source: the source to read from.
    order: order of the records.
    start: first position that will be requested, of any row, in this or another process.
    processes: number of processes that share the memory.

  Attributes:
    source: source that uses the runs.
    alone: number of records that were read individually.
    bytes: number of bytes of waiting records.
    waited: seconds that all threads together have waited for runs.
  """

  def __init__(self, source: Source, order: Order | MixedOrder | RepeatedOrder, start: int, processes: int = 1) -> None:
    self._stored, self._order, self._due = source, order, order.schedule(start)
    self.source = dataclasses.replace(source, read=self._read) if source.runs else source
    self.alone = 0
    self.bytes = 0
    self.waited = 0.0
    self._waiting: dict[
      int, list[_PendingRun]
    ] = {}  # by record number; a record has two runs at the border of two epochs
    self._held: dict[_PendingRun, None] = {}  # completed runs, the oldest first
    self._lock, self._room, self._warned = threading.Lock(), compute_memory_limit(processes), False
    self._pool = ThreadPool(self._read_run, THREADS)

  def expect(self, positions: Sequence[int], kept: Collection[int] = ()) -> None:
    """Starts to read the runs that are due at some positions. Must be called before the records are requested.

    Args:
      positions: positions that will be requested next.
      kept: record numbers that are not read, because their images are already in memory.
    """
    reader = self._stored.runs
    if reader is None:
      return
    with self._lock:
      for run in self._due(positions):
        if not (wanted := frozenset(record for record in run.wanted if record not in kept)):
          continue
        reading = _PendingRun(reader, run._replace(wanted=wanted))
        for record in wanted:
          self._waiting.setdefault(record, []).append(reading)
        reading.done = self._pool.submit(reading)
      if self._order.copies > 1:
        self._count(collections.Counter(map(self._order.record, positions)))

  def _count(self, copies: Mapping[int, int]) -> None:
    """Stores the number of later requests for each record."""
    for record, count in copies.items():
      for reading in self._waiting.get(record, ()):
        if record not in reading.remaining:
          reading.remaining[record] = reading.untaken[record] = count
          break

  def close(self) -> None:
    """Stops the threads. Reads that have not started are cancelled."""
    self._pool.close()

  def _read(self, record: int) -> tuple[bytes, Label]:
    """Returns (image file, label), or raises OSError."""
    with self._lock:
      readings = self._waiting.get(record, [])
      reading, last = (readings[0], readings[0].remaining.get(record, 1) == 1) if readings else (None, True)
      if reading and last:
        readings.pop(0)
      elif reading:
        reading.remaining[record] -= 1
      if not readings:
        self._waiting.pop(record, None)
    stored = self._take(reading, record) if reading else None
    if reading is None or stored is None:
      with self._lock:
        self.alone += 1
      return self._stored.read(record)
    return reading.reader.parse(stored)

  def _take(self, reading: _PendingRun, record: int) -> bytes | None:
    """Returns a record of a run, or None if the run was dropped or is damaged.

    The record is released after its last copy is delivered. The last request is not always the last delivery.
    """
    start_time = time.monotonic()
    try:
      assert reading.done is not None
      reading.done.result()
    except OSError as error:
      if error.errno is None:  # the file is damaged, but other records of it may be intact
        return None
      raise
    with self._lock:
      self.waited += time.monotonic() - start_time
      stored = reading.values.get(record)
      reading.untaken[record] = reading.untaken.get(record, 1) - 1
      if not reading.untaken[record]:
        self.bytes -= len(reading.values.pop(record, b""))
      if not reading.values:
        self._held.pop(reading, None)
    return stored

  def _read_run(self, reading: _PendingRun, ended: threading.Event) -> None:
    run = reading.run
    stored = reading.reader.read(run.first, run.stop)
    with self._lock:
      reading.values = {record: value for record, value in enumerate(stored, run.first) if record in run.wanted}
      self.bytes += sum(map(len, reading.values.values()))
      self._held[reading] = None
      while self.bytes > self._room and len(self._held) > 1:
        self._drop_run(next(iter(self._held)))

  def _drop_run(self, reading: _PendingRun) -> None:
    """Removes a run from memory. Its records are read individually when they are requested."""
    if not self._warned:
      self._warned = True
      logging.warning(
        "images that wait to be used take more than %.1f GiB, this process's share of a quarter of the memory: some "
        "are read twice. Lower config.data.order.window or .size",
        self._room / 2**30,
      )
    del self._held[reading]
    for record, value in reading.values.items():
      self.bytes -= len(value)
      if reading in (readings := self._waiting.get(record, [])):
        readings.remove(reading)
      if not readings:
        self._waiting.pop(record, None)
    reading.values = {}
