"""The plan of a corpus, written before all else: what is read, what is made of it, which records each file has."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator

import cv2

from vit_jax import files, schema
from vit_jax.corpora import conversion
from vit_jax.data import catalog, decoding, order, samples, sources, versions
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, ConfigError
from vit_jax.schema.errors import some

FILE = "plan.json"  # beside a corpus until it is whole: the plan, and `contents` of the input
FORM = 1  # of what is written: another number is another corpus
SHARD = 2**28  # bytes: 1,000 files for 256 GiB, and little to do again after a kill
MOST = 4096  # files, as many as a run keeps open (`readers.shards.OPEN`)
# Small corpora are cut finer, so that several cores have something to do: a file has this many images then.
FEW, CORES = 500, 64
SAMPLE = 64  # images that the size of a split is estimated by


@dataclasses.dataclass(frozen=True)
class Options:
  """What is made of the images, besides what the flags of the input say."""

  size: int | None = None  # pixels of the smaller side, at most
  shards: int | None = None  # files of each split
  seed: int = 0  # of the order of records
  against: tuple[str, ...] = ()  # test sets whose images are left out
  distance: int = 0  # bits in which the hashes of two pictures of one thing may differ


@dataclasses.dataclass(frozen=True)
class Split:
  """A split of the corpus: the records `first` to `stop` of the input, in so many shards."""

  name: str
  first: int
  stop: int
  shards: int

  def __len__(self):
    return self.stop - self.first

  def positions(self, shard: int) -> range:
    """Places in the order of the split that are a shard's; as TFDS cuts ordered keys (`shuffle.get_bucket_number`)."""
    starts = [-(-number * (len(self) - 1) // self.shards) for number in (shard, shard + 1)]
    return range(starts[0], len(self) if shard == self.shards - 1 else starts[1])


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that decides the bytes of a corpus."""

  name: str
  data: dict  # the choice of the input, plain
  fingerprint: sources.Fingerprint
  classes: str  # a digest of their names
  labels: int
  splits: tuple[Split, ...]
  options: Options
  against: tuple[tuple[str, str], ...] = ()  # names and digests of the test sets
  quality: int = conversion.QUALITY
  form: int = FORM

  def plain(self) -> dict:
    """As JSON has it."""
    return json.loads(json.dumps(dataclasses.asdict(self) | {"fingerprint": self.fingerprint._asdict()}))

  @classmethod
  def read(cls, values: dict) -> "Plan":
    """The plan that `plain` wrote."""
    fields = {
      "fingerprint": sources.Fingerprint(**values["fingerprint"]),
      "splits": tuple(Split(**split) for split in values["splits"]),
      "options": Options(**values["options"] | {"against": tuple(values["options"]["against"])}),
      "against": tuple(map(tuple, values["against"])),
    }
    return cls(**values | fields)

  def check(self, file: pathlib.Path) -> bool:
    """Whether the file has this plan; False where there is no file, ConfigError for any other plan.

    Where the input lies may change, what is in it may not.
    """
    if not file.exists():
      return False
    try:
      before = files.read_json(file)
    except ConfigError:
      before = None
    if not before:
      again = f"remove {file.parent}, and run the same command again, which makes all of it anew"
      raise ConfigError(f"{file} is damaged, so that nobody knows what was made; {again}")
    mine = self.plain()
    differing = [key for key in mine if key != "data" and mine[key] != before.get(key)]
    if not differing:
      return True
    words = some(_difference(key, before.get(key), mine[key]) for key in differing)
    raise ConfigError(
      f"{file.parent} was begun with other input or options ({words}); give those, take another name, or remove it"
    )

  def check_input(self, source: Source, folder: pathlib.Path) -> None:
    """Checks that a source is the input with which this corpus was started.

    Args:
      source: the input as it is now.
      folder: the folder of the plan, which the message of the error names.

    Raises:
      ConfigError: names, sizes, times, classes or contents of the input differ.
    """
    before = self.fingerprint._asdict() | {"classes": self.classes}
    now = source.fingerprint()._asdict() | {"classes": sources.digest(source.classes)}
    changed = [what for what in now if now[what] != before[what]]
    if not changed and (started := files.read_json(folder / FILE)) and "contents" in started:
      changed = _other_contents(started["contents"], contents(source))
    if changed:
      name = schema.show(self.data.get("path") or source.name)
      raise ConfigError(
        f"the input, {name}, has changed since this corpus was begun ({', '.join(changed)}), of which files are "
        f"written already; when nothing changes it any more, remove {folder}, and run the same command again"
      )


def contents(source: Source) -> dict:
  """Describes the contents of the input for `Plan.check_input`, as JSON values.

  The fingerprint does not show that a file was replaced by one of equal size and time of modification. A restart of a
  run compares the same values, see `identity`.
  """
  return {"samples": samples.of(source), "disks": versions.of_disks(source.files())}


def _other_contents(before, now):
  """Returns the differences between two results of `contents`, in words."""
  pairs = zip(before["samples"], now["samples"], strict=False)
  changed = [old["name"] for old, new in pairs if old["sha256"] and new["sha256"] and old["sha256"] != new["sha256"]]
  if changed:
    return [f"contents, such as of {schema.show(changed[0])}"]
  return [
    "some files were written to or replaced, or their permissions, owner or links changed; the last is "
    f"{schema.show(file)}"
    for file in versions.replaced(before["disks"], now["disks"])[:1]
  ]


def _difference(key, before, now):
  if key == "fingerprint":
    what = [name for name in now if not before or now[name] != before.get(name)]
    return f"the input's files: {', '.join(what)}"
  if isinstance(now, dict) and isinstance(before, dict):
    return ", ".join(
      f"{name}: {before.get(name)!r}, now {now[name]!r}" for name in now if now[name] != before.get(name)
    )
  return f"{key}: {schema.show(before)}, now {schema.show(now)}"


def splits(source: Source, options: Options) -> tuple[Split, ...]:
  """The splits of a source that has all of them, with their shards."""
  ranges, first = {}, 0
  for name, numbers in source.parts or (("train", range(len(source))),):
    assert name not in ranges, name
    if numbers:  # a class of two images has none to hold out
      ranges[name] = first, first + len(numbers)
    first += len(numbers)
  return tuple(
    Split(name, *ends, min(options.shards or _shards(source, *ends, options.size), max(1, (ends[1] - ends[0]) // 2)))
    for name, ends in ranges.items()
  )


def _shards(source, first, stop, size):
  """Files of a split, from the bytes that a few of its images will have."""
  lengths = []
  for number in range(first, stop, max(1, (stop - first) // SAMPLE)):
    try:
      data, _ = source.read(number)
      lengths.append(len(conversion.convert(data, size).data if size else data))
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      if decoding.no_memory(error):  # without this image the files might be fewer
        raise ConfigError(f"{source.place(number)}: not enough memory; it takes a machine with more") from error
      # Any other is seen again, and reported, when its shard is made.
  total = (stop - first) * sum(lengths) / max(1, len(lengths))
  return max(1, min(MOST, round(total / SHARD)), min(CORES, (stop - first) // FEW))


@functools.lru_cache(maxsize=16)
def ordered(split: Split, seed: int, together: bool):
  """The order of a split's records: a permutation, or with `together`, where neighbours are cheaper, one of blocks.

  Blocks of 32 are shuffled over windows of 16 of them (`order.blocks`), so that each is read once. A file is read back
  by neighbours too, of which a run shuffles only so many: were they those of the input, often sorted by class, a batch
  would have few classes.
  """
  return order.auto(len(split), 1, seed, together)


def numbers(split: Split, positions: range, seed: int, together: bool) -> Iterator[int]:
  """Numbers, in the input, of the records at places in the order of a split."""
  ranks = ordered(split, seed, together)
  return (split.first + int(ranks.record(position)) for position in positions)


def opened(data: dict) -> Source:
  """The input: all splits of a data choice, as one source."""
  with schema.at("data"):
    choice = Choice(data["name"], {key: value for key, value in data.items() if key != "name"})
    return schema.make(choice, catalog.READERS, "all")
