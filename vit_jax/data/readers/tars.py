"""The reader of WebDataset tar shards. It reads single records without extracting the archive.

A sample consists of neighbouring members with the same name up to the first dot, such as `n01440764_10.jpg` and
`n01440764_10.cls` (https://github.com/webdataset/webdataset). As in timm's version of ImageNet, `cls` contains a
number, and `json` contains a "label". Members with a longer extension, such as `10.seg.png`, are not read.
"""

import array
import functools
import os
import posixpath
import re
import tarfile
from collections.abc import Container, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from vit_jax.data import sources
from vit_jax.data.class_names import NameOrder
from vit_jax.data.readers import index, indexed, listing, overlaps
from vit_jax.data.readers.index import Arrays
from vit_jax.data.readers.indexed import IndexedRecords
from vit_jax.data.readers.labels import NAMES, LabelCollector, MaxLabels, parse_class_names
from vit_jax.data.readers.listing import Files
from vit_jax.data.readers.tree import EXTENSIONS
from vit_jax.schema import ConfigError, format_amount, show
from vit_jax.storage.files import parse_json

IMAGES = tuple(each.removeprefix(".") for each in EXTENSIONS)
TEXTS = ("cls", "json", "txt")
TEXT_BYTES = 2**20  # largest size of a file with a label, in bytes
BLOCK = 2**14  # bytes per read during a scan of a local shard; the content of images is skipped
BEHIND = 2**20  # largest number of zero bytes after the end of the archive
_NUMERIC = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def tars(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  classes: str | int | None = None,
  class_order: NameOrder = "numeric",
  label: str = "label",
  labels: MaxLabels = 1,
) -> sources.Source:
  """Opens a split of tar shards.

  When a split is opened for the first time, the headers of all its shards are read. On a disk, this reads 1 MB per
  1,000 images. From a bucket, it reads all bytes. The result is stored in this machine's cache. It contains the name
  and 24 bytes for each image.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string. The split of a shard follows from its name, see
      `listing.parse_split`.
    path: a directory, a shard, or a pattern such as imagenet1k-train-{0000..1023}.tar, on a disk or in a bucket.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.
    classes: a text file with one name per line, or the number of classes. Default: the used names, or the numbers up
      to the largest in the splits of the config. See `labels` for the meaning of labels.
    class_order: order of used names. "numeric" sorts numbers by value. "text" sorts "10" before "2".
    label: key of the label in the json of a sample. It is used if a sample has no cls. If a sample has neither a cls
      nor this key, the label is its txt.
    labels: largest number of labels of an image. A number above 1 allows lists in json.

  Raises:
    AbsentError: if `path` contains no shards.
    ConfigError: if a shard is damaged, or if a sample or a label is invalid.
    SplitError: if the split does not exist.
  """
  splits, named = sources.Splits(train, val, test), parse_class_names(classes)
  files = listing.list_files(path, (".tar",), "tar shards")
  shards = listing.group_by_split(files)

  @functools.cache
  def scan_shards(part: str) -> list[Arrays]:
    return index.load_or_scan("tars", shards[part], functools.partial(_scan, shards[part], label), (label, IMAGES))

  known = {
    part: (shards[part], scan_shards(part)) for part in indexed.find_needed_splits(shards, splits, split, named is None)
  }
  names, records = indexed.resolve_labels(known, named, labels, _locate_member, order=class_order)
  parts = splits.select(split, indexed.count_records(records, shards))
  source = indexed.create_source(
    *(name, splits.spec(split), names, parts, records, labels, _locate_member),
    together=int(files.remote),
    remote=files.remote,
    identify=_identify,
  )
  return sources.add_notes(
    source, *(overlaps.find_member_overlaps(splits, shards, scan_shards, _locate_member) if split == "train" else ())
  )


def _identify(part: str, records: IndexedRecords, i: int) -> str:
  files, file, arrays, number = records.locate(i)
  return f"{files.names[file]}/{_read_member_name(arrays, number)}"


def _locate_member(files: Files, file: int, arrays: Arrays, record: int) -> str:
  return f"{files.path(file)}, member {_read_member_name(arrays, record)!r}"


def _read_member_name(arrays: Arrays, record: int) -> str:
  """Returns the name of a record's image in its shard."""
  return _slice_name(arrays["names_of_members"], arrays["name_ends"], record)


def _slice_name(members: bytearray | np.ndarray, ends: Sequence[int] | np.ndarray, record: int) -> str:
  """Returns a name from the concatenated names of all members."""
  return bytes(members[ends[record - 1] if record else 0 : ends[record]]).decode("utf-8", "surrogateescape")


def _normalise_name(name: str) -> str:
  """Returns the normalised name of a member: "a/1.jpg" for "./a//1.jpg" and "/a/1.jpg"."""
  return posixpath.normpath(name).lstrip("/")


# Scan of a shard.


_Longer = dict[tuple[str, str], dict[str, str]]  # (sample, name without the last extension) -> {extension: member}


class _Sample(NamedTuple):
  """Members with the same name up to the first dot.

  Attributes:
    key: the common name, as normalised by `_normalise_name`.
    first: name of the first member.
    images: (member, first byte, bytes) by normalised name.
    texts: (member, content) by extension.
  """

  key: str
  first: str
  images: dict[str, tuple[str, int, int]]
  texts: dict[str, tuple[str, bytes]]


def _scan(files: Files, label: str | None, file: int) -> Arrays:
  """Returns positions, names and labels of the images of a shard. Raises ConfigError with shard and member."""
  path = files.path(file)
  members, starts, lengths = bytearray(), array.array("q"), array.array("q")
  ends, keys, labels, seen, longer = array.array("q"), array.array("q"), LabelCollector(), {}, {}
  for sample in _read_samples(path, files.open_stream(file, BLOCK), longer):
    if sample.key in seen:
      before = _slice_name(members, ends, seen[sample.key])
      raise ConfigError(
        f"{path} has sample {sample.key!r} twice, the members {before!r} and {sample.first!r}. Members of one sample "
        "must be neighbours. Remove or rename one of two samples",
        "path",
      )
    seen[sample.key] = len(ends)
    if len(sample.images) != 1:
      there = f"{len(sample.images)} images, {sorted(sample.images)}" if sample.images else "no image"
      raise ConfigError(f"{path}, sample {sample.key!r}, has {there}. Allowed: one of {', '.join(IMAGES)}", "path")
    ((member, start, size),) = sample.images.values()
    starts.append(start)
    lengths.append(size)
    members += member.encode("utf-8", "surrogateescape")
    ends.append(len(members))
    keys.append(overlaps.compute_member_key(member, size))
    try:
      labels.add(_read_label(sample, label))
    except ValueError as error:
      raise ConfigError(f"{path}, member {member!r}: {error}", "path") from error
  _check_longer(path, longer, seen)
  if not starts:
    raise ConfigError(f"{path} contains no image ({', '.join(IMAGES)})", "path")
  return labels.arrays() | {
    "starts": np.array(starts, np.int64),
    "sizes": np.array(lengths, np.int64),
    "name_ends": np.array(ends, np.int64),
    "keys": np.array(keys, np.int64),
    "names_of_members": np.frombuffer(bytes(members), np.uint8),
  }


def _check_longer(path: str, longer: _Longer, samples: Container[str]) -> None:
  """Raises ConfigError for images that were probably meant as samples but have a dot within their names."""
  unused = [
    member
    for (key, _), by_extension in longer.items()
    for extension, member in by_extension.items()
    if extension in IMAGES and (key not in samples or not by_extension.keys().isdisjoint(TEXTS))
  ]
  if unused:
    folder, base = os.path.split(unused[0])
    stem, extension = os.path.splitext(base)
    better = os.path.join(folder, stem.replace(".", "_") + extension)
    raise ConfigError(
      f"{path} has {format_amount(len(unused), 'image')} without a sample, the first {unused[0]!r}: in WebDataset a "
      f"sample's name "
      f"ends at its first dot. Write it as {better!r}",
      "path",
    )


def _read_samples(path: str, file: BinaryIO, longer: _Longer) -> Iterator[_Sample]:
  """Yields the samples of an open shard.

  Members with a further extension, such as `a.seg.png`, are added to `longer`, by name without the last extension.
  """
  sample = None
  for member in _read_members(path, file):
    name = _normalise_name(member.name)
    folder, base = posixpath.split(name)
    stem, _, extension = base.partition(".")
    extension = extension.lower()
    if stem and "." in extension and member.isreg():
      before, _, last = name.rpartition(".")
      if last.lower() in (*IMAGES, *TEXTS):
        longer.setdefault((posixpath.join(folder, stem), before), {})[last.lower()] = member.name
    if not stem or extension not in (*IMAGES, *TEXTS) or member.isdir():
      continue
    if not member.isreg() or member.issparse():
      raise ConfigError(
        f"{path}, member {member.name!r}, is not a regular file. Store the file itself in the archive", "path"
      )
    key = posixpath.join(folder, stem)
    if sample is None or sample.key != key:
      if sample:
        yield sample
      sample = _Sample(key, member.name, {}, {})
    if earlier := sample.images.get(name) or sample.texts.get(extension):
      both = "" if earlier[0] == member.name else f"; its first name is {earlier[0]!r}"
      raise ConfigError(f"{path} has member {member.name!r} twice{both}. Remove or rename one of them", "path")
    if extension in IMAGES:
      sample.images[name] = member.name, member.offset_data, member.size
      continue
    if member.size > TEXT_BYTES:
      raise ConfigError(f"{path}, member {member.name!r}, has {member.size:,} bytes. Allowed: {TEXT_BYTES:,}", "path")
    file.seek(member.offset_data)
    sample.texts[extension] = member.name, file.read(member.size)
  if sample:
    yield sample


class _HeaderFile:
  """A file with limited reads, because the header of a long name may claim a size of 2^40 bytes."""

  def __init__(self, file: BinaryIO) -> None:
    self._file = file
    self.tell, self.seek = file.tell, file.seek

  def read(self, size: int) -> bytes:
    """Reads `size` bytes. Raises ReadError if `size` is larger than any header."""
    if not 0 <= size <= TEXT_BYTES:
      raise tarfile.ReadError(f"a header has {size:,} bytes")
    return self._file.read(size)


def _read_members(path: str, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
  """Yields the headers of a tar. Raises ConfigError if the tar is damaged. Does not check the content of members."""
  end, size = 0, file.seek(0, os.SEEK_END)
  file.seek(0)
  try:
    # typeshed requires files with `write` and `close`, which reading does not call.
    with tarfile.open(fileobj=_HeaderFile(file), mode="r:", errorlevel=2) as tar:  # type: ignore[call-overload]
      while member := tar.next():
        if member.size < 0 or tar.offset > size:
          raise tarfile.ReadError(f"a member has {member.size:,} bytes, but the file ends after {size:,}")
        tar.members.clear()  # a shard may have millions of members
        yield member
        end = tar.offset
      end = tar.offset
  # Damaged headers can contain any sizes and names. A seek to 2^64 raises ValueError, and 3,000 names of one member
  # raise RecursionError.
  except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
    raise ConfigError(
      f"{path} is not a complete tar. Reading failed at byte {end:,} ({error}). Use uncompressed tar files", "path"
    ) from error
  # Python's reader interprets a damaged header as the end of the archive.
  file.seek(end)
  if (behind := file.read(BEHIND)).strip(b"\0") or len(behind) == BEHIND:
    raise ConfigError(
      f"{path} is damaged at byte {end:,}: neither a header nor the end of the archive was found", "path"
    )
  if len(behind) < 512:
    raise ConfigError(f"{path} is cut off at byte {end:,}: the empty block of a tar's end is missing", "path")


def _read_label(sample: _Sample, key: str | None) -> Any:
  """Returns the label of a sample. Raises ValueError if it is missing, or if cls and json contradict each other."""
  found = {}
  if "json" in sample.texts:
    try:
      about = parse_json(sample.texts["json"][1])
    except ValueError as error:
      raise ValueError(f"{sample.texts['json'][0]!r} is not JSON ({error})") from error
    found = about if isinstance(about, dict) else {}
  if "cls" in sample.texts:
    label = _parse_label(*sample.texts["cls"])
    if key in found:
      _check_same(sample, label, key, found[key])
    return label
  if key in found:
    return found[key]
  if "txt" in sample.texts:
    return _parse_label(*sample.texts["txt"])
  raise ValueError(f"it has no label. Allowed: a .cls file, the key {key!r} in a .json file, or a .txt file")


def _check_same(sample: _Sample, label: int | str, key: str | None, other: object) -> None:
  """Raises ValueError if json and cls have different labels. A number and a name are not compared."""
  several = other if isinstance(other, list) else [other]
  comparable = [each for each in several if type(each) is type(label)]
  if comparable and label not in comparable:
    raise ValueError(
      f"sample {sample.key!r} has label {show(label)} in {sample.texts['cls'][0]!r}, but {key!r} is {show(other)} in "
      f"{sample.texts['json'][0]!r}. Correct one of them, or set label to another key of the json"
    )


def _parse_label(member: str, content: bytes) -> int | str:
  """Returns the number or name that a member contains."""
  try:
    text = content.decode("utf-8-sig").strip()
  except UnicodeDecodeError:
    raise ValueError(f"{member!r} is not text") from None
  if text.isascii() and text.isdigit() and len(text) < 10:
    return int(text)
  if _NUMERIC.fullmatch(text):
    raise ValueError(f"label {show(text)} is not a class number. Use a number from 0 and below {NAMES:,}, or a name")
  return text
