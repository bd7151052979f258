"""Records of array_record files in a bucket. Neighbours are read with one request, and files are opened on demand."""

import bisect
import collections
import errno
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from array_record.python.array_record_module import ArrayRecordReader

from vit_jax.schema import format_amount

# Neighbours of up to 4 MiB are read with one request, and about 30 kB of memory remain in use. TFDS's own options are
# for local disks and cause one request per record. Opening a file takes one request, for the last MiB, which contains
# the index.
OPTIONS = "readahead_buffer_size:4194304,max_parallelism:1"
# Number of files that are open at the same time. An open file needs 10 bytes per record: 3 GB for 300 million records
# in 3,000 files, for any duration of a run. If there are more files, the least recently used ones are closed. Most
# runs of neighbours then require two requests.
OPEN = 4096
# Google's client itself retries for 15 minutes if a bucket does not answer or answers 429 or 503. These pauses are
# for errors that it does not retry: incomplete answers, and files that are temporarily reported as missing.
PAUSES = (0.1, 0.5, 2.0, 8.0)  # seconds


class Shards:
  """The records of a split by number. Many threads may use it at the same time.

  Files are opened when they are needed.

  Args:
    files: paths of the files.
    lengths: number of records of each file.
  """

  def __init__(self, files: Sequence[str], lengths: Sequence[int]) -> None:
    self._files, self._lengths = list(files), list(lengths)
    self._starts = [0, *itertools.accumulate(lengths)]
    self._open: collections.OrderedDict[int, ArrayRecordReader] = collections.OrderedDict()
    self._opening = collections.defaultdict(threading.Lock)
    self._lock = threading.Lock()
    self._said: set[int] = set()  # files with a logged warning about a retry

  def read(self, first: int, stop: int) -> list[bytes]:
    """Returns neighbouring records, with one request for each file that contains some of them.

    Args:
      first: number of the first record.
      stop: number after the last record.

    Raises:
      OSError: if a file cannot be read. The error has an errno unless the file is damaged.
    """
    found = []
    while first < stop:
      shard = bisect.bisect_right(self._starts, first) - 1
      last = min(stop, self._starts[shard + 1])
      found += self._read_with_retry(shard, first - self._starts[shard], last - self._starts[shard])
      first = last
    return found

  def file(self, record: int) -> str:
    """Returns the path of the file that contains a record."""
    return self._files[bisect.bisect_right(self._starts, record) - 1]

  def _read_with_retry(self, shard: int, first: int, stop: int) -> list[bytes]:
    """Returns records of one file. Opens the file again and retries after an error that may be temporary."""
    start_time = time.monotonic()
    for pause in (*PAUSES, None):
      try:
        reader = self._reader(shard)
        found = reader.read(first, stop)
        assert len(found) == stop - first
        self._said.discard(shard)
        return found
      except (RuntimeError, ValueError, IndexError) as error:  # errors of array_record
        self._forget(shard)
        reason, damaged = str(error).splitlines()[0], "orrupt" in str(error)
      where = f"{self._files[shard]}, records {first} to {stop - 1}"
      if damaged and pause != PAUSES[0]:  # an incomplete answer can cause the same error
        raise OSError(f"{where}: {reason}")
      if pause is not None:
        if shard not in self._said:  # warns once, because many threads read records of the file
          self._said.add(shard)
          logging.warning("%s: %s. Retrying in %.1f s", where, reason, pause)
        time.sleep(pause)
    seconds = time.monotonic() - start_time
    raise OSError(errno.EIO, f"{where}: {reason}; tried {len(PAUSES) + 1} times in {seconds:.0f} s")

  def _reader(self, shard: int) -> Any:
    """Returns the open file."""
    with self._lock:
      opening = self._opening[shard]
    with opening:  # one thread opens a file, and threads that need other files do not wait
      with self._lock:
        if shard in self._open:
          self._open.move_to_end(shard)
          return self._open[shard]
      reader = ArrayRecordReader(self._files[shard], OPTIONS)
      if not reader.ok():
        raise RuntimeError("the file does not exist, is not an array_record file, or cannot be read by this account")
      if reader.num_records() != self._lengths[shard]:
        raise RuntimeError(
          f"{format_amount(reader.num_records(), 'record')}, not the {self._lengths[shard]} of dataset_info.json"
        )
      with self._lock:
        self._open[shard] = reader
        if len(self._open) > OPEN:
          self._open.popitem(last=False)
      return reader

  def _forget(self, shard: int) -> None:
    with self._lock:
      self._open.pop(shard, None)
