"""The plan of a corpus, written first: the input, the processing, and the records of each file."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import cv2

from vit_jax import schema
from vit_jax.corpora import conversion
from vit_jax.data import catalog, decoding, order, samples, sources, versions
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, ConfigError
from vit_jax.schema.errors import format_names
from vit_jax.storage import files

FILE = "plan.json"  # the plan and `describe_contents` of the input, stored next to a corpus until it is complete
FORM = 1  # version of the output: another number results in another corpus
SHARD = 2**28  # bytes of a file: 1,000 files for 256 GiB, and little work is repeated after a kill
MOST = 4096  # maximum number of files, because a run keeps this number open (`readers.shards.OPEN`)
# Small corpora are divided further, so that several cores have work. A file then has this number of images.
FEW, CORES = 500, 64
SAMPLE = 64  # images that are read to estimate the size of a split


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
  """Options for the processing of the images, except those of the input.

  Attributes:
    size: maximum number of pixels of the smaller side, or None to keep all sizes.
    shards: number of files of each split, or None to derive it from the size.
    seed: seed of the order of records.
    against: test sets. Duplicates of their images are omitted.
    distance: maximum number of bits in which the hashes of duplicates differ.
  """

  size: int | None = None
  shards: int | None = None
  seed: int = 0
  against: tuple[str, ...] = ()
  distance: int = 0


@dataclasses.dataclass(frozen=True)
class CorpusSplit:
  """A split of the corpus: the records `first` to `stop` of the input (exclusive), divided into shards.

  Attributes:
    name: name of the split.
    first: number of the first record.
    stop: number after the last record.
    shards: number of files.
  """

  name: str
  first: int
  stop: int
  shards: int

  def __len__(self) -> int:
    return self.stop - self.first

  def positions(self, shard: int) -> range:
    """Returns the positions of a shard in the order of the split.

    TFDS divides ordered keys in the same way (`shuffle.get_bucket_number`).

    Args:
      shard: number of the shard.
    """
    starts = [-(-number * (len(self) - 1) // self.shards) for number in (shard, shard + 1)]
    return range(starts[0], len(self) if shard == self.shards - 1 else starts[1])


@dataclasses.dataclass(frozen=True)
class CorpusPlan:
  """All settings that determine the bytes of a corpus.

  Attributes:
    name: name of the dataset.
    data: the choice of the input as plain data.
    fingerprint: names, sizes and times of the input's files.
    classes: a digest of the names of the classes.
    labels: maximum number of labels of an image.
    splits: the splits.
    options: options for the processing.
    against: (name, digest) of the test sets.
    quality: quality of JPEGs.
    form: version of the output.
  """

  name: str
  data: dict[str, Any]
  fingerprint: sources.Fingerprint
  classes: str
  labels: int
  splits: tuple[CorpusSplit, ...]
  options: CorpusOptions
  against: tuple[tuple[str, str], ...] = ()
  quality: int = conversion.QUALITY
  form: int = FORM

  def to_json(self) -> dict[str, Any]:
    """Returns the plan as JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(self) | {"fingerprint": self.fingerprint._asdict()}))

  @classmethod
  def read(cls, values: dict[str, Any]) -> "CorpusPlan":
    """Returns the plan that `to_json` converted to JSON values."""
    fields = {
      "fingerprint": sources.Fingerprint(**values["fingerprint"]),
      "splits": tuple(CorpusSplit(**split) for split in values["splits"]),
      "options": CorpusOptions(**values["options"] | {"against": tuple(values["options"]["against"])}),
      "against": tuple(map(tuple, values["against"])),
    }
    return cls(**values | fields)

  def check(self, file: pathlib.Path) -> bool:
    """Compares this plan with a stored one. The location of the input may differ, but not its contents.

    Args:
      file: the stored plan.

    Returns:
      True if the file contains this plan, false if the file does not exist.

    Raises:
      ConfigError: the file contains another plan or is damaged.
    """
    if not file.exists():
      return False
    try:
      before = files.read_json(file)
    except ConfigError:
      before = None
    if not before:
      again = f"remove {file.parent}, and run the same command again to rebuild it completely"
      raise ConfigError(f"{file} is damaged, so the progress is unknown. To fix it, {again}")
    mine = self.to_json()
    differing = [key for key in mine if key != "data" and mine[key] != before.get(key)]
    if not differing:
      return True
    words = format_names(_describe_difference(key, before.get(key), mine[key]) for key in differing)
    raise ConfigError(
      f"{file.parent} was started with other input or options ({words}). Use the same input and options, "
      "use another name, or remove the directory"
    )

  def check_input(self, source: Source, folder: pathlib.Path) -> None:
    """Checks that a source is the input with which this corpus was started.

    Args:
      source: the input in its present state.
      folder: the folder of the plan, which the error message names.

    Raises:
      ConfigError: names, sizes, times, classes or contents of the input differ.
    """
    before = self.fingerprint._asdict() | {"classes": self.classes}
    now = source.fingerprint()._asdict() | {"classes": sources.digest(source.classes)}
    changed = [what for what in now if now[what] != before[what]]
    if not changed and (started := files.read_json(folder / FILE)) and "contents" in started:
      changed = _describe_changes(started["contents"], describe_contents(source))
    if changed:
      name = schema.show(self.data.get("path") or source.name)
      raise ConfigError(
        f"the input, {name}, has changed since this corpus was started ({', '.join(changed)}), and some files "
        f"are already written. When the input no longer changes, remove {folder}, and run the same command again"
      )


def describe_contents(source: Source) -> dict[str, Any]:
  """Describes the contents of the input for `CorpusPlan.check_input`, as JSON values.

  The fingerprint does not reveal that a file was replaced by one of equal size and modification time. A restart of a
  run compares the same values, see `identity`.

  Args:
    source: the input.
  """
  return {"samples": samples.describe_samples(source), "disks": versions.record_changes(source.files())}


def _describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """Returns the differences between two results of `describe_contents`, in words."""
  pairs = zip(before["samples"], now["samples"], strict=False)
  changed = [old["name"] for old, new in pairs if old["sha256"] and new["sha256"] and old["sha256"] != new["sha256"]]
  if changed:
    return [f"contents of files such as {schema.show(changed[0])}"]
  return [
    "some files were modified or replaced, or their permissions, owner or links changed. The last "
    f"one is {schema.show(file)}"
    for file in versions.find_replaced(before["disks"], now["disks"])[:1]
  ]


def _describe_difference(key: str, before: Any, now: Any) -> str:
  if key == "fingerprint":
    what = [name for name in now if not before or now[name] != before.get(name)]
    return f"the input's files: {', '.join(what)}"
  if isinstance(now, dict) and isinstance(before, dict):
    return ", ".join(
      f"{name}: {before.get(name)!r}, now {now[name]!r}" for name in now if now[name] != before.get(name)
    )
  return f"{key}: {schema.show(before)}, now {schema.show(now)}"


def plan_splits(source: Source, options: CorpusOptions) -> tuple[CorpusSplit, ...]:
  """Returns the splits of a corpus, with their numbers of shards.

  Args:
    source: the input with all of its splits.
    options: options for the processing.

  Raises:
    ConfigError: memory is not sufficient to read an image.
  """
  ranges, first = {}, 0
  for name, numbers in source.parts or (("train", range(len(source))),):
    assert name not in ranges, name
    if numbers:  # a class of two images cannot hold out any
      ranges[name] = first, first + len(numbers)
    first += len(numbers)
  return tuple(
    CorpusSplit(
      name, *ends, min(options.shards or _count_shards(source, *ends, options.size), max(1, (ends[1] - ends[0]) // 2))
    )
    for name, ends in ranges.items()
  )


def _count_shards(source: Source, first: int, stop: int, size: int | None) -> int:
  """Returns the number of files of a split, estimated from the sizes of a few images."""
  lengths = []
  for number in range(first, stop, max(1, (stop - first) // SAMPLE)):
    try:
      data, _ = source.read(number)
      lengths.append(len(conversion.convert_image(data, size).data if size else data))
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      if decoding.is_out_of_memory(error):  # without this image the number of files might be smaller
        raise ConfigError(f"{source.place(number)}: not enough memory. Use a machine with more memory") from error
      # Any other error occurs again, and is reported, when the shard is made.
  total = (stop - first) * sum(lengths) / max(1, len(lengths))
  return max(1, min(MOST, round(total / SHARD)), min(CORES, (stop - first) // FEW))


@functools.lru_cache(maxsize=16)
def shuffle_records(split: CorpusSplit, seed: int, together: bool) -> Any:
  """Returns the order of a split's records: a permutation of records, or of blocks of records.

  Blocks of 32 are shuffled over windows of 16 blocks (`order.blocks`), so that each block is read once. A run that
  reads the corpus also reads neighbours together and shuffles only a limited number of them. If the corpus had the
  order of the input, which is often sorted by class, a batch would contain few classes.

  Args:
    split: the split.
    seed: seed of the order.
    together: true shuffles blocks, for an input in which neighbouring records are cheaper to read.
  """
  return order.auto(len(split), 1, seed, together)


def list_numbers(split: CorpusSplit, positions: range, seed: int, together: bool) -> Iterator[int]:
  """Returns the input's record numbers at positions in the order of a split.

  Args:
    split: the split.
    positions: positions in the order.
    seed: seed of the order.
    together: see `shuffle_records`.
  """
  ranks = shuffle_records(split, seed, together)
  return (split.first + int(ranks.record(position)) for position in positions)


def open_input(data: dict[str, Any]) -> Source:
  """Opens the input: all splits of a data choice, as one source.

  Args:
    data: a choice of the catalog's READERS as plain data.

  Raises:
    ConfigError: the input is missing or unsuitable.
  """
  with schema.enter_key("data"):
    choice = Choice(data["name"], {key: value for key, value in data.items() if key != "name"})
    return schema.make(choice, catalog.READERS, "all")
