"""The records of a corpus: which images are left out and why, and how what stays is written."""

import collections
import contextlib
import dataclasses
import errno
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import cv2

from vit_jax import disk, files
from vit_jax.corpora import conversion, duplicates
from vit_jax.data import decoding, order
from vit_jax.data.images import OF_A_FILE, text_of
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, amount

# TFDS's own option, a record at a time, without compression: image files have theirs, and writing takes 0.36 ms a file
# of 90 kB instead of 0.63.
ARRAY_RECORD = "group_size:1,uncompressed"
TOGETHER = order.SIZE * order.WINDOW  # records that are read at one go: the blocks of a window of `plan.ordered`


class Record(NamedTuple):
  """What became of a record of the input: what is written of it, or why it is left out."""

  name: str  # of the input's record
  data: bytes | None = None  # serialised, None where it is left out
  labels: tuple[int, ...] = ()
  done: tuple[str, ...] = ()  # to its image
  rejected: str | None = None  # why
  duplicate: dict | None = None  # of which test image


@dataclasses.dataclass(frozen=True)
class Maker:
  """Makes records for a corpus: a resource of one process, as the input is open in it."""

  source: Source
  size: int | None = None
  index: duplicates.Index | None = None  # of the images that are left out
  large: Any = dataclasses.field(default_factory=contextlib.nullcontext)  # held while a large image is decoded

  def record(self, number: int, read: Callable[[], tuple]) -> Record:
    """One record; `read` gives its file and label.

    Raises ConfigError for trouble with memory, or the disk or bucket of the input, which may be gone with the next try.
    """
    name = self.source.identify(number)
    try:
      data, label = read()
      labels = self._checked(label)
      converted = conversion.convert(data, self.size, self.large)
      if self.index and (match := self.index.match(converted.pixels)):
        return Record(name, duplicate=match | duplicates.shown(converted.pixels))
      return Record(name, serialised(converted.data, labels, name), labels, converted.done)
    except ConfigError:
      raise
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      if decoding.no_memory(error):
        raise self._no_memory(number) from error
      if isinstance(error, OSError) and error.errno not in OF_A_FILE:
        reason = f"{self.source.place(number)}: {text_of(error)}; see whether its disk or bucket is there"
        raise ConfigError(reason) from error
      return Record(name, rejected=text_of(error))

  def records(self, numbers: Iterable[int]) -> Iterator[Record]:
    """Records by their numbers, in this order; neighbours are read together where that is cheaper."""
    if self.source.runs is None:
      for number in numbers:
        yield self.record(number, lambda number=number: self.source.read(number))
      return
    waiting = []
    for number in numbers:
      waiting.append(number)
      if len(waiting) == TOGETHER:
        yield from self._together(waiting)
        waiting = []
    yield from self._together(waiting)

  def _together(self, numbers):
    """Records of which many are neighbours."""
    stored = {}
    for first, stop in neighbours(numbers):
      try:
        stored |= zip(range(first, stop), self.source.runs.read(first, stop), strict=True)
      except MemoryError as error:
        raise self._no_memory(first) from error
      except OSError as error:
        if error.errno not in OF_A_FILE:
          raise ConfigError(f"{self.source.place(first)}: {text_of(error)}; see whether it is there") from error
    for number in numbers:  # of a block that is damaged each record is tried alone
      data = stored.pop(number, None)
      yield self.record(
        number,
        lambda number=number, data=data: self.source.read(number) if data is None else self.source.runs.parse(data),
      )

  def _no_memory(self, number):
    return ConfigError(f"{self.source.place(number)}: not enough memory; take fewer --processes")

  def _checked(self, label):
    labels, classes = label if isinstance(label, tuple) else (label,), len(self.source.classes)
    for each in labels:
      if not 0 <= each < classes:
        raise ValueError(f"label {each} is not one of {amount(classes, 'class', 'classes')}")
    if self.source.labels == 1 and len(labels) != 1:
      raise ValueError(f"{amount(len(labels), 'label')}, where each image has one")
    return labels


def neighbours(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
  """(first, stop) of the runs of neighbouring numbers, at most a block of them each."""
  first = stop = None
  for number in sorted(set(numbers)):
    if first is not None and (number != stop or stop - first == order.SIZE):
      yield first, stop
      first = None
    first, stop = number if first is None else first, number + 1
  if first is not None:
    yield first, stop


def serialised(image: bytes, labels: tuple[int, ...], name: str) -> bytes:
  """A record as TFDS has it, an Example of image, label and id; always the same bytes."""
  from tensorflow_datasets.proto import tf_example_pb2

  example = tf_example_pb2.Example()
  values = example.features.feature
  values["image"].bytes_list.value.append(image)
  values["label"].int64_list.value.extend(labels)
  values["id"].bytes_list.value.append(_encoded(name))
  return example.SerializeToString(deterministic=True)


def _encoded(name):
  """A name as bytes: those of a file that is called so, and of halves of pairs, which JSON may have, as UTF-8 would."""
  try:
    return os.fsencode(name)
  except UnicodeEncodeError:
    return name.encode("utf-8", "surrogatepass")


def write(path: pathlib.Path, records: Iterable[bytes]) -> None:
  """Replaces an array_record file, see `files.replacing`. OSError, with the number, where it cannot be written."""
  from array_record.python.array_record_module import ArrayRecordWriter

  with files.replacing(path) as partial, disk.writing(path):
    writer = None
    try:
      writer = ArrayRecordWriter(str(partial), ARRAY_RECORD)
      for record in records:
        writer.write(record)
    except RuntimeError as error:
      raise _numbered(error) from error
    finally:
      if writer is not None:
        try:
          writer.close()
        except RuntimeError as error:
          raise _numbered(error) from error


def _numbered(error):
  """An error of array_record, which says what went wrong in words of the C library, with its number."""
  text = str(error)
  number = next((number for number in errno.errorcode if f" {os.strerror(number)};" in text), errno.EIO)
  return OSError(number, os.strerror(number) if number != errno.EIO else text)


@dataclasses.dataclass
class Report:
  """What is known of records that were made: counts, and lines of those that were left out."""

  records: int = 0
  bytes: int = 0
  size: int = 0  # bytes of their file; 0 before it is written
  classes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  done: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  rejected: list[dict] = dataclasses.field(default_factory=list)
  duplicates: list[dict] = dataclasses.field(default_factory=list)

  def add(self, record: Record) -> None:
    """Counts one."""
    if record.data is not None:
      self.records += 1
      self.bytes += len(record.data)
      self.classes.update(record.labels)
      self.done.update(record.done)
    elif record.duplicate:
      self.duplicates.append({"file": record.name} | record.duplicate)
    else:
      self.rejected.append({"file": record.name, "reason": record.rejected})

  def plain(self) -> dict:
    """As JSON has it."""
    return vars(self) | {"classes": sorted(self.classes.items()), "done": dict(sorted(self.done.items()))}

  @classmethod
  def read(cls, values: dict) -> "Report":
    """What `plain` gave."""
    counters = {key: collections.Counter(dict(values[key])) for key in ("classes", "done")}
    return cls(**values | counters)


def total(reports: Iterable[Report]) -> Report:
  """Several reports as one, their lines in the same order."""
  result = Report()
  for report in reports:
    result.records += report.records
    result.bytes += report.bytes
    result.classes += report.classes
    result.done += report.done
    result.rejected += report.rejected
    result.duplicates += report.duplicates
  return result
