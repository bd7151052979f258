"""Images of Parquet files by record number. Row groups are read once for many threads, and the last ones are cached."""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from vit_jax.data import local_files
from vit_jax.data.readers import index, listing
from vit_jax.schema import ConfigError

KEPT = 2**28  # bytes of row groups that remain in memory, in addition to the last one
FOOTERS = 64  # number of files with footers that remain in memory


class RowGroups:
  """The images of the rows of Parquet files, numbered consecutively in all files. Caches the last row groups.

  Many threads may use it at the same time. One thread reads a row group, and the others wait for it.

  Args:
    column: path of the image column, such as ("image", "bytes").
    files: the files.
    arrays: for each file, "rows" with the number of rows of each row group.
  """

  def __init__(self, column: tuple[str, ...], files: listing.Files, arrays: Sequence[index.Arrays]) -> None:
    self._column, self.files = column, files
    self._firsts = index.compute_firsts(each["rows"].sum() for each in arrays)
    self._groups = [index.compute_firsts(each["rows"]) for each in arrays]
    self._kept: collections.OrderedDict[tuple[int, int], Future[Any]] = collections.OrderedDict()
    self._lock = threading.Lock()
    self._footer = functools.lru_cache(maxsize=FOOTERS)(lambda file: open_parquet(files, file).metadata)

  def __len__(self) -> int:
    return self._firsts[-1]

  def locate(self, record: int) -> tuple[int, int]:
    """Returns (file, row) of a record."""
    return index.locate(self._firsts, record)

  def read(self, first: int, stop: int) -> list[bytes]:
    """Returns the images of neighbouring records.

    Args:
      first: number of the first record.
      stop: number after the last record.

    Raises:
      OSError: if a row group cannot be read, or if an image is missing or larger than `local_files.LARGEST`.
    """
    result = []
    for record in range(first, stop):
      file, number = self.locate(record)
      group, number = index.locate(self._groups[file], number)
      data = self._group(file, group)[number].as_py()
      if data is None:
        raise OSError("its row contains no image bytes. Store the images in the files, not their paths")
      if len(data) > local_files.LARGEST:
        raise OSError(f"it has {len(data):,} bytes. Allowed: {local_files.LARGEST:,}")
      result.append(data)
    return result

  def _group(self, file: int, group: int) -> Any:
    """Returns the column of a row group."""
    with self._lock:
      mine = (file, group) not in self._kept
      future = self._kept.setdefault((file, group), Future())
      self._kept.move_to_end((file, group))
    if mine:
      try:
        future.set_result(self._read(file, group))
      except (OSError, MemoryError) as error:
        future.set_exception(error)
      finally:
        if not _is_read(future):  # a later attempt may succeed
          with self._lock:
            self._kept.pop((file, group), None)
          future.cancel()
      self._forget()
    return future.result()

  def _forget(self) -> None:
    """Removes the oldest row groups from the cache until the remaining ones fit."""
    with self._lock:
      done = [(key, future.result().nbytes) for key, future in self._kept.items() if _is_read(future)]
      size = sum(bytes_ for _, bytes_ in done)
      for key, bytes_ in done[:-1]:
        if size <= KEPT:
          break
        del self._kept[key]
        size -= bytes_

  def _read(self, file: int, group: int) -> Any:
    import pyarrow.compute

    where = f"{self.files.path(file)}, row group {group}"
    with convert_errors(lambda text: OSError(f"{where}, cannot be read: {text}"), MemoryError):
      with open_parquet(self.files, file, self._footer(file)) as table:
        rows = table.read_row_group(group, columns=[".".join(self._column)], use_threads=False)
      column = rows.column(self._column[0])  # the result also contains a column called "image.bytes", if there is one
      for field in self._column[1:]:
        column = pyarrow.compute.struct_field(column, field)
      return column


def _is_read(future: Future[Any]) -> bool:
  return future.done() and future.exception() is None


def open_parquet(files: listing.Files, file: int, footer: object = None) -> Any:
  """Opens a Parquet file. Reading a column from a bucket needs one request.

  Args:
    files: the files.
    file: number of the file.
    footer: metadata of the file, if already known, to avoid reading them again.
  """
  import pyarrow
  from pyarrow import parquet as format_

  source = pyarrow.PythonFile(files.open_unbuffered(file), mode="r") if files.remote else files.path(file)
  return format_.ParquetFile(source, metadata=footer, pre_buffer=files.remote)


@contextlib.contextmanager
def convert_errors(error_of: Callable[[str], Exception], besides: type[Exception] = ConfigError) -> Iterator[None]:
  """Converts errors of pyarrow for damaged files.

  Errors of the disk or the bucket, which have an errno, are not converted.

  Args:
    error_of: function from a text to the exception to raise.
    besides: type of exceptions that are not converted.
  """
  import pyarrow

  try:
    yield
  except besides:
    raise
  except (pyarrow.ArrowException, ValueError, OSError) as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise
    raise error_of(" ".join(str(error).split())[:300]) from error
