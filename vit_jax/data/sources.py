"""Sources: labelled image files by record number, undecoded; their split strings; what is known of a dataset."""

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import schema
from vit_jax.data import class_names
from vit_jax.data.rows import Row as Row  # the word that readers know it by
from vit_jax.schema import amount, at, place


class AbsentError(schema.ConfigError):
  """The data are not there; says how to get them."""


class UnreachableError(AbsentError):
  """Whether the data are there is not known: their bucket cannot be used, is not there, or does not answer."""


class SplitError(schema.ConfigError):
  """A split string means nothing here: it is misspelled, or the dataset has no such split."""


class Fingerprint(NamedTuple):
  """Digests of what is known of the records of a split without reading them; "" where nothing is."""

  names: str = ""  # of records with their labels, or of files of many records; in their order
  members: str = ""  # the same in order of the alphabet
  sizes: str = ""  # of files
  times: str = ""  # of the last change of files

  def changes(self, now: "Fingerprint") -> list[str]:
    """What is another `now`, in words."""
    words = {
      "names": "names, labels or order of images",
      "sizes": "sizes of files",
      "times": "times of change of files",
    }
    return [words[key] for key in words if getattr(self, key) != getattr(now, key)]


class Runs(NamedTuple):
  """Records as they are stored, neighbours at one go."""

  read: Callable[[int, int], list[bytes]]  # (first, stop); OSError, with an errno if it is not the data's fault
  parse: Callable[[bytes], tuple[bytes, int | tuple[int, ...]]]  # a record to what `Source.read` gives
  together: int = 1  # neighbours that are stored as one: whoever wants one of them reads them all


class Masks(NamedTuple):
  """The class of each pixel of a record's image, as an image file of its own, which only dense probes read.

  A pixel is the number of its class, or 255 where it is of none; where `values` are given, the number that a class has
  in the files.
  """

  classes: tuple[str, ...]
  read: Callable[[int], bytes]  # record -> image file of one channel; OSError
  values: tuple[int, ...] | None = None
  ignored: tuple[int, ...] = ()  # numbers of no class, beside 255


class Corpus(NamedTuple):
  """One of several corpora of a mixture."""

  name: str
  records: range  # of the mixture
  weight: float  # of its share of the examples
  together: int  # as of `Runs`, 0 where it has none


@dataclasses.dataclass(frozen=True)
class Source:
  """Records of one split: `read(i)` gives (image file, label), or OSError, and may be called from many threads at once.

  A label is a number, or a tuple of up to `labels` numbers where the dataset has lists of them. `identify(i)` names
  record i in files of predictions; `fingerprint()` changes when the data do, whose contents it does not read.
  """

  name: str
  split: str
  classes: tuple[str, ...]
  length: int
  read: Callable[[int], tuple[bytes, int | tuple[int, ...]]]
  place: Callable[[int], str]  # where record i comes from, in words, for errors
  labels: int = 1  # the most that one image has
  identify: Callable[[int], str] = str
  fingerprint: Callable[[], Fingerprint] = Fingerprint
  read_label: Callable[[int], int | tuple[int, ...]] | None = None  # where it costs less than `read`
  parts: tuple[tuple[str, range], ...] = ()  # splits of the dataset and their records, where these are known
  runs: Runs | None = None  # where neighbouring records cost one request and not one each
  remote: bool = False  # a record is a request to a server
  corpora: tuple[Corpus, ...] = ()  # of a mixture
  epoch: int | None = None  # examples of an epoch, if it is not each record once
  read_name: Callable[[int], str] | None = None  # the name of its image file, where that is stored in the record
  shares: Callable[[int], np.ndarray] | None = (
    None  # float32 [labels]: how much each of record i's counts; None: all of it
  )
  masks: Masks | None = None
  note: str = ""  # which files are records and which are not, to be said once
  is_published: Callable[[int], bool] = lambda i: False  # whether record i is of a public dataset
  key: str = "config.data"  # where a config says how it is read, for advice
  files: Callable[[], Sequence[str]] = tuple  # on a disk, that records are read from
  objects: Callable[[], Sequence[tuple]] = tuple  # versions of those in a bucket, see `buckets.version`

  def __len__(self):
    return self.length

  @property
  def epoch_length(self) -> int:
    """Examples of an epoch."""
    return self.epoch or self.length

  def label(self, i: int) -> int | tuple[int, ...]:
    """The label of record i; its image is not decoded, and if possible not read."""
    return self.read_label(i) if self.read_label else self.read(i)[1]

  def called(self, i: int) -> str:
    """The name of record i for a person: the one that is stored in it, which has to be read, or else `identify(i)`."""
    return self.read_name(i) if self.read_name else self.identify(i)


def subset(source: Source, records: Sequence[int]) -> Source:
  """The given records of a source, in the given order."""

  def at(function):
    return lambda i: function(int(records[i]))

  return dataclasses.replace(
    source,
    length=len(records),
    read=at(source.read),
    place=at(source.place),
    identify=at(source.identify),
    read_label=at(source.label),
    runs=None,  # neighbours here need not be neighbours there
    corpora=(),
    epoch=None,
    read_name=at(source.called),
    shares=at(source.shares) if source.shares else None,
    is_published=at(source.is_published),
    masks=source.masks._replace(read=at(source.masks.read)) if source.masks else None,
  )


def share(one: Source, other: Source) -> bool:
  """Whether two sources of one dataset have a record in common."""
  return any(
    split == there and max(mine.start, theirs.start) < min(mine.stop, theirs.stop)
    for split, mine in one.parts
    for there, theirs in other.parts
  )


# Split strings.

_PART = re.compile(r"([\w.-]+)(?:\[(-?[\d_.]*)(%?):(-?[\d_.]*)(%?)\])?")


@dataclasses.dataclass(frozen=True)
class Splits:
  """The split strings that a config has for "train", "val" and "test"; any other name of a split is a split string.

  `val` decides between settings, so that test images need not; without it, "val" is the dataset's split of that name.
  `slices` are parts of splits that have a name of their own, as VTAB's "val200".
  """

  train: str
  val: str | None
  test: str
  slices: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def specs(self) -> dict[str, str]:
    """Those that the config has."""
    return {key: spec for key in ("train", "val", "test") if (spec := getattr(self, key))}

  def spec(self, split: str) -> str:
    """The split string that a name stands for, with every slice written out."""
    parts = self.specs().get(split, split).split("+")
    return "+".join(self.slices.get(part.strip(), part) for part in parts)

  def select(self, split: str, sizes: Mapping[str, int]) -> list[tuple[str, range]]:
    """Parts of a split by its name; errors are at the key of the config that names it, if one does."""
    try:
      with at(split) if split in ("train", "val", "test") else contextlib.nullcontext():
        return select(self.spec(split), sizes, self.slices)
    except SplitError as error:
      if split != "val" or self.val:
        raise
      advice = f"Set {place('val')}, as 'train[90%:]' with {place('train')}='train[:90%]'"
      raise SplitError(f"{error.message} {advice}", "val") from None

  def check(self, sizes: Mapping[str, int]) -> None:
    """Raises SplitError for what the config has and a dataset of these sizes has not."""
    for key in self.specs():
      self.select(key, sizes)


def select(spec: str, sizes: Mapping[str, int], slices: Iterable[str] = ()) -> list[tuple[str, range]]:
  """Parts of a split string, in order: "train", "train[:99%]", "train[10:-20]", "train+test[50%:]", "all".

  Percentages round to the nearest record, as in TFDS, so that `[:99%]` and `[99%:]` never overlap and lose nothing.
  An error about an unknown name has those of `slices` among the allowed ones.
  """
  parts = []
  for text in spec.split("+") if spec.strip() != "all" else sizes:
    match = _PART.fullmatch(text.strip())
    if not match:
      raise SplitError(f"{text.strip()!r} is not a split; write 'train', 'train[:99%]' or 'train[10:20]'")
    name, low, low_unit, high, high_unit = match.groups()
    if name in slices:
      raise SplitError(f"{text.strip()!r} cuts {name!r}, which is a part of a split by itself; take it whole")
    if name not in sizes:
      raise SplitError(f"no split {name!r}.{schema.nearest(name, [*sizes, *slices])}")
    if low and high and low_unit != high_unit and float(low) and float(high):
      raise SplitError(f"{text.strip()!r} mixes records and percent; use one unit on both sides")
    ends = [_end(value, low_unit or high_unit, sizes[name], repr(text.strip())) for value in (low, high)]
    parts.append((name, range(ends[0] or 0, sizes[name] if ends[1] is None else ends[1])))
  if not sum(len(r) for _, r in parts):
    raise SplitError(f"{spec!r} holds no record; the splits are {dict(sizes)}")
  return parts


def is_split_name(text: str) -> bool:
  """Whether a split may be called so: else a split string would mean something else by it."""
  return bool((match := _PART.fullmatch(text)) and match[1] == text and text != "all")


def split_names(specs: Iterable[str]) -> set[str]:
  """The names in split strings, whether or not there are such splits: "train[:99%]+test" has train and test."""
  return {match[1] for spec in specs for text in spec.split("+") if (match := _PART.fullmatch(text.strip()))}


def _end(value, unit, size, text):
  if not value:
    return None
  try:
    end = round(float(value) * size / 100) if unit else int(value)
  except (ValueError, OverflowError):
    raise SplitError(f"{text} has no number before or after the colon: {value!r}") from None
  if abs(end) > size:
    raise SplitError(f"{text} reaches outside of the split, which has {amount(size, 'record')}")
  return end + size if value.startswith("-") else end


def located(parts: Sequence[tuple[str, range]], i: int) -> tuple[str, int]:
  """(split, record number of all of it) of record i of parts of splits."""
  for split, numbers in parts:
    if i < len(numbers):
      return split, numbers[i]
    i -= len(numbers)
  raise IndexError(f"{i} records past the end of {' + '.join(split for split, _ in parts)}")


def assemble(
  name, spec, classes, parts, read, place, identify, fingerprint, labels=1, read_label=None, runs=None, remote=False
) -> Source:
  """Returns one source over parts of splits, with a note if names of classes look alike.

  All functions but `fingerprint` take a split and a record number of all of it; of `runs` the reading one a split and
  the numbers of the first and after the last. Names of `classes` are stored in normal form (`class_names.normal`).
  """

  locate = functools.partial(located, parts)

  def describe(i):
    split, number = locate(i)
    return f"{name}, split {split!r}, record {number}{place(split, number)}"

  def several(first, stop):
    result, before = [], 0
    for split, numbers in parts:
      some = numbers[max(0, first - before) : max(0, stop - before)]
      if some:
        result += runs.read(split, some.start, some.stop)
      before += len(numbers)
    return result

  length = sum(len(r) for _, r in parts)
  return Source(
    name,
    spec,
    tuple(map(class_names.normal, classes)),
    length,
    lambda i: read(*locate(i)),
    describe,
    labels,
    lambda i: identify(*locate(i)),
    fingerprint,
    (lambda i: read_label(*locate(i))) if read_label else None,
    tuple(parts),
    runs._replace(read=several) if runs else None,
    remote,
    note=class_names.note(tuple(map(class_names.normal, classes))),
  )


def noted(source: Source, *notes: str) -> Source:
  """Returns the source with more notes, a line each; empty ones are ignored."""
  return dataclasses.replace(source, note="\n".join(filter(None, (*notes, source.note))))


def digest(values: Sequence) -> str:
  """SHA-256 of the representations: those of strings show every character, also of names that are no Unicode."""
  hashed = hashlib.sha256()
  for first in range(0, len(values), 1000):  # many at once takes a third of the time
    hashed.update(repr(values[first : first + 1000]).encode())
  return hashed.hexdigest()
