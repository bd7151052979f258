"""Records of array_record files in a bucket, neighbours with one request; files are opened when they are needed."""

import bisect
import collections
import errno
import itertools
import logging
import threading
import time
from collections.abc import Sequence

from array_record.python.array_record_module import ArrayRecordReader

from vit_jax.schema import amount

# One request for neighbours of up to 4 MiB together, and about 30 kB of memory that stay; TFDS's own options, for local
# disks, make one of each record. Opening takes one request, for the last MiB, where the index is.
OPTIONS = "readahead_buffer_size:4194304,max_parallelism:1"
# Files that are open at a time. Of each stay 10 bytes a record: of 300 million in 3,000 files 3 GB, and no more however
# long a run is. Of more files those that were not read for longest are closed, which makes two requests of most runs.
OPEN = 4096
# Google's client tries again for 15 minutes by itself where a bucket does not answer or says so (429, 503). This is for
# what it gives up: answers that break off, files of which it was said that they are not there.
PAUSES = (0.1, 0.5, 2.0, 8.0)  # seconds


class Shards:
  """The records of a split by number; for many threads at once."""

  def __init__(self, files: Sequence[str], lengths: Sequence[int]):
    """Opens nothing; `lengths` are the numbers of records in the files."""
    self._files, self._lengths = list(files), list(lengths)
    self._starts = [0, *itertools.accumulate(lengths)]
    self._open: collections.OrderedDict[int, ArrayRecordReader] = collections.OrderedDict()
    self._opening = collections.defaultdict(threading.Lock)
    self._lock = threading.Lock()
    self._said: set[int] = set()  # files of which it was said that they are tried again

  def read(self, first: int, stop: int) -> list[bytes]:
    """Records `first` to `stop`, a request for each file that they are in.

    OSError that names the file and its records; with an errno, unless the file is damaged.
    """
    found = []
    while first < stop:
      shard = bisect.bisect_right(self._starts, first) - 1
      last = min(stop, self._starts[shard + 1])
      found += self._tried(shard, first - self._starts[shard], last - self._starts[shard])
      first = last
    return found

  def file(self, record: int) -> str:
    """The file that a record is in."""
    return self._files[bisect.bisect_right(self._starts, record) - 1]

  def _tried(self, shard, first, stop):
    """Records of one file; another try, with the file opened again, where that may help."""
    began = time.monotonic()
    for pause in (*PAUSES, None):
      try:
        reader = self._reader(shard)
        found = reader.read(first, stop)
        assert len(found) == stop - first
        self._said.discard(shard)
        return found
      except (RuntimeError, ValueError, IndexError) as error:  # array_record's
        self._forget(shard)
        reason, damaged = str(error).splitlines()[0], "orrupt" in str(error)
      where = f"{self._files[shard]}, records {first} to {stop - 1}"
      if damaged and pause != PAUSES[0]:  # also an answer that was cut short can look like that
        raise OSError(f"{where}: {reason}")
      if pause is not None:
        if shard not in self._said:  # once: many threads want records of it
          self._said.add(shard)
          logging.warning("%s: %s; trying again in %.1f s", where, reason, pause)
        time.sleep(pause)
    seconds = time.monotonic() - began
    raise OSError(errno.EIO, f"{where}: {reason}; tried {len(PAUSES) + 1} times in {seconds:.0f} s")

  def _reader(self, shard):
    """The file, open."""
    with self._lock:
      opening = self._opening[shard]
    with opening:  # one thread opens it, and no thread waits for another file
      with self._lock:
        if shard in self._open:
          self._open.move_to_end(shard)
          return self._open[shard]
      reader = ArrayRecordReader(self._files[shard], OPTIONS)
      if not reader.ok():
        raise RuntimeError("there is no such file, it is no array_record file, or this account may not read it")
      if reader.num_records() != self._lengths[shard]:
        raise RuntimeError(
          f"{amount(reader.num_records(), 'record')}, not the {self._lengths[shard]} of dataset_info.json"
        )
      with self._lock:
        self._open[shard] = reader
        if len(self._open) > OPEN:
          self._open.popitem(last=False)
      return reader

  def _forget(self, shard):
    with self._lock:
      self._open.pop(shard, None)
