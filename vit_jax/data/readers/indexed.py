"""Sources of indexed files: required splits, classes, and records with their labels."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vit_jax.data import local_files, sources
from vit_jax.data.class_names import NameOrder
from vit_jax.data.dataset_row import Label
from vit_jax.data.readers import index, listing
from vit_jax.data.readers.labels import RecordLabels, describe_forms, pack_label, resolve, unpack_label
from vit_jax.data.sources import Fingerprint

# (files, file, its arrays, record in the file) -> description.
DescribeRecord = Callable[[listing.Files, int, index.Arrays, int], str]


def find_needed_splits(by_split: Mapping[str, object], splits: sources.Splits, split: str, shared: bool) -> list[str]:
  """Returns the splits that must be scanned to open one of them.

  Args:
    by_split: mapping with the names of all splits of the data.
    splits: split strings of the config.
    split: the split to open.
    shared: whether the classes are collected from all splits of the config. All these splits must then be scanned.
  """
  names = sources.parse_split_names([splits.spec(split), *(splits.specs().values() if shared else ())])
  everything = "all" in {splits.spec(split).strip()}
  return [name for name in by_split if name in names or everything]


@dataclasses.dataclass(frozen=True)
class IndexedRecords:
  """The records of a split with their labels.

  Attributes:
    extents: `index.Extents`, or an object with the same methods.
    arrays: arrays of each file.
    labels: labels of each file.
  """

  extents: index.Extents
  arrays: Sequence[index.Arrays]
  labels: Sequence[RecordLabels]

  def __len__(self) -> int:
    return len(self.extents)

  def locate(self, record: int) -> tuple[listing.Files, int, index.Arrays, int]:
    """Returns (files, file, its arrays, record number in the file) of a record."""
    file, number = self.extents.locate(record)
    return self.extents.files, file, self.arrays[file], number

  def label(self, record: int) -> int | tuple[int, ...]:
    """Returns the label of a record."""
    file, number = self.extents.locate(record)
    return self.labels[file][number]

  def run(self, first: int, stop: int) -> list[bytes]:
    """Returns neighbouring records, each `pack_label` with its label.

    Args:
      first: number of the first record.
      stop: number after the last record.
    """
    return [pack_label(self.label(i), data) for i, data in enumerate(self.extents.read(first, stop), first)]


def resolve_labels(
  parts: Mapping[str, tuple[listing.Files, Sequence[index.Arrays]]],
  classes: Sequence[str] | None,
  most: int,
  where: DescribeRecord,
  *,
  stored: Callable[..., Any] = index.Extents,
  order: NameOrder = "numeric",
  positions: bool = False,
) -> tuple[tuple[str, ...], dict[str, IndexedRecords]]:
  """Returns the common classes of several splits, and the records of each split.

  Args:
    parts: files of each split with the arrays of each file, for `index.Extents` and from `labels.LabelCollector`.
    classes: names of the classes, see `labels.resolve`.
    most: largest number of labels of an image.
    where: function (files, file, its arrays, record in the file) that describes a record, for errors.
    stored: function (files, arrays) that returns the bytes of records, such as `index.Extents`.
    order: order of the classes, see `labels.resolve`.
    positions: whether numbers are positions in `classes`, see `labels.resolve`.

  Raises:
    ConfigError: if a label has no class or is ambiguous.
  """
  flat = [(files, file, each) for files, arrays in parts.values() for file, each in enumerate(arrays)]
  classes, numbered = resolve(
    [each for _, _, each in flat], classes, most, lambda i, record: where(*flat[i], record), order, positions
  )
  following = iter(numbered)
  records = {
    part: IndexedRecords(stored(files, arrays), arrays, list(itertools.islice(following, len(arrays))))
    for part, (files, arrays) in parts.items()
  }
  return classes, records


def count_records(records: Mapping[str, IndexedRecords], names: Iterable[str]) -> dict[str, int]:
  """Returns the number of records of each split for `Splits.select`. Splits that were not scanned have 0 records.

  Args:
    records: records of the scanned splits.
    names: names of all splits.
  """
  return {name: len(records[name]) if name in records else 0 for name in names}


def create_source(
  name: str,
  spec: str,
  classes: Sequence[str],
  parts: sources.Parts,
  records: Mapping[str, IndexedRecords],
  labels: int,
  where: DescribeRecord,
  *,
  together: int,
  remote: bool,
  content: Callable[[str, bytes], bytes] = lambda file, stored: stored,
  identify: Callable[[str, IndexedRecords, int], str] = lambda part, records, i: f"{part}/{i}",
  about: tuple[Any, ...] = (),
  list_extras: Callable[[IndexedRecords, range], list[str]] = lambda records, numbers: [],
  objects: Callable[[IndexedRecords, range], list[tuple[Any, ...]]] = lambda records, numbers: [],
) -> sources.Source:
  """Returns the source of parts of splits with known records.

  Args:
    name: name of the dataset.
    spec: split string.
    classes: names of the classes of all splits.
    parts: parts of the split string, from `Splits.select`.
    records: records of each split, from `resolve_labels`.
    labels: largest number of labels of an image.
    where: function (files, file, its arrays, record in the file) that describes a record, for errors.
    together: number of neighbours that are stored together, see `sources.SpanReader`. 0 if neighbours are not cheaper
      to read.
    remote: whether reading a record is a request to a server.
    content: function (file, stored bytes of a record) that returns the image, or raises OSError if there is no image.
      The file is "" if records are read as a run.
    identify: function (split, its records, number) that returns the name of a record.
    about: further values that determine the records, for the fingerprint.
    list_extras: function (records of a split, range of numbers) that returns the local files to which these records
      refer.
    objects: function (records of a split, range of numbers) that returns the versions of bucket objects to which these
      records refer.
  """

  def read(part: str, i: int) -> tuple[bytes, Label]:
    files, file, _, _ = records[part].locate(i)
    return content(files.path(file), records[part].extents.read(i, i + 1)[0]), records[part].label(i)

  def parse(data: bytes) -> tuple[bytes, Label]:
    stored, label = unpack_label(data)
    return content("", stored), label

  made = sources.assemble(
    name,
    spec,
    classes,
    parts,
    read,
    lambda part, i: f" ({where(*records[part].locate(i))})",
    lambda part, i: identify(part, records[part], i),
    lambda: _compute_fingerprint(parts, records, about, list_extras),
    labels,
    read_label=lambda part, i: records[part].label(i),
    runs=sources.PartReader(lambda part, *ends: records[part].run(*ends), parse, together) if together else None,
    remote=remote,
  )
  made = dataclasses.replace(
    made, files=lambda: _list_files(parts, records, list_extras), objects=lambda: _list_objects(parts, records, objects)
  )
  return sources.add_notes(made, describe_forms([arrays for each in records.values() for arrays in each.arrays]))


def _compute_fingerprint(
  parts: sources.Parts,
  records: Mapping[str, IndexedRecords],
  about: tuple[object, ...],
  list_extras: Callable[[IndexedRecords, range], list[str]],
) -> Fingerprint:
  """Returns a fingerprint of the files of some splits, of files to which their records refer, and of all labels."""
  names, stamps = [], []
  for part in dict.fromkeys(part for part, _ in parts):
    files = records[part].extents.files
    names += [*files.names, *(hashlib.sha256(each.numbers.data).hexdigest() for each in records[part].labels)]
    stamps += files.stamps
  stamps += local_files.read_stamps([file for part, numbers in parts for file in list_extras(records[part], numbers)])
  sizes, times = zip(*stamps, strict=True)
  return sources.Fingerprint(sources.digest([parts, about, *names]), "", sources.digest(sizes), sources.digest(times))


def _list_files(
  parts: sources.Parts, records: Mapping[str, IndexedRecords], list_extras: Callable[[IndexedRecords, range], list[str]]
) -> list[str]:
  """Returns the local files of some splits, and the local files to which their records refer."""
  own = [records[part].extents.files for part in dict.fromkeys(part for part, _ in parts)]
  listed = [files.path(file) for files in own if not files.remote for file in range(len(files.names))]
  return listed + [file for part, numbers in parts for file in list_extras(records[part], numbers)]


def _list_objects(
  parts: sources.Parts,
  records: Mapping[str, IndexedRecords],
  named: Callable[[IndexedRecords, range], list[tuple[Any, ...]]],
) -> list[tuple[Any, ...]]:
  """Returns the versions of the bucket files of some splits, and of the objects to which their records refer."""
  own = [records[part].extents.files for part in dict.fromkeys(part for part, _ in parts)]
  listed = [version for files in own for version in files.versions]
  return listed + [version for part, numbers in parts for version in named(records[part], numbers)]
