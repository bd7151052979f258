"""A split of indexed files as a source: what has to be known for it, its classes, its records with their labels."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from vit_jax.data import local_files, sources
from vit_jax.data.class_names import Order
from vit_jax.data.readers import index, listing
from vit_jax.data.readers.labels import Labels, note, packed, resolve, unpacked

Where = Callable[[listing.Files, int, index.Arrays, int], str]  # (files, file, its arrays, record of it) in words


def used(by_split: Mapping[str, object], splits: sources.Splits, split: str, shared: bool) -> list[str]:
  """The splits that must be known to open one of them; with `shared` classes all that the config names."""
  names = sources.split_names([splits.spec(split), *(splits.specs().values() if shared else ())])
  everything = "all" in {splits.spec(split).strip()}
  return [name for name in by_split if name in names or everything]


@dataclasses.dataclass(frozen=True)
class Records:
  """Records of a split with their labels."""

  extents: index.Extents  # or what reads like it
  arrays: Sequence[index.Arrays]  # of each file
  labels: Sequence[Labels]  # of each file

  def __len__(self):
    return len(self.extents)

  def locate(self, record: int) -> tuple[listing.Files, int, index.Arrays, int]:
    """(files, file, its arrays, number in it) of a record."""
    file, number = self.extents.locate(record)
    return self.extents.files, file, self.arrays[file], number

  def label(self, record: int) -> int | tuple[int, ...]:
    """The label of a record."""
    file, number = self.extents.locate(record)
    return self.labels[file][number]

  def run(self, first: int, stop: int) -> list[bytes]:
    """Records `first` to `stop`, each `packed`."""
    return [packed(self.label(i), data) for i, data in enumerate(self.extents.read(first, stop), first)]


def resolved(
  parts: Mapping[str, tuple[listing.Files, Sequence[index.Arrays]]],
  classes: Sequence[str] | None,
  most: int,
  where: Where,
  *,
  stored: Callable = index.Extents,
  order: Order = "numeric",
  positions: bool = False,
) -> tuple[tuple[str, ...], dict[str, Records]]:
  """The classes of some splits together, and the records of each.

  Args:
    parts: files of each split and what is known of each file: of its bytes as of `index.Extents`, of labels as of
      `labels.Collected`.
    classes: as of `labels.resolve`, like `most`.
    most: labels of an image.
    where: (files, file, its arrays, record of it) in words, for errors.
    stored: (files, arrays) -> what has the bytes of records, as `index.Extents`.
    order: as of `labels.resolve`, like `positions`.
  """
  flat = [(files, file, each) for files, arrays in parts.values() for file, each in enumerate(arrays)]
  classes, numbered = resolve(
    [each for _, _, each in flat], classes, most, lambda i, record: where(*flat[i], record), order, positions
  )
  numbered = iter(numbered)
  records = {
    part: Records(stored(files, arrays), arrays, list(itertools.islice(numbered, len(arrays))))
    for part, (files, arrays) in parts.items()
  }
  return classes, records


def sizes(records: Mapping[str, Records], names: Sequence[str]) -> dict[str, int]:
  """Records of each split by name, 0 of those that nobody asked for: what `Splits.select` takes."""
  return {name: len(records[name]) if name in records else 0 for name in names}


def source(
  name: str,
  spec: str,
  classes: Sequence[str],
  parts: Sequence[tuple[str, range]],
  records: Mapping[str, Records],
  labels: int,
  where: Where,
  *,
  together: int,
  remote: bool,
  content: Callable[[str, bytes], bytes] = lambda file, stored: stored,
  identify: Callable[[str, Records, int], str] = lambda part, records, i: f"{part}/{i}",
  about: tuple = (),
  beside: Callable[[Records, range], list[str]] = lambda records, numbers: [],
  objects: Callable[[Records, range], list[tuple]] = lambda records, numbers: [],
) -> sources.Source:
  """The source of parts of splits, whose records are known.

  Args:
    name: of the data.
    spec: split string.
    classes: of all splits.
    parts: of the split string.
    records: of each split, as of `resolved`.
    labels: the most that one image has.
    where: for errors.
    together: neighbours that are stored together, as of `sources.Runs`; 0 where they are no cheaper than others.
    remote: whether a record is a request.
    content: (file, what is stored of a record) -> its image; OSError for none. The file is "" in a run of neighbours.
    identify: (split, its records, number) -> the name of a record.
    about: what else decides the records.
    beside: (records of a split, some of their numbers) -> the files on a disk that these records name.
    objects: the same for versions of the objects in a bucket that these records name.
  """

  def read(part, i):
    files, file, _, _ = records[part].locate(i)
    return content(files.path(file), records[part].extents.read(i, i + 1)[0]), records[part].label(i)

  def parse(data):
    stored, label = unpacked(data)
    return content("", stored), label

  made = sources.assemble(
    name,
    spec,
    classes,
    parts,
    read,
    lambda part, i: f" ({where(*records[part].locate(i))})",
    lambda part, i: identify(part, records[part], i),
    lambda: _fingerprint(parts, records, about, beside),
    labels,
    read_label=lambda part, i: records[part].label(i),
    runs=sources.Runs(lambda part, *ends: records[part].run(*ends), parse, together) if together else None,
    remote=remote,
  )
  made = dataclasses.replace(
    made, files=lambda: _files(parts, records, beside), objects=lambda: _objects(parts, records, objects)
  )
  return sources.noted(made, note([arrays for each in records.values() for arrays in each.arrays]))


def _fingerprint(parts, records, about, beside):
  """Of the files of some splits, as they were listed, of those that they name, and of all labels."""
  names, stamps = [], []
  for part in dict.fromkeys(part for part, _ in parts):
    files = records[part].extents.files
    names += [*files.names, *(hashlib.sha256(each.numbers).hexdigest() for each in records[part].labels)]
    stamps += files.stamps
  stamps += local_files.stamps([file for part, numbers in parts for file in beside(records[part], numbers)])
  sizes, times = zip(*stamps, strict=True)
  return sources.Fingerprint(sources.digest([parts, about, *names]), "", sources.digest(sizes), sources.digest(times))


def _files(parts, records, beside):
  """The files on a disk of some splits, and those that their records name."""
  own = [records[part].extents.files for part in dict.fromkeys(part for part, _ in parts)]
  listed = [files.path(file) for files in own if not files.remote for file in range(len(files.names))]
  return listed + [file for part, numbers in parts for file in beside(records[part], numbers)]


def _objects(parts, records, named):
  """Returns the versions of the files of some splits in a bucket, and of objects that their records name."""
  own = [records[part].extents.files for part in dict.fromkeys(part for part, _ in parts)]
  listed = [version for files in own for version in files.versions]
  return listed + [version for part, numbers in parts for version in named(records[part], numbers)]
