"""Positions of the records in files: found by reading a file once, and kept in this machine's cache."""

import bisect
import hashlib
import io
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vit_jax.data import local_files
from vit_jax.data.readers import listing
from vit_jax.files import local_cache, replacing

VERSION = 7  # of the cache entries and of the checks during a scan
# Seconds since the last change of a file before its scan is kept. Some file systems count times in steps of up to 2 s,
# so that a second change within a step leaves the time as it is.
SETTLED = 2.0
LARGE = 2**30  # bytes of files from which on it is said that they are read
DIGEST = 32  # bytes of SHA-256, in front of what is kept: any damage is seen, whatever the format makes of it
BETWEEN = 2**16  # bytes between two neighbours, at most, that are read to spare a request
Arrays = dict[str, np.ndarray]


def made(kind: str, files: listing.Files, scan: Callable[[int], Arrays], about: object = None) -> list[Arrays]:
  """Returns what `scan` finds in each file, from the cache if the file has not changed since it was scanned.

  The cache is keyed by the version of a file, see `listing.Files.version`. Different files, and different contents of
  one file, never share an entry.

  Args:
    kind: name of the result, part of the key.
    files: the files to scan, several at a time.
    scan: file number -> arrays by name.
    about: other values on which the arrays depend.

  Returns:
    The arrays of each file, in order.
  """
  folder = local_cache("index")

  def one(file):
    version = files.version(file)
    key = repr((VERSION, kind, about, version))
    kept = folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.index"
    if (arrays := _read(kept)) is None:
      arrays = scan(file)
      if files.settled(file, SETTLED) and files.version(file) == version:
        _keep(kept, arrays)
    return arrays

  size = sum(map(files.size, range(len(files.names))))
  if size > LARGE:
    logging.info("%s: %d files of %s, %.0f GB, are looked through once", files.root, len(files.names), kind, size / 1e9)
  return files.each(one)


def _read(kept):
  """The arrays of a file; None where it is not there or not what was written: they are made anew."""
  try:
    digest, data = (whole := kept.read_bytes())[:DIGEST], whole[DIGEST:]
  except OSError:
    return None
  if hashlib.sha256(data).digest() != digest:
    return None
  with np.load(io.BytesIO(data), allow_pickle=False) as stored:
    return dict(stored)


def _keep(kept, arrays):
  data = io.BytesIO()
  np.savez(data, **arrays)
  try:
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Several processes of this machine may write the same, each to a file of its own; one that is damaged is made anew.
    with replacing(kept) as partial:
      partial.write_bytes(hashlib.sha256(data.getbuffer()).digest() + data.getbuffer())
  except OSError as error:
    logging.warning("%s cannot be kept (%s): the next run looks through the files again", kept, error)


def firsts(lengths: Iterable[int]) -> list[int]:
  """The first record of each of several files, one after the other, and how many there are in all."""
  return [0, *itertools.accumulate(map(int, lengths))]


def locate(firsts: Sequence[int], record: int) -> tuple[int, int]:
  """(file, number in it) of a record."""
  file = bisect.bisect_right(firsts, record) - 1
  return file, record - firsts[file]


class Extents:
  """Records of files as bytes, by number through all files; neighbours in a file with one request."""

  def __init__(self, files: listing.Files, arrays: Sequence[Arrays]):
    """`arrays` have "starts" and "sizes" of the records of each file, in bytes."""
    self.files = files
    self._arrays = [(each["starts"], each["sizes"]) for each in arrays]
    self._firsts = firsts(len(starts) for starts, _ in self._arrays)

  def __len__(self):
    return self._firsts[-1]

  def locate(self, record: int) -> tuple[int, int]:
    """(file, number in it) of a record."""
    return locate(self._firsts, record)

  def file(self, record: int) -> str:
    """The file that a record is in."""
    return self.files.path(self.locate(record)[0])

  def read(self, first: int, stop: int) -> list[bytes]:
    """Records `first` to `stop`. Raises OSError."""
    result = []
    while first < stop:
      file, number = self.locate(first)
      starts, sizes = self._arrays[file]
      starts, sizes = (each[number : number + stop - first].tolist() for each in (starts, sizes))
      if max(sizes) > local_files.LARGEST:
        size = next(size for size in sizes if size > local_files.LARGEST)
        raise OSError(f"it has {size:,} bytes; allowed: {local_files.LARGEST:,}")
      result += self._pieces(file, starts, sizes)
      first += len(starts)
    return result

  def _pieces(self, file, starts, sizes):
    """Pieces of a file: those that are close together with one read."""
    result, low = [], 0
    for i in range(1, len(starts) + 1):
      if i == len(starts) or not 0 <= starts[i] - starts[i - 1] - sizes[i - 1] <= BETWEEN:
        data = self.files.read(file, starts[low], starts[i - 1] + sizes[i - 1])
        result += [
          data[s - starts[low] : s - starts[low] + n] for s, n in zip(starts[low:i], sizes[low:i], strict=True)
        ]
        low = i
    return result
