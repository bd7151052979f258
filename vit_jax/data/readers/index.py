"""Indices of files: positions of records, found by a single scan of a file, and a local cache for the results."""

import bisect
import hashlib
import io
import itertools
import logging
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vit_jax.data import local_files
from vit_jax.data.readers import listing
from vit_jax.storage.files import atomic_write, get_local_cache_directory

VERSION = 7  # version of the cache entries and of the checks during a scan
# Time in seconds since the last change of a file before its scan is cached. Some file systems have a time resolution
# of 2 s. A second change within this interval would not change the modification time.
SETTLED = 2.0
LARGE = 2**30  # total size of files in bytes above which a message announces the scan
DIGEST = 32  # bytes of the SHA-256 digest at the start of a cache entry, which detects any damage
BETWEEN = 2**16  # largest gap in bytes between two records that are read with one request
Arrays = dict[str, np.ndarray]


def load_or_scan(kind: str, files: listing.Files, scan: Callable[[int], Arrays], about: object = None) -> list[Arrays]:
  """Returns the result of `scan` for each file, from the cache if the file has not changed since the last scan.

  The key of a cache entry contains the version of the file, see `listing.Files.version`. Two files never share an
  entry. Two versions of a file do not share an entry either.

  Args:
    kind: name of the result, which is part of the key.
    files: the files to scan. Several files are scanned in parallel.
    scan: function from a file number to arrays by name.
    about: further values on which the arrays depend.

  Returns:
    The arrays of each file, in order.
  """
  folder = get_local_cache_directory("index")

  def load_file(file: int) -> Arrays:
    version = files.version(file)
    key = repr((VERSION, kind, about, version))
    kept = folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.index"
    if (arrays := _read_cache(kept)) is None:
      arrays = scan(file)
      if files.is_settled(file, SETTLED) and files.version(file) == version:
        _write_cache(kept, arrays)
    return arrays

  size = sum(map(files.size, range(len(files.names))))
  if size > LARGE:
    logging.info("%s: indexing %d files of %s, %.0f GB, once", files.root, len(files.names), kind, size / 1e9)
  return files.map_files(load_file)


def _read_cache(kept: pathlib.Path) -> Arrays | None:
  """Returns the arrays of a cache entry, or None if it is missing or damaged."""
  try:
    digest, data = (whole := kept.read_bytes())[:DIGEST], whole[DIGEST:]
  except OSError:
    return None
  if hashlib.sha256(data).digest() != digest:
    return None
  with np.load(io.BytesIO(data), allow_pickle=False) as stored:
    return dict(stored)


def _write_cache(kept: pathlib.Path, arrays: Arrays) -> None:
  data = io.BytesIO()
  np.savez(data, **arrays)  # type: ignore[arg-type]  # NumPy before 2.1 stores `allow_pickle` as an array
  try:
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write the same entry, each to its own temporary file. A damaged entry is created again.
    with atomic_write(kept) as partial:
      partial.write_bytes(hashlib.sha256(data.getbuffer()).digest() + data.getbuffer())
  except OSError as error:
    logging.warning("%s cannot be stored (%s): the next run must index the files again", kept, error)


def compute_firsts(lengths: Iterable[int]) -> list[int]:
  """Returns the first record number of each of several consecutive files, followed by the total number of records."""
  return [0, *itertools.accumulate(map(int, lengths))]


def locate(firsts: Sequence[int], record: int) -> tuple[int, int]:
  """Returns (file, record number in the file) of a record.

  Args:
    firsts: result of the function `compute_firsts`.
    record: record number in all files.
  """
  file = bisect.bisect_right(firsts, record) - 1
  return file, record - firsts[file]


class Extents:
  """Records of files as bytes, numbered consecutively in all files. Neighbouring records are read with one request.

  Args:
    files: the files.
    arrays: for each file, "starts" and "sizes" of its records in bytes.
  """

  def __init__(self, files: listing.Files, arrays: Sequence[Arrays]) -> None:
    self.files = files
    self._arrays = [(each["starts"], each["sizes"]) for each in arrays]
    self._firsts = compute_firsts(len(starts) for starts, _ in self._arrays)

  def __len__(self) -> int:
    return self._firsts[-1]

  def locate(self, record: int) -> tuple[int, int]:
    """Returns (file, record number in the file) of a record."""
    return locate(self._firsts, record)

  def file(self, record: int) -> str:
    """Returns the path of the file that contains a record."""
    return self.files.path(self.locate(record)[0])

  def read(self, first: int, stop: int) -> list[bytes]:
    """Returns neighbouring records.

    Args:
      first: number of the first record.
      stop: number after the last record.

    Raises:
      OSError: if a file cannot be read, or if a record is larger than `local_files.LARGEST`.
    """
    result = []
    while first < stop:
      file, number = self.locate(first)
      starts, sizes = self._arrays[file]
      starts, sizes = (each[number : number + stop - first].tolist() for each in (starts, sizes))
      if max(sizes) > local_files.LARGEST:
        size = next(size for size in sizes if size > local_files.LARGEST)
        raise OSError(f"it has {size:,} bytes. Allowed: {local_files.LARGEST:,}")
      result += self._read_pieces(file, starts, sizes)
      first += len(starts)
    return result

  def _read_pieces(self, file: int, starts: np.ndarray, sizes: np.ndarray) -> list[bytes]:
    """Reads pieces of a file. Pieces with small gaps share one read."""
    result, low = [], 0
    for i in range(1, len(starts) + 1):
      if i == len(starts) or not 0 <= starts[i] - starts[i - 1] - sizes[i - 1] <= BETWEEN:
        data = self.files.read(file, starts[low], starts[i - 1] + sizes[i - 1])
        result += [
          data[s - starts[low] : s - starts[low] + n] for s, n in zip(starts[low:i], sizes[low:i], strict=True)
        ]
        low = i
    return result
