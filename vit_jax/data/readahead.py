"""Runs of neighbouring records, read before they are asked for: with one request, however many threads want them."""

import collections
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future

from vit_jax.data.mixed import Mixed
from vit_jax.data.order import Order, Run
from vit_jax.data.prefetch import Pool
from vit_jax.data.repeats import Repeated
from vit_jax.data.sources import Source

# Requests at a time. A host that trains on 5,000 images a second needs 160 runs of 32 a second; of 50 ms and 35 ms for
# 3.5 MB each, 14 are under way.
THREADS = 32


def room(processes: int = 1) -> int:
  """Bytes of undecoded images that may wait in each of so many processes: a quarter of the memory for all of them."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 // processes


@dataclasses.dataclass(eq=False)
class _Reading:
  """A run that is read, or was: `values` has what of it is still wanted, as stored, once the future is done."""

  run: Run
  done: Future | None = None
  values: dict[int, bytes] = dataclasses.field(default_factory=dict)
  left: dict[int, int] = dataclasses.field(default_factory=dict)  # copies that are yet to be asked for, by record
  untaken: dict[int, int] = dataclasses.field(default_factory=dict)  # copies that are yet to be taken


class ReadAhead:
  """A `source` whose records come out of runs; `close` ends the threads that read them.

  A record is given away once, or once for each of its copies, and not kept: what waits are the records of the runs that
  are due and not yet asked for. Anything else, as the image that stands in for a bad one, is read for itself. Of
  sources where a run costs as many requests as its records, `source` is the source itself.
  """

  def __init__(self, source: Source, order: Order | Mixed | Repeated, start: int, processes: int = 1):
    """`start` is the first position that will be asked for, of any row, here or in the other `processes`."""
    self._stored, self._order, self._due = source, order, order.schedule(start)
    self.source = dataclasses.replace(source, read=self._read) if source.runs else source
    self.alone = 0  # records that were read for themselves
    self.bytes = 0  # that wait
    self.waited = 0.0  # seconds of all threads together, for runs that were not there yet
    self._waiting: dict[int, list[_Reading]] = {}  # by record; two where an epoch ends and the next begins
    self._held: dict[_Reading, None] = {}  # those that are done, the oldest first
    self._lock, self._room, self._warned = threading.Lock(), room(processes), False
    self._pool = Pool(self._read_run, THREADS)

  def expect(self, positions: Sequence[int], kept: Collection[int] = ()) -> None:
    """Begins to read what is due where these positions are, before they are asked for; not the records that are `kept`.

    Such are known, and nobody asks for them again.
    """
    if not self._stored.runs:
      return
    with self._lock:
      for run in self._due(positions):
        if not (wanted := frozenset(record for record in run.wanted if record not in kept)):
          continue
        reading = _Reading(run._replace(wanted=wanted))
        for record in wanted:
          self._waiting.setdefault(record, []).append(reading)
        reading.done = self._pool.submit(reading)
      if self._order.copies > 1:
        self._count(collections.Counter(map(self._order.record, positions)))

  def _count(self, copies):
    """Notes how often each record is about to be asked for."""
    for record, count in copies.items():
      for reading in self._waiting.get(record, ()):
        if record not in reading.left:
          reading.left[record] = reading.untaken[record] = count
          break

  def close(self) -> None:
    """Ends the threads; what they have not begun to read never comes."""
    self._pool.close()

  def _read(self, record):
    """(image file, label), or OSError."""
    with self._lock:
      readings = self._waiting.get(record)
      reading, last = (readings[0], readings[0].left.get(record, 1) == 1) if readings else (None, True)
      if reading and last:
        readings.pop(0)
      elif reading:
        reading.left[record] -= 1
      if not readings:
        self._waiting.pop(record, None)
    stored = self._taken(reading, record) if reading else None
    if stored is None:
      with self._lock:
        self.alone += 1
      return self._stored.read(record)
    return self._stored.runs.parse(stored)

  def _taken(self, reading, record):
    """The record of a run, which has it no more after the last copy is taken: who asks last need not be who takes last.

    None where the run was dropped or is damaged, somewhere.
    """
    began = time.monotonic()
    try:
      reading.done.result()
    except OSError as error:
      if error.errno is None:  # of the file: other records of it may be whole
        return None
      raise
    with self._lock:
      self.waited += time.monotonic() - began
      stored = reading.values.get(record)
      reading.untaken[record] = reading.untaken.get(record, 1) - 1
      if not reading.untaken[record]:
        self.bytes -= len(reading.values.pop(record, b""))
      if not reading.values:
        self._held.pop(reading, None)
    return stored

  def _read_run(self, reading, ended):
    run = reading.run
    stored = self._stored.runs.read(run.first, run.stop)
    with self._lock:
      reading.values = {record: value for record, value in enumerate(stored, run.first) if record in run.wanted}
      self.bytes += sum(map(len, reading.values.values()))
      self._held[reading] = None
      while self.bytes > self._room and len(self._held) > 1:
        self._drop(next(iter(self._held)))

  def _drop(self, reading):
    """Forgets a run: its records are read again, one by one, when they are asked for."""
    if not self._warned:
      self._warned = True
      logging.warning(
        "images that wait to be used take more than %.1f GiB, this process's share of a quarter of the memory: some "
        "are read twice. Set config.data.order.window or .size lower",
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
