"""Sources: labelled image files by record number, undecoded; their split strings; those that TFDS prepared."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from vit_jax import config


class AbsentError(config.ConfigError):
  """The data are not there; says how to get them."""


class SplitError(config.ConfigError):
  """The dataset has no split of that name."""


@dataclasses.dataclass(frozen=True)
class Source:
  """Records of one split: `read(i)` gives (image file, label) and may be called from many threads at once.

  A label is a number, or a tuple of up to `labels` numbers where the dataset has lists of them. `identify(i)` names
  record i in files of predictions; `fingerprint()` changes when the data do, which it does not read.
  """

  name: str
  split: str
  classes: tuple[str, ...]
  length: int
  read: Callable[[int], tuple[bytes, int | tuple[int, ...]]]
  place: Callable[[int], str]  # where record i comes from, in words, for errors
  labels: int = 1  # the most that one image has
  identify: Callable[[int], str] = str
  fingerprint: Callable[[], str] = str  # "": nothing is known
  read_label: Callable[[int], int | tuple[int, ...]] | None = None  # where it costs less than `read`
  parts: tuple[tuple[str, range], ...] = ()  # splits of the dataset and their records, where these are known

  def __len__(self):
    return self.length

  def label(self, i: int) -> int | tuple[int, ...]:
    """The label of record i; its image is not decoded, and if possible not read."""
    return self.read_label(i) if self.read_label else self.read(i)[1]


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


def select(spec: str, sizes: Mapping[str, int], where: str) -> list[tuple[str, range]]:
  """Parts of a split string, in order: "train", "train[:99%]", "train[10:-20]", "train+test[50%:]", "all".

  Percentages round to the nearest record, as in TFDS, so that `[:99%]` and `[99%:]` never overlap and lose nothing.
  """
  parts = []
  for text in spec.split("+") if spec.strip() != "all" else sizes:
    match = _PART.fullmatch(text.strip())
    if not match:
      raise config.ConfigError(
        f"{where}: {text.strip()!r} is not a split; write 'train', 'train[:99%]' or 'train[10:20]'"
      )
    name, low, low_unit, high, high_unit = match.groups()
    if name not in sizes:
      raise SplitError(f"{where}: no split {name!r}.{config.nearest(name, sizes)}")
    if low and high and low_unit != high_unit and float(low) and float(high):
      raise config.ConfigError(f"{where}: {text.strip()!r} mixes records and percent; use one unit on both sides")
    ends = [_end(value, low_unit or high_unit, sizes[name], f"{where}: {text.strip()!r}") for value in (low, high)]
    parts.append((name, range(ends[0] or 0, sizes[name] if ends[1] is None else ends[1])))
  if not sum(len(r) for _, r in parts):
    raise config.ConfigError(f"{where}: {spec!r} holds no record; the splits are {dict(sizes)}")
  return parts


def split_names(specs: Iterable[str]) -> set[str]:
  """The names in split strings, whether or not there are such splits: "train[:99%]+test" has train and test."""
  return {match[1] for spec in specs for text in spec.split("+") if (match := _PART.fullmatch(text.strip()))}


def _end(value, unit, size, what):
  if not value:
    return None
  try:
    end = round(float(value) * size / 100) if unit else int(value)
  except (ValueError, OverflowError):
    raise config.ConfigError(f"{what} has no number before or after the colon: {value!r}") from None
  if abs(end) > size:
    raise config.ConfigError(f"{what} reaches outside of the split, which has {size} records")
  return end + size if value.startswith("-") else end


def assemble(name, spec, classes, parts, read, place, identify, fingerprint, labels=1, read_label=None) -> Source:
  """One source over parts of splits; all but `fingerprint` take a split and a record number of all of it."""

  def locate(i):
    for split, numbers in parts:
      if i < len(numbers):
        return split, numbers[i]
      i -= len(numbers)
    raise IndexError(f"record {i} is past the end of {name} {spec!r}")

  def describe(i):
    split, number = locate(i)
    return f"{name}, split {split!r}, record {number}{place(split, number)}"

  length = sum(len(r) for _, r in parts)
  return Source(
    name,
    spec,
    tuple(classes),
    length,
    lambda i: read(*locate(i)),
    describe,
    labels,
    lambda i: identify(*locate(i)),
    fingerprint,
    (lambda i: read_label(*locate(i))) if read_label else None,
    tuple(parts),
  )


# Fingerprints.


def stamp(file: str | os.PathLike) -> tuple[int, int]:
  """(size in bytes, time of last change in ns) of a local file."""
  found = os.stat(file)
  return found.st_size, found.st_mtime_ns


def digest(about, stamps: Iterable) -> str:
  """SHA-256 of the representations: those of strings show every character, also of names that are no Unicode."""
  hashed = hashlib.sha256(repr(about).encode())
  for found in stamps:
    hashed.update(repr(found).encode())
  return hashed.hexdigest()


# TFDS.


def data_dir(path: str | None):
  """The TFDS data directory: `path`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets. Knows gs:// too."""
  import tensorflow_datasets as tfds  # 0.3 s, only for runs that read TFDS; it does not import TensorFlow

  return tfds.core.Path(path or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def open_tfds(
  builder: str | None, path: str | None, counts: Mapping[str, int], labels: int, spec: str, where: str, remedy: str
) -> Source:
  """A split of the prepared dataset `builder` ("cifar10:3.0.2"); `path` is a data directory or the builder directory.

  Only `array_record` files give records by number. `counts` are the sizes that the catalog states, if any; `labels` is
  the most that an image has where they are lists. Errors end in `remedy`; AbsentError if there is no such dataset.
  """
  import tensorflow_datasets as tfds

  folder = builder_dir(builder, path)
  if folder is None:
    missing = f"dataset {builder!r} is not in {data_dir(path)}" if builder else f"no dataset_info.json in {path!r}"
    raise AbsentError(f"{where}: {missing}; {remedy}")
  try:
    opened = tfds.builder_from_directory(folder)
  except (tfds.core.registered.DatasetNotFoundError, ValueError, OSError) as error:
    raise config.ConfigError(f"config.data.path: {folder} is not a TFDS dataset: {error}; {remedy}") from error
  info, again = opened.info, f"remove it and {remedy}" if builder else remedy
  if builder and info.name != re.split("[:/]", builder)[0]:
    raise config.ConfigError(f"config.data.path: {folder} holds the dataset {info.name!r}, not {builder!r}")
  if info.file_format is not tfds.core.FileFormat.ARRAY_RECORD:
    form = info.file_format.value
    raise config.ConfigError(f"{where}: {folder} is in {form} format, not array_record; {again}")
  sizes = {split: opened.info.splits[split].num_examples for split in opened.info.splits}
  for split, count in counts.items():
    if sizes.get(split) != count:
      raise config.ConfigError(
        f"{where}: {folder} has {sizes.get(split, 'no')} records in {split!r}, not {count}; {again}"
      )
  image, label = (_key(info.features, kind, where) for kind in (tfds.features.Image, tfds.features.ClassLabel))
  parts = select(spec, sizes, where)
  # Other features (a mask, a file name) are neither parsed nor decoded.
  features = tfds.features.FeaturesDict({key: info.features[key] for key in (image, label)})
  undecoded = {image: tfds.decode.SkipDecoding()}
  raw = tfds.decode.DeserializeMethod.RAW_BYTES
  records = {split: opened.as_data_source(split=split, deserialize_method=raw) for split in {s for s, _ in parts}}

  def read(split, i):
    record = features.deserialize_example_np(records[split][i], decoders=undecoded)
    found = record[label]
    return record[image], tuple(map(int, found)) if listed else int(found)

  listed = isinstance(info.features[label], tfds.features.Sequence)
  classes = (info.features[label].feature if listed else info.features[label]).names
  return assemble(
    info.name,
    spec,
    classes,
    parts,
    read,
    lambda *_: "",
    lambda split, i: f"{split}/{i}",
    lambda: _reach(folder, lambda: digest((folder.parts[-2:], parts), _stamps(folder))),
    labels if listed else 1,
  )


def _stamps(folder):
  """(name, size, time of last change) of the files of a TFDS directory."""
  for file in sorted(folder.iterdir(), key=lambda f: f.name):
    if "://" in str(folder):
      found = file.stat()
      yield file.name, found.length, found.mtime  # whole seconds: buckets tell no more
    else:
      yield file.name, *stamp(file)


def builder_dir(builder: str | None, path: str | None):
  """Directory with dataset_info.json: `path` itself, or the highest version of `builder` in the data directory.

  None if there is none; AbsentError for a bucket that cannot be reached.
  """
  root = data_dir(path)
  return _reach(root, lambda: _builder_dir(root, builder, path))


def _reach(root, ask):
  """What `ask()` says of a directory; AbsentError if it is in a bucket and does not answer."""
  if "://" not in str(root):
    return ask()
  import tensorflow as tf  # TFDS reads buckets with it, and passes its errors on

  try:
    return ask()
  except (OSError, tf.errors.OpError) as error:
    raise AbsentError(f"config.data.path: {root} cannot be reached: {str(error).splitlines()[0]}") from error


def _builder_dir(root, builder, path):
  import tensorflow_datasets as tfds

  if path and (root / "dataset_info.json").exists():
    return root
  if not builder:
    return None
  name, _, version = builder.partition(":")
  if version:
    found = [root / name / version]
  else:
    folders = (root / name).iterdir() if (root / name).is_dir() else ()
    found = sorted((f for f in folders if tfds.core.Version.is_valid(f.name)), key=lambda f: tfds.core.Version(f.name))
  found = [f for f in found if (f / "dataset_info.json").exists()]
  return found[-1] if found else None


def _key(features, kind, where):
  """The feature of a kind, or for labels the list of that kind; "image" and "label" before others."""

  def fits(feature):
    return isinstance(feature, kind) or (preferred == "label" and isinstance(getattr(feature, "feature", None), kind))

  preferred = {"Image": "image", "ClassLabel": "label"}[kind.__name__]
  keys = [key for key, feature in features.items() if fits(feature)]
  if preferred not in keys and len(keys) != 1:
    raise config.ConfigError(f"{where}: the dataset needs one {kind.__name__} feature; it has {keys or 'none'}")
  return preferred if preferred in keys else keys[0]
