"""Tasks of a process for a corpus: hashes of test images, and complete shards with their reports."""

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

from vit_jax import schema
from vit_jax.corpora import duplicates, record_maker
from vit_jax.corpora.plan import CorpusOptions, CorpusPlan, CorpusSplit, list_numbers, open_input
from vit_jax.data import catalog, versions
from vit_jax.data.sources import Source
from vit_jax.schema import Choice
from vit_jax.storage import archives, files, paths

EVERY = 0.5  # seconds between two reports about a shard


class HashTask(NamedTuple):
  """A task that computes the hashes of some records of a test set.

  Attributes:
    test_set: name or path of the test set.
    first: number of the first record.
    stop: number after the last record.
  """

  test_set: str
  first: int
  stop: int

  def __str__(self) -> str:
    return f"images {self.first:,} to {self.stop:,} of {self.test_set}"


class ShardTask(NamedTuple):
  """A task that makes a file of the corpus.

  Attributes:
    split: number of the split.
    number: number of the shard.
  """

  split: int
  number: int


class Folders(NamedTuple):
  """The folder of a corpus, and the folder of its temporary files.

  Attributes:
    corpus: folder of the corpus.
    work: folder of files that are kept until the corpus is complete.
  """

  corpus: pathlib.Path
  work: pathlib.Path

  @classmethod
  def locate(cls, root: pathlib.Path, name: str) -> "Folders":
    """Returns the folders of a corpus in a TFDS data directory.

    Args:
      root: the TFDS data directory.
      name: name of the dataset.
    """
    return cls(root / name / "1.0.0", root / name / ".1.0.0.work")

  def shard(self, name: str, split: CorpusSplit, number: int) -> pathlib.Path:
    """Returns the path of a shard with TFDS's name.

    Args:
      name: name of the dataset.
      split: the split.
      number: number of the shard.
    """
    return self.corpus / f"{name}-{split.name}.array_record-{number:05d}-of-{split.shards:05d}"

  def report(self, split: CorpusSplit, number: int) -> pathlib.Path:
    """Returns the path of a shard's report.

    Args:
      split: the split.
      number: number of the shard.
    """
    return self.work / f"{split.name}-{number:05d}-of-{split.shards:05d}.json"

  def read_report(self, split: CorpusSplit, number: int) -> record_maker.ShardReport | None:
    """Reads the report of a shard.

    Args:
      split: the split.
      number: number of the shard.

    Returns:
      The report, or None if it is missing or damaged.
    """
    try:
      kept = json.loads(files.read_if_exists(self.report(split, number)) or b"{}")
    except (ValueError, RecursionError):
      return None
    if not isinstance(kept, dict) or kept.pop("sha256", None) != _compute_digest(kept):
      return None
    return record_maker.ShardReport.read(kept)

  def read_complete_report(self, name: str, split: CorpusSplit, number: int) -> record_maker.ShardReport | None:
    """Reads the report of a complete shard. The size of the shard must match its report.

    Args:
      name: name of the dataset.
      split: the split.
      number: number of the shard.

    Returns:
      The report, or None if the shard must be made.
    """
    report = self.read_report(split, number)
    there = report is not None and report.size == files.get_size(self.shard(name, split, number))
    return report if there else None

  def write_report(self, split: CorpusSplit, number: int, report: record_maker.ShardReport) -> None:
    """Writes the report of a shard. Its entry `size` shows that the shard is complete.

    Args:
      split: the split.
      number: number of the shard.
      report: the report.
    """
    plain = report.to_json()
    files.write_text(self.report(split, number), json.dumps(plain | {"sha256": _compute_digest(plain)}))

  @property
  def hashes(self) -> pathlib.Path:
    """Returns the path of the hashes of the test sets."""
    return self.work / "hashes.npz"


def _compute_digest(plain: object) -> str:
  return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def open_test_set(text: str) -> Source:
  """Opens the test images that a value of --dedup-against names.

  Args:
    text: a dataset of the catalog, or the path of an image folder or of a prepared dataset with dataset_info.json. A
      dataset of the catalog is read from $TFDS_DATA_DIR, and only its test split is used. For a path, all of its images
      are used.

  Raises:
    ConfigError: the dataset or folder does not exist.
  """
  with schema.enter_key("--dedup-against"):
    if text in catalog.CATALOG and catalog.CATALOG[text].classes:
      return schema.make(Choice(text), catalog.READERS, "test")
    root = paths.expand_home(paths.resolve_path(text, bare=True))
    if not root.exists():
      known = [name for name, row in catalog.CATALOG.items() if row.classes]
      raise schema.ConfigError(f"{text!r} is neither a folder nor a dataset.{schema.suggest_nearest(text, known)}")
    name = "tfds" if (root / "dataset_info.json").exists() else "folder"
    return schema.make(Choice(name, {"path": str(root)}), catalog.READERS, "all")


@dataclasses.dataclass(frozen=True)
class Worker:
  """A function that executes tasks. Each process opens the input and the test sets once.

  Args:
    plan: plan of the corpus.
    folders: folders of the corpus.
    large: see `record_maker.RecordMaker`.
    input: the open input, if the plan was made in this process.
  """

  plan: CorpusPlan
  folders: Folders
  large: Any = dataclasses.field(default_factory=contextlib.nullcontext)
  input: Source | None = None

  def __call__(self, task: HashTask | ShardTask, say: Callable[[Any], None]) -> Any:
    """Executes a task.

    Args:
      task: the task.
      say: called with the progress since the last call: (records, rejected, duplicates) of a shard, or the number of
        hashed images.

    Returns:
      The hashes, or the report of the shard.
    """
    if isinstance(task, HashTask):
      source, hashes = self._test_set(task.test_set), []
      for number in range(task.first, task.stop):
        hashes += duplicates.hash_record(source, number)
        say(1)
      return hashes
    split = self.plan.splits[task.split]
    report = record_maker.ShardReport()
    path = self.folders.shard(self.plan.name, split, task.number)
    record_maker.write_records(path, self._kept(split, split.positions(task.number), report, say))
    report.size = files.get_size(path) or 0
    self.folders.write_report(split, task.number, report)
    return report

  def _kept(
    self, split: CorpusSplit, positions: range, report: record_maker.ShardReport, say: Callable[[Any], None]
  ) -> Iterator[bytes]:
    """Yields the serialized records that are kept, and counts all records."""
    reported, last = (0, 0, 0), time.monotonic()
    for count, record in enumerate(self.make_records(split, positions), 1):
      report.add(record)
      if time.monotonic() - last > EVERY or count == len(positions):
        now = count, len(report.rejected), len(report.duplicates)
        say(tuple(new - old for new, old in zip(now, reported, strict=True)))
        reported, last = now, time.monotonic()
      if record.data is not None:
        yield record.data

  def make_records(self, split: CorpusSplit, positions: range) -> Iterator[record_maker.CorpusRecord]:
    """Yields the records at positions in the order of a split.

    Args:
      split: the split.
      positions: positions in its order.
    """
    together = self.source.runs is not None
    return self.maker.make_records(list_numbers(split, positions, self.plan.options.seed, together))

  @functools.cached_property
  def source(self) -> Source:
    """Returns the input."""
    return self.input or reopen_input(self.plan, self.folders)

  @functools.cached_property
  def maker(self) -> record_maker.RecordMaker:
    """Returns the maker of the records."""
    return record_maker.RecordMaker(self.source, self.plan.options.size, self.index, self.large)

  @functools.cached_property
  def index(self) -> duplicates.HashIndex | None:
    """Returns the index of the test images, or None without test sets."""
    return read_index(self.folders, self.plan.options) if self.plan.options.against else None

  @functools.cached_property
  def _test_set(self) -> Callable[[str], Source]:
    """Returns `open_test_set` with a cache, so that each test set is opened once."""
    return functools.cache(open_test_set)


def reopen_input(made: CorpusPlan, folders: Folders) -> Source:
  """Opens the input of a plan again and checks that it has not changed.

  Args:
    made: the plan.
    folders: folders of the corpus.

  Raises:
    ConfigError: the input has changed or is missing.
  """
  source = open_input(made.data)
  made.check_input(source, folders.work)
  return source


class StoredHashes(NamedTuple):
  """Hashes of all test images.

  Attributes:
    values: `(2 * images,)`, uint64. Each image has two hashes: unchanged, and mirrored.
    counts: number of images of each test set, int64.
    versions: versions of the test sets when they were hashed, see `versions.digest_versions`.
  """

  values: np.ndarray
  counts: np.ndarray
  versions: tuple[str, ...]


def read_test_set_versions(options: CorpusOptions) -> tuple[str, ...]:
  """Returns the present version of each test set."""
  return tuple(versions.digest_versions(open_test_set(text)) for text in options.against)


def write_hashes(folders: Folders, hashed: StoredHashes) -> None:
  """Stores hashes next to a corpus until it is complete.

  Args:
    folders: folders of the corpus.
    hashed: the hashes.
  """
  with files.atomic_write(folders.hashes) as partial, partial.open("wb") as file:
    np.savez(file, hashes=hashed.values, counts=hashed.counts, versions=np.array(hashed.versions))


def read_hashes(folders: Folders) -> StoredHashes | None:
  """Reads the hashes that are stored next to a corpus, or returns None if the file is missing or damaged."""
  try:
    values, counts, versions = archives.load(files.get_local_path(folders.hashes), "hashes", "counts", "versions")
    return StoredHashes(values, counts, tuple(versions.tolist()))
  except (FileNotFoundError, *files.DAMAGE):
    return None


def read_index(folders: Folders, options: CorpusOptions) -> duplicates.HashIndex:
  """Reads the index of the hashes that are stored next to a corpus.

  Args:
    folders: folders of the corpus.
    options: options of the corpus.
  """
  hashed, names = read_hashes(folders), []
  assert hashed is not None, folders
  for text, count in zip(options.against, hashed.counts, strict=True):
    source = open_test_set(text)
    names += [(text, source.identify(number), number) for number in range(count)]
  return duplicates.HashIndex(hashed.values, names, options.distance)
