"""What a process does for a corpus: hashes of test images, and shards, each written whole with its report."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from vit_jax import archives, files, paths, schema
from vit_jax.corpora import duplicates, making
from vit_jax.corpora.plan import Options, Plan, Split, numbers, opened
from vit_jax.data import catalog, versions
from vit_jax.data.sources import Source
from vit_jax.schema import Choice

EVERY = 0.5  # seconds between two words about a shard


class Hashes(NamedTuple):
  """A task: the hashes of some records of a test set."""

  test_set: str
  first: int
  stop: int

  def __str__(self):
    return f"images {self.first:,} to {self.stop:,} of {self.test_set}"


class Shard(NamedTuple):
  """A task: a file of the corpus."""

  split: int
  number: int


class Folders(NamedTuple):
  """Where a corpus is written, and what is kept beside it until it is whole."""

  corpus: pathlib.Path
  work: pathlib.Path

  @classmethod
  def of(cls, root: pathlib.Path, name: str) -> "Folders":
    """In the TFDS data directory `root`."""
    return cls(root / name / "1.0.0", root / name / ".1.0.0.work")

  def shard(self, name: str, split: Split, number: int) -> pathlib.Path:
    """The file of a shard, as TFDS calls it."""
    return self.corpus / f"{name}-{split.name}.array_record-{number:05d}-of-{split.shards:05d}"

  def report(self, split: Split, number: int) -> pathlib.Path:
    """The file with the report of a shard."""
    return self.work / f"{split.name}-{number:05d}-of-{split.shards:05d}.json"

  def read_report(self, split: Split, number: int) -> making.Report | None:
    """The report of a shard; None where it is not there, or damaged."""
    try:
      kept = json.loads(files.content(self.report(split, number)) or b"{}")
    except (ValueError, RecursionError):
      return None
    if not isinstance(kept, dict) or kept.pop("sha256", None) != _digest(kept):
      return None
    return making.Report.read(kept)

  def read_whole(self, name: str, split: Split, number: int) -> making.Report | None:
    """The report of a shard that is there with the size that it has; None of any other, which has to be made."""
    report = self.read_report(split, number)
    there = report is not None and report.size == files.size(self.shard(name, split, number))
    return report if there else None

  def write_report(self, split: Split, number: int, report: making.Report) -> None:
    """Says what is in a shard, and with its size that it is whole."""
    plain = report.plain()
    files.write_text(self.report(split, number), json.dumps(plain | {"sha256": _digest(plain)}))

  @property
  def hashes(self) -> pathlib.Path:
    """Of the test sets."""
    return self.work / "hashes.npz"


def _digest(plain):
  return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def test_set(text: str) -> Source:
  """The test images that a word of --dedup-against means.

  Of a dataset of the catalog those of its test split, where $TFDS_DATA_DIR says; of the path of an image folder or of a
  prepared dataset, with dataset_info.json, all.
  """
  with schema.at("--dedup-against"):
    if text in catalog.CATALOG and catalog.CATALOG[text].classes:
      return schema.make(Choice(text), catalog.READERS, "test")
    root = paths.expand(paths.path(text, bare=True))
    if not root.exists():
      known = [name for name, row in catalog.CATALOG.items() if row.classes]
      raise schema.ConfigError(f"{text!r} is no folder and no dataset.{schema.nearest(text, known)}")
    name = "tfds" if (root / "dataset_info.json").exists() else "folder"
    return schema.make(Choice(name, {"path": str(root)}), catalog.READERS, "all")


@dataclasses.dataclass(frozen=True)
class Worker:
  """Does tasks; what they read is opened once in each process."""

  plan: Plan
  folders: Folders
  large: Any = dataclasses.field(default_factory=contextlib.nullcontext)  # see `making.Maker`
  input: Source | None = None  # open already, where the plan was made in this process

  def __call__(self, task: Hashes | Shard, say: Callable) -> Any:
    """The hashes, or the report of a shard; says (records, rejected, duplicates) of those that it has done since.

    Of hashes it says how many images they are of.
    """
    if isinstance(task, Hashes):
      source, hashes = self._test_set(task.test_set), []
      for number in range(task.first, task.stop):
        hashes += duplicates.hashes(source, number)
        say(1)
      return hashes
    split = self.plan.splits[task.split]
    report = making.Report()
    path = self.folders.shard(self.plan.name, split, task.number)
    making.write(path, self._kept(split, split.positions(task.number), report, say))
    report.size = files.size(path)
    self.folders.write_report(split, task.number, report)
    return report

  def _kept(self, split, positions, report, say):
    """The serialised records that stay, counted."""
    said, last = (0, 0, 0), time.monotonic()
    for count, record in enumerate(self.records(split, positions), 1):
      report.add(record)
      if time.monotonic() - last > EVERY or count == len(positions):
        now = count, len(report.rejected), len(report.duplicates)
        say(tuple(new - old for new, old in zip(now, said, strict=True)))
        said, last = now, time.monotonic()
      if record.data is not None:
        yield record.data

  def records(self, split: Split, positions: range) -> Iterator[making.Record]:
    """What becomes of the records at places in the order of a split."""
    together = self.source.runs is not None
    return self.maker.records(numbers(split, positions, self.plan.options.seed, together))

  @functools.cached_property
  def source(self) -> Source:
    """The input."""
    return self.input or reopened(self.plan, self.folders)

  @functools.cached_property
  def maker(self) -> making.Maker:
    """What makes its records."""
    return making.Maker(self.source, self.plan.options.size, self.index, self.large)

  @functools.cached_property
  def index(self) -> duplicates.Index | None:
    """Of the test images."""
    return read_index(self.folders, self.plan.options) if self.plan.options.against else None

  @functools.cached_property
  def _test_set(self):
    """`test_set`, of which each stays open."""
    return functools.cache(test_set)


def reopened(made: Plan, folders: Folders) -> Source:
  """The input, opened again. ConfigError unless it is what the plan was made of."""
  source = opened(made.data)
  made.check_input(source, folders.work)
  return source


class Hashed(NamedTuple):
  """Hashes of all test images."""

  values: np.ndarray  # uint64 [2 * images], of each image as it is and mirrored
  counts: np.ndarray  # int64 [test sets], images of each
  versions: tuple[str, ...]  # of the test sets when they were hashed, see `versions.of`


def test_set_versions(options: Options) -> tuple[str, ...]:
  """Returns the version of each test set as it is now."""
  return tuple(versions.of(test_set(text)) for text in options.against)


def write_hashes(folders: Folders, hashed: Hashed) -> None:
  """Keeps hashes beside a corpus until it is whole."""
  with files.replacing(folders.hashes) as partial, partial.open("wb") as file:
    np.savez(file, hashes=hashed.values, counts=hashed.counts, versions=np.array(hashed.versions))


def read_hashes(folders: Folders) -> Hashed | None:
  """Returns the hashes that are kept beside a corpus; None if the file is missing or damaged."""
  try:
    values, counts, versions = archives.load(files.local(folders.hashes), "hashes", "counts", "versions")
    return Hashed(values, counts, tuple(versions.tolist()))
  except (FileNotFoundError, *files.DAMAGE):
    return None


def read_index(folders: Folders, options: Options) -> duplicates.Index:
  """The index of the hashes that are kept beside a corpus."""
  hashed, names = read_hashes(folders), []
  for text, count in zip(options.against, hashed.counts, strict=True):
    source = test_set(text)
    names += [(text, source.identify(number), number) for number in range(count)]
  return duplicates.Index(hashed.values, names, options.distance)
