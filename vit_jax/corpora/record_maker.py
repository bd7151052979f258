"""Creation of the records of a corpus: rejection of bad images, removal of duplicates, and writing."""

import collections
import contextlib
import dataclasses
import errno
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import cv2

from vit_jax.corpora import conversion, duplicates
from vit_jax.data import decoding, order
from vit_jax.data.dataset_row import Label
from vit_jax.data.images import OF_A_FILE, describe_image_error
from vit_jax.data.sources import Source, SpanReader
from vit_jax.schema import ConfigError, format_amount
from vit_jax.storage import errors, files

# TFDS's own options: one record per group, without compression, because image files are compressed. Writing a file of
# 90 kB takes 0.36 ms instead of 0.63 ms.
ARRAY_RECORD = "group_size:1,uncompressed"
TOGETHER = (
  order.SIZE * order.WINDOW
)  # records that are read at a time: the blocks of a window of `plan.shuffle_records`


class CorpusRecord(NamedTuple):
  """The result for a record of the input: the record to write, or the reason for its omission.

  Attributes:
    name: identifier of the input's record.
    data: serialized record, or None if it is omitted.
    labels: classes of the image.
    done: changes to the image.
    rejected: the reason for a rejection, or None.
    duplicate: the test image that equals this image, or None.
  """

  name: str
  data: bytes | None = None
  labels: tuple[int, ...] = ()
  done: tuple[str, ...] = ()
  rejected: str | None = None
  duplicate: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class RecordMaker:
  """A maker of records for a corpus, used by one process because it keeps the input open.

  Args:
    source: the input.
    size: see `conversion.convert_image`.
    index: index of the test images to omit, or None.
    large: a lock that is held while a large image is decoded.
  """

  source: Source
  size: int | None = None
  index: duplicates.HashIndex | None = None
  large: Any = dataclasses.field(default_factory=contextlib.nullcontext)

  def record(self, number: int, read: Callable[[], tuple[bytes, Label]]) -> CorpusRecord:
    """Makes one record.

    Args:
      number: number of the record in the input.
      read: returns the file and the label of the record.

    Raises:
      ConfigError: memory is not sufficient, or the input's disk or bucket failed. A new attempt may succeed.
    """
    name = self.source.identify(number)
    try:
      data, label = read()
      labels = self._check_label(label)
      converted = conversion.convert_image(data, self.size, self.large)
      if self.index and (match := self.index.match(converted.pixels)):
        return CorpusRecord(name, duplicate=match | duplicates.make_thumbnail(converted.pixels))
      return CorpusRecord(name, serialise_record(converted.data, labels, name), labels, converted.done)
    except ConfigError:
      raise
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      if decoding.is_out_of_memory(error):
        raise self._create_memory_error(number) from error
      if isinstance(error, OSError) and error.errno not in OF_A_FILE:
        place = self.source.place(number)
        raise ConfigError(
          f"{place}: {describe_image_error(error, place)}. Check that its disk or bucket is reachable"
        ) from error
      return CorpusRecord(name, rejected=describe_image_error(error))

  def make_records(self, numbers: Iterable[int]) -> Iterator[CorpusRecord]:
    """Yields records by their numbers, in the given order.

    Neighbouring records are read together if this is cheaper for the input.

    Args:
      numbers: numbers of the records in the input.
    """
    runs = self.source.runs
    if runs is None:
      for number in numbers:
        yield self.record(number, functools.partial(self.source.read, number))
      return
    waiting = []
    for number in numbers:
      waiting.append(number)
      if len(waiting) == TOGETHER:
        yield from self._read_together(runs, waiting)
        waiting = []
    yield from self._read_together(runs, waiting)

  def _read_together(self, runs: SpanReader, numbers: Sequence[int]) -> Iterator[CorpusRecord]:
    """Yields records, and reads runs of neighbouring numbers together."""
    stored = {}
    for first, stop in group_neighbours(numbers):
      try:
        stored |= zip(range(first, stop), runs.read(first, stop), strict=True)
      except MemoryError as error:
        raise self._create_memory_error(first) from error
      except OSError as error:
        if error.errno not in OF_A_FILE:
          place = self.source.place(first)
          raise ConfigError(f"{place}: {describe_image_error(error, place)}. Check that it exists") from error
    for number in numbers:  # the records of a damaged block are tried one by one
      data = stored.pop(number, None)
      yield self.record(
        number,
        functools.partial(self.source.read, number) if data is None else functools.partial(runs.parse, data),
      )

  def _create_memory_error(self, number: int) -> ConfigError:
    return ConfigError(f"{self.source.place(number)}: not enough memory. Use fewer --processes")

  def _check_label(self, label: Label) -> tuple[int, ...]:
    labels, classes = label if isinstance(label, tuple) else (label,), len(self.source.classes)
    for each in labels:
      if not 0 <= each < classes:
        raise ValueError(f"label {each} is not one of {format_amount(classes, 'class', 'classes')}")
    if self.source.labels == 1 and len(labels) != 1:
      raise ValueError(f"{format_amount(len(labels), 'label')}. Allowed: one label per image")
    return labels


def group_neighbours(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
  """Yields (first, stop) for runs of neighbouring numbers. A run has at most the length of a block.

  Args:
    numbers: numbers in any order.
  """
  first: int | None = None  # of the current run
  stop = 0
  for number in sorted(set(numbers)):
    if first is not None and (number != stop or stop - first == order.SIZE):
      yield first, stop
      first = None
    if first is None:
      first = number
    stop = number + 1
  if first is not None:
    yield first, stop


def serialise_record(image: bytes, labels: tuple[int, ...], name: str) -> bytes:
  """Returns a record in TFDS's form: an Example of image, label and id. Equal arguments result in equal bytes.

  Args:
    image: bytes of the image file.
    labels: classes of the image.
    name: identifier of the record.
  """
  from tensorflow_datasets.proto import tf_example_pb2

  example = tf_example_pb2.Example()
  values = example.features.feature
  values["image"].bytes_list.value.append(image)
  values["label"].int64_list.value.extend(labels)
  values["id"].bytes_list.value.append(_encode_name(name))
  return example.SerializeToString(deterministic=True)


def _encode_name(name: str) -> bytes:
  """Returns a name as bytes. The bytes of file names are restored, and unpaired surrogates from JSON are kept."""
  try:
    return os.fsencode(name)
  except UnicodeEncodeError:
    return name.encode("utf-8", "surrogatepass")


def write_records(path: pathlib.Path, records: Iterable[bytes]) -> None:
  """Replaces an array_record file, see `files.atomic_write`.

  Args:
    path: path of the file.
    records: serialized records.

  Raises:
    OSError: the file cannot be written.
  """
  from array_record.python.array_record_module import ArrayRecordWriter

  with files.atomic_write(path) as partial, errors.add_file_name(path):
    writer = None
    try:
      writer = ArrayRecordWriter(str(partial), ARRAY_RECORD)
      for record in records:
        writer.write(record)
    except RuntimeError as error:
      raise _convert_error(error) from error
    finally:
      if writer is not None:
        try:
          writer.close()
        except RuntimeError as error:
          raise _convert_error(error) from error


def _convert_error(error: Exception) -> OSError:
  """Converts an error of array_record, which contains a message of the C library, to an OSError with its number."""
  text = str(error)
  number = next((number for number in errno.errorcode if f" {os.strerror(number)};" in text), errno.EIO)
  return OSError(number, os.strerror(number) if number != errno.EIO else text)


@dataclasses.dataclass
class ShardReport:
  """Counts of the records that were made, and descriptions of omitted ones.

  Attributes:
    records: number of records that were written.
    bytes: total size of these records.
    size: size of their file in bytes, or 0 before it is written.
    classes: number of images per class.
    done: number of images per change.
    rejected: {"file", "reason"} of each rejected record.
    duplicates: the file and the test image of each duplicate.
  """

  records: int = 0
  bytes: int = 0
  size: int = 0
  classes: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter[int])
  done: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter[str])
  rejected: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  duplicates: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  def add(self, record: CorpusRecord) -> None:
    """Counts a record."""
    if record.data is not None:
      self.records += 1
      self.bytes += len(record.data)
      self.classes.update(record.labels)
      self.done.update(record.done)
    elif record.duplicate:
      self.duplicates.append({"file": record.name} | record.duplicate)
    else:
      self.rejected.append({"file": record.name, "reason": record.rejected})

  def to_json(self) -> dict[str, Any]:
    """Returns the report as JSON values."""
    return vars(self) | {"classes": sorted(self.classes.items()), "done": dict(sorted(self.done.items()))}

  @classmethod
  def read(cls, values: dict[str, Any]) -> "ShardReport":
    """Returns the report that `to_json` converted to JSON values."""
    counters = {key: collections.Counter(dict(values[key])) for key in ("classes", "done")}
    return cls(**values | counters)


def sum_reports(reports: Iterable[ShardReport]) -> ShardReport:
  """Returns the sum of several reports. Lists of omitted records are joined in order."""
  result = ShardReport()
  for report in reports:
    result.records += report.records
    result.bytes += report.bytes
    result.classes += report.classes
    result.done += report.done
    result.rejected += report.rejected
    result.duplicates += report.duplicates
  return result
