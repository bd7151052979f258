"""Files to which lines are added, on a disk and in a bucket."""

import itertools
import pathlib
import time
from collections.abc import Callable

from vit_jax import disk, files, paths


class Lines:
  """A file of a disk to which bytes are added: a resource. A reader sees at once what was added."""

  def __init__(self, path: pathlib.Path):
    self._path, self._file = path, open(path, "ab", buffering=0)

  def add(self, data: bytes) -> None:
    """OSError, with the name of the file, for what cannot be written, or where the file is gone."""
    with disk.writing(self._path):
      disk.check_there(self._path, self._file.fileno())
      while data:  # of a full disk the first write takes a part
        data = data[self._file.write(data) :]

  def flush(self) -> None:
    """Nothing is kept back."""

  def close(self) -> None:
    """Ends the file."""
    with disk.writing(self._path):
      self._file.close()


class Chunks:
  """The same for a bucket, whose objects cannot grow: the last one is written anew, `path`, `path`.0001 and so on.

  What is added is in the bucket after `flush`; by itself that is done at most every `PAUSE` seconds, so that what it
  costs has a bound, however long the run is: 100 kB a second, 0.1 requests a second.
  """

  SIZE, PAUSE = 2**20, 10.0  # bytes of an object; seconds, and a bucket takes one write a second of an object

  def __init__(self, path: pathlib.Path):
    self._path, self._content, self._new = path, bytearray(), False
    self._number = next(number for number in itertools.count() if not self._object(number + 1).exists())
    self._content += files.content(self._object(self._number)) or b""
    self._written = time.monotonic()

  def _object(self, number):
    return self._path.with_name(f"{self._path.name}.{number:04d}") if number else self._path

  def keep(self, chosen: Callable[[bytes], bytes]) -> None:
    """Keeps of each object what `chosen` says, from the last one back to the first of which something is kept."""
    while True:
      kept = chosen(bytes(self._content))
      if kept != self._content:
        self._content, self._new = bytearray(kept), True
      if kept or not self._number:
        return self.flush()
      self._object(self._number).unlink(missing_ok=True)
      self._number -= 1
      self._content, self._new = bytearray(files.content(self._object(self._number)) or b""), False

  def add(self, data: bytes) -> None:
    """OSError where the bucket fails, or has failed for longer than `buckets.patience`."""
    if len(self._content) >= self.SIZE:
      self.flush()
      self._number, self._content = self._number + 1, bytearray()
    self._content += data
    self._new = True
    if time.monotonic() - self._written >= self.PAUSE:
      self.flush()

  def flush(self) -> None:
    """Brings what was added into the bucket."""
    if self._new:
      path = self._object(self._number)
      with disk.writing(path):
        path.write_bytes(bytes(self._content))
      self._new, self._written = False, time.monotonic()

  def close(self) -> None:
    """Ends with a flush."""
    self.flush()


def appended(path: pathlib.Path) -> Lines | Chunks:
  """A file to add to, on a disk or in a bucket."""
  return Chunks(path) if paths.in_bucket(path) else Lines(path)
