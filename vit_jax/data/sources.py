"""Sources, which read undecoded image files and labels by record number, and the split strings that select records."""

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from vit_jax import schema
from vit_jax.data import class_names
from vit_jax.data.dataset_row import DatasetRow as DatasetRow  # readers use this name
from vit_jax.data.dataset_row import Label
from vit_jax.schema import enter_key, format_amount, get_current_key


class SplitError(schema.ConfigError):
  """An error for a split string that is misspelled or names a split that the dataset does not have."""


class Fingerprint(NamedTuple):
  """Digests of the records of a split, computed without reading images. A digest is "" if it is unknown.

  Attributes:
    names: digest of the names and labels of records, in order. If files contain many records, digest of the names of
      files.
    members: the same digest, computed in alphabetical order.
    sizes: digest of file sizes.
    times: digest of modification times.
  """

  names: str = ""
  members: str = ""
  sizes: str = ""
  times: str = ""

  def changes(self, now: "Fingerprint") -> list[str]:
    """Returns descriptions of the digests that differ between this fingerprint and `now`. Ignores `members`."""
    words = {
      "names": "names, labels or order of images",
      "sizes": "sizes of files",
      "times": "modification times of files",
    }
    return [words[key] for key in words if getattr(self, key) != getattr(now, key)]


Value = TypeVar("Value")
Parts = Sequence[tuple[str, range]]  # splits with ranges of their record numbers


class SpanReader(NamedTuple):
  """Access to neighbouring records, which are read together.

  Attributes:
    read: function (first, stop) that returns the stored records. It raises OSError, with an errno unless the data are
      damaged.
    parse: function from a stored record to the result of `Source.read`.
    together: number of neighbouring records that are stored as a unit. Reading one of them reads all of them.
  """

  read: Callable[[int, int], list[bytes]]
  parse: Callable[[bytes], tuple[bytes, int | tuple[int, ...]]]
  together: int = 1


class PartReader(NamedTuple):
  """A `SpanReader` of a dataset with several splits. `read` also takes the split."""

  read: Callable[[str, int, int], list[bytes]]
  parse: Callable[[bytes], tuple[bytes, int | tuple[int, ...]]]
  together: int = 1


class Masks(NamedTuple):
  """Segmentation masks: for each record, an image file that contains the class of each pixel.

  Only dense probes read masks.

  Attributes:
    classes: names of the classes.
    read: function from a record number to an image file with one channel. It raises OSError.
    values: pixel value of each class in the files. None: the value is the number of the class. 255 means no class.
    ignored: pixel values without a class, in addition to 255.
  """

  classes: tuple[str, ...]
  read: Callable[[int], bytes]
  values: tuple[int, ...] | None = None
  ignored: tuple[int, ...] = ()


class Corpus(NamedTuple):
  """A dataset that is part of a mixture.

  Attributes:
    name: name of the dataset.
    records: its record numbers in the mixture.
    weight: relative number of examples that are drawn from it.
    together: value of `SpanReader.together`, or 0 if the dataset has no `SpanReader`.
  """

  name: str
  records: range
  weight: float
  together: int


class Membership(NamedTuple):
  """Functions that record which files belong to which split, and compare an earlier record with the current files. See
  `membership`.

  Attributes:
    record: function that returns the record as JSON values.
    changes: function from an earlier record to a line for each split that changed.
  """

  record: Callable[[], dict[str, Any]]
  changes: Callable[[Mapping[str, Any]], list[str]]


@dataclasses.dataclass(frozen=True)
class Source:
  """The records of one split of a dataset.

  Functions that take a record number may be called from many threads at the same time.

  Attributes:
    name: name of the dataset.
    split: split string.
    classes: names of the classes.
    length: number of records.
    read: function from a record number to (image file, label). It raises OSError. A label is a number, or a tuple of
      up to `labels` numbers.
    place: function from a record number to a description of its origin, for error messages.
    labels: largest number of labels of an image.
    identify: function from a record number to the record's name in files of predictions.
    fingerprint: function that returns digests, which change if the data change. It does not read images.
    read_label: function from a record number to its label, if this is cheaper than `read`.
    parts: splits of the dataset with their record numbers, if known.
    runs: access to neighbouring records, if reading them together is cheaper.
    remote: whether reading a record is a request to a server.
    corpora: datasets of a mixture.
    epoch: number of examples of an epoch. None: each record once.
    read_name: function from a record number to the name of its image file, if the record contains the name.
    shares: function from a record number to the weights of its labels, float32 `(labels,)`. None: all labels count
      fully.
    masks: segmentation masks.
    note: description of the used and ignored files, which is printed once.
    is_published: function that returns whether a record belongs to a public dataset.
    key: config key that defines how the data are read, for advice in messages.
    files: function that returns the names of the local files from which records are read.
    objects: function that returns versions of the objects in a bucket, see `buckets.get_version`.
    membership: functions that record and compare the splits of files, if the reader draws the splits.
  """

  name: str
  split: str
  classes: tuple[str, ...]
  length: int
  read: Callable[[int], tuple[bytes, Label]]
  place: Callable[[int], str]
  labels: int = 1
  identify: Callable[[int], str] = str
  fingerprint: Callable[[], Fingerprint] = Fingerprint
  read_label: Callable[[int], Label] | None = None
  parts: tuple[tuple[str, range], ...] = ()
  runs: SpanReader | None = None
  remote: bool = False
  corpora: tuple[Corpus, ...] = ()
  epoch: int | None = None
  read_name: Callable[[int], str] | None = None
  shares: Callable[[int], np.ndarray] | None = None
  masks: Masks | None = None
  note: str = ""
  is_published: Callable[[int], bool] = lambda i: False
  key: str = "config.data"
  files: Callable[[], Sequence[str]] = tuple
  objects: Callable[[], Sequence[tuple[Any, ...]]] = tuple
  membership: Membership | None = None

  def __len__(self) -> int:
    return self.length

  @property
  def epoch_length(self) -> int:
    """Number of examples of an epoch."""
    return self.epoch or self.length

  def label(self, i: int) -> Label:
    """Returns the label of record i.

    Does not decode the image, and does not read it if labels are stored separately.
    """
    return self.read_label(i) if self.read_label else self.read(i)[1]

  def display_name(self, i: int) -> str:
    """Returns a readable name of record i: the name that is stored in the record, or else `identify(i)`."""
    return self.read_name(i) if self.read_name else self.identify(i)


def select_subset(source: Source, records: Sequence[int] | np.ndarray) -> Source:
  """Returns a source with a selection of records.

  Args:
    source: the source to select from.
    records: record numbers, in the new order.
  """

  def renumber(function: Callable[[int], Value]) -> Callable[[int], Value]:
    return lambda i: function(int(records[i]))

  return dataclasses.replace(
    source,
    length=len(records),
    read=renumber(source.read),
    place=renumber(source.place),
    identify=renumber(source.identify),
    read_label=renumber(source.label),
    runs=None,  # neighbours in the subset are not always neighbours in the source
    corpora=(),
    epoch=None,
    read_name=renumber(source.display_name),
    shares=renumber(source.shares) if source.shares else None,
    is_published=renumber(source.is_published),
    masks=source.masks._replace(read=renumber(source.masks.read)) if source.masks else None,
  )


def share_records(one: Source, other: Source) -> bool:
  """Returns whether two sources of the same dataset have a record in common.

  Args:
    one: first source.
    other: second source.
  """
  return any(
    split == there and max(mine.start, theirs.start) < min(mine.stop, theirs.stop)
    for split, mine in one.parts
    for there, theirs in other.parts
  )


_PART = re.compile(r"([\w.-]+)(?:\[(-?[\d_.]*)(%?):(-?[\d_.]*)(%?)\])?")


@dataclasses.dataclass(frozen=True)
class Splits:
  """The split strings that a config defines for "train", "val" and "test".

  Attributes:
    train: split string for training.
    val: split string for choosing between settings. None: "val" is the dataset's split of that name.
    test: split string for the final evaluation.
    slices: split strings of named slices, such as VTAB's "val200".
  """

  train: str
  val: str | None
  test: str
  slices: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def specs(self) -> dict[str, str]:
    """Returns the split strings that the config defines, by name."""
    return {key: spec for key in ("train", "val", "test") if (spec := getattr(self, key))}

  def spec(self, split: str) -> str:
    """Returns the split string of a split, with named slices replaced by their definitions.

    Args:
      split: "train", "val", "test" or a split string.
    """
    parts = self.specs().get(split, split).split("+")
    return "+".join(self.slices.get(part.strip(), part) for part in parts)

  def select(self, split: str, sizes: Mapping[str, int]) -> list[tuple[str, range]]:
    """Returns the parts of a split. See the function `select_parts`.

    Args:
      split: "train", "val", "test" or a split string.
      sizes: number of records of each split of the dataset.

    Raises:
      SplitError: if the split does not exist. The error names the config key that defines the split.
    """
    try:
      with enter_key(split) if split in ("train", "val", "test") else contextlib.nullcontext():
        return select_parts(self.spec(split), sizes, self.slices)
    except SplitError as error:
      if split != "val" or self.val:
        raise
      advice = f"Set {get_current_key('val')}, as 'train[90%:]' with {get_current_key('train')}='train[:90%]'"
      raise SplitError(f"{error.message} {advice}", "val") from None

  def check(self, sizes: Mapping[str, int]) -> None:
    """Checks that a dataset has all splits of the config.

    Args:
      sizes: number of records of each split of the dataset.

    Raises:
      SplitError: if a split does not exist.
    """
    for key in self.specs():
      self.select(key, sizes)


def select_parts(spec: str, sizes: Mapping[str, int], slices: Iterable[str] = ()) -> list[tuple[str, range]]:
  """Returns the parts of a split string, in order.

  Percentages are rounded to the nearest record, as in TFDS. `[:99%]` and `[99%:]` therefore never overlap and omit no
  record.

  Args:
    spec: split string, such as "train", "train[:99%]", "train[10:-20]", "train+test[50%:]" or "all".
    sizes: number of records of each split.
    slices: names of slices, which are listed in the error for an unknown name.

  Returns:
    Pairs of a split and a range of its record numbers.

  Raises:
    SplitError: if the split string is invalid, names an unknown split, or selects no record.

  Example:
    from vit_jax.data import sources

    sources.select_parts("train[90%:]+test", {"train": 100, "test": 20})
    # [("train", range(90, 100)), ("test", range(0, 20))]
  """
  parts = []
  for text in spec.split("+") if spec.strip() != "all" else sizes:
    match = _PART.fullmatch(text.strip())
    if not match:
      raise SplitError(f"{text.strip()!r} is not a split. Write 'train', 'train[:99%]' or 'train[10:20]'")
    name, low, low_unit, high, high_unit = match.groups()
    if name in slices:
      raise SplitError(f"{text.strip()!r} cuts {name!r}, which is itself a part of a split. Use it without a range")
    if name not in sizes:
      raise SplitError(f"no split {name!r}.{schema.suggest_nearest(name, [*sizes, *slices])}")
    if low and high and low_unit != high_unit and float(low) and float(high):
      raise SplitError(f"{text.strip()!r} mixes records and percent. Use one unit on both sides")
    ends = [_parse_end(value, low_unit or high_unit, sizes[name], repr(text.strip())) for value in (low, high)]
    parts.append((name, range(ends[0] or 0, sizes[name] if ends[1] is None else ends[1])))
  if not sum(len(r) for _, r in parts):
    raise SplitError(f"{spec!r} contains no record. The splits are {dict(sizes)}")
  return parts


def is_split_name(text: str) -> bool:
  """Returns whether a text can be the name of a split, because it has no other meaning in split strings."""
  return bool((match := _PART.fullmatch(text)) and match[1] == text and text != "all")


def parse_split_names(specs: Iterable[str]) -> set[str]:
  """Returns the names in split strings: "train" and "test" for "train[:99%]+test". The splits need not exist."""
  return {match[1] for spec in specs for text in spec.split("+") if (match := _PART.fullmatch(text.strip()))}


def _parse_end(value: str | None, unit: str | None, size: int, text: str) -> int | None:
  if not value:
    return None
  try:
    end = round(float(value) * size / 100) if unit else int(value)
  except (ValueError, OverflowError):
    raise SplitError(f"{text} has no number before or after the colon: {value!r}") from None
  if abs(end) > size:
    raise SplitError(f"{text} reaches outside of the split, which has {format_amount(size, 'record')}")
  return end + size if value.startswith("-") else end


def locate_record(parts: Sequence[tuple[str, range]], i: int) -> tuple[str, int]:
  """Returns (split, record number in the split) of a record of a sequence of parts.

  Args:
    parts: pairs of a split and a range of its record numbers, as returned by `select_parts`.
    i: record number in the sequence of parts.

  Raises:
    IndexError: if the parts have fewer records.
  """
  for split, numbers in parts:
    if i < len(numbers):
      return split, numbers[i]
    i -= len(numbers)
  raise IndexError(f"{i} records past the end of {' + '.join(split for split, _ in parts)}")


def assemble(
  name: str,
  spec: str,
  classes: Sequence[str],
  parts: Parts,
  read: Callable[[str, int], tuple[bytes, Label]],
  place: Callable[[str, int], str],
  identify: Callable[[str, int], str],
  fingerprint: Callable[[], Fingerprint],
  labels: int = 1,
  read_label: Callable[[str, int], Label] | None = None,
  runs: PartReader | None = None,
  remote: bool = False,
) -> Source:
  """Returns one source over several parts of splits. Adds a note if names of classes look alike.

  All functions except `fingerprint` take a split and a record number in the complete split. `runs.read` takes a split,
  the first record number, and the number after the last record.

  Args:
    name: name of the dataset.
    spec: split string.
    classes: names of the classes, which are stored in normal form (`class_names.normalise_name`).
    parts: pairs of a split and a range of its record numbers.
    read: see `Source.read`.
    place: description of a record, which follows the name, split and record number in messages.
    identify: see `Source.identify`.
    fingerprint: see `Source.fingerprint`.
    labels: largest number of labels of an image.
    read_label: see `Source.read_label`.
    runs: see `Source.runs`.
    remote: whether reading a record is a request to a server.
  """

  locate = functools.partial(locate_record, parts)

  def describe(i: int) -> str:
    split, number = locate(i)
    return f"{name}, split {split!r}, record {number}{place(split, number)}"

  length = sum(len(r) for _, r in parts)
  return Source(
    name,
    spec,
    tuple(map(class_names.normalise_name, classes)),
    length,
    lambda i: read(*locate(i)),
    describe,
    labels,
    lambda i: identify(*locate(i)),
    fingerprint,
    (lambda i: read_label(*locate(i))) if read_label else None,
    tuple(parts),
    SpanReader(functools.partial(_read_across, parts, runs.read), runs.parse, runs.together) if runs else None,
    remote,
    note=class_names.describe_alike(tuple(map(class_names.normalise_name, classes))),
  )


def _read_across(parts: Parts, read: Callable[[str, int, int], list[bytes]], first: int, stop: int) -> list[bytes]:
  """Returns neighbouring records, which may be in several parts."""
  result, before = [], 0
  for split, numbers in parts:
    some = numbers[max(0, first - before) : max(0, stop - before)]
    if some:
      result += read(split, some.start, some.stop)
    before += len(numbers)
  return result


def add_notes(source: Source, *notes: str) -> Source:
  """Returns the source with additional notes, one per line.

  Args:
    source: the source.
    notes: notes, which precede the notes of the source. Empty notes are ignored.
  """
  return dataclasses.replace(source, note="\n".join(filter(None, (*notes, source.note))))


def digest(values: Sequence[object]) -> str:
  """Returns the SHA-256 of the representations of values, in hexadecimal digits.

  Representations of strings show every character, also in names that are not valid Unicode.

  Args:
    values: values of types with a stable `repr`.
  """
  hashed = hashlib.sha256()
  for first in range(0, len(values), 1000):  # hashing many values at once takes a third of the time
    hashed.update(repr(values[first : first + 1000]).encode())
  return hashed.hexdigest()
