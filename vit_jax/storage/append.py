"""Files that grow by appended bytes, on a disk or in a bucket."""

import itertools
import pathlib
import time
from collections.abc import Callable

from vit_jax.storage import errors, files, paths


class AppendFile:
  """A file on a disk that is open for appending. Readers see the appended bytes at once.

  Args:
    path: the file. It is created if it does not exist.
  """

  def __init__(self, path: pathlib.Path) -> None:
    self._path, self._file = path, open(path, "ab", buffering=0)

  def add(self, data: bytes) -> None:
    """Appends bytes.

    Raises:
      OSError: the file was removed or cannot be written. The error contains the name of the file.
    """
    with errors.add_file_name(self._path):
      errors.check_there(self._path, self._file.fileno())
      while data:  # a disk that is almost full accepts only the first bytes
        data = data[self._file.write(data) :]

  def flush(self) -> None:
    """Does nothing, because `add` writes at once."""

  def close(self) -> None:
    """Closes the file."""
    with errors.add_file_name(self._path):
      self._file.close()


class BucketAppender:
  """A sequence of objects in a bucket to which bytes are appended: `path`, `path`.0001 and so on.

  Objects in a bucket cannot grow, so the last object is written again as a whole. Appended bytes are in the bucket
  after `flush`. `add` calls `flush` at most every `PAUSE` seconds. This limits the traffic to 100 kB and 0.1 requests
  per second, for runs of any length.

  Args:
    path: the first object. Bytes are appended after the content of existing objects.
  """

  SIZE, PAUSE = 2**20, 10.0  # bytes per object; seconds (a bucket accepts one write per second and object)

  def __init__(self, path: pathlib.Path) -> None:
    self._path, self._content, self._new = path, bytearray(), False
    self._number = next(number for number in itertools.count() if not self._object(number + 1).exists())
    self._content += files.read_if_exists(self._object(self._number)) or b""
    self._written = time.monotonic()

  def _object(self, number: int) -> pathlib.Path:
    return _name_object(self._path, number)

  def keep(self, chosen: Callable[[bytes], bytes]) -> None:
    """Filters the content, starting at the last object. Stops at the first object of which some content is kept.

    Objects without content are removed, except the first object.

    Args:
      chosen: function from the content of an object to the bytes to keep.
    """
    while True:
      kept = chosen(bytes(self._content))
      if kept != self._content:
        self._content, self._new = bytearray(kept), True
      if kept or not self._number:
        return self.flush()
      self._object(self._number).unlink(missing_ok=True)
      self._number -= 1
      self._content, self._new = bytearray(files.read_if_exists(self._object(self._number)) or b""), False

  def add(self, data: bytes) -> None:
    """Appends bytes.

    Raises:
      OSError: the bucket refuses the bytes, or fails for longer than `buckets.get_patience`.
    """
    if len(self._content) >= self.SIZE:
      self.flush()
      self._number, self._content = self._number + 1, bytearray()
    self._content += data
    self._new = True
    if time.monotonic() - self._written >= self.PAUSE:
      self.flush()

  def flush(self) -> None:
    """Writes the appended bytes to the bucket."""
    if self._new:
      path = self._object(self._number)
      with errors.add_file_name(path):
        path.write_bytes(bytes(self._content))
      self._new, self._written = False, time.monotonic()

  def close(self) -> None:
    """Writes the appended bytes to the bucket, like `flush`."""
    self.flush()


def read_appended(path: pathlib.Path) -> bytes:
  """Returns the content of a file on a disk, or of a sequence of objects in a bucket. A missing file has no content.

  Args:
    path: the file, or the first object.
  """
  objects = (files.read_if_exists(_name_object(path, number)) for number in itertools.count())
  return b"".join(content for content in itertools.takewhile(lambda content: content is not None, objects) if content)


def _name_object(path: pathlib.Path, number: int) -> pathlib.Path:
  return path.with_name(f"{path.name}.{number:04d}") if number else path


def open_append(path: pathlib.Path) -> AppendFile | BucketAppender:
  """Opens a file on a disk or in a bucket for appending."""
  return BucketAppender(path) if paths.is_in_bucket(path) else AppendFile(path)
