"""Tar shards of WebDataset as sources, where they are: no member is extracted, and any record is read by itself.

A sample is the neighbouring members that are called alike up to the first dot of their name: `n01440764_10.jpg`,
`n01440764_10.cls` (https://github.com/webdataset/webdataset). As timm has ImageNet: `cls` a number, json a "label".
What has a longer ending, as `10.seg.png`, is not read.
"""

import array
import functools
import os
import posixpath
import re
import tarfile
from typing import NamedTuple

import numpy as np

from vit_jax.data import sources
from vit_jax.data.class_names import Order
from vit_jax.data.readers import index, indexed, listing, overlaps
from vit_jax.data.readers.labels import NAMES, Collected, Most, class_names
from vit_jax.data.readers.tree import EXTENSIONS
from vit_jax.files import parse_json
from vit_jax.schema import ConfigError, amount, show

IMAGES = tuple(each.removeprefix(".") for each in EXTENSIONS)
TEXTS = ("cls", "json", "txt")
TEXT_BYTES = 2**20  # of a file with a label
BLOCK = 2**14  # bytes that are read at a time while a shard of a disk is looked through: images are left out
BEHIND = 2**20  # zeros that may follow the end, up to
_NUMERIC = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def tars(
  name: str,
  row: sources.Row,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  classes: str | int | None = None,
  class_order: Order = "numeric",
  label: str = "label",
  labels: Most = 1,
) -> sources.Source:
  """A split of tar shards: `path` is their folder, one of them, or a pattern such as imagenet1k-train-{0000..1023}.tar.

  The first time, the headers of all shards of a split are read, on a disk 1 MB for 1,000 images, of a bucket all bytes;
  what they say is kept in this machine's cache, 24 bytes an image and its name.

  Args:
    name: of the data.
    row: of the catalog.
    split: "train", "val", "test" or a split string; which split a shard is of, its name says, see `listing.split_of`.
    path: on a disk or in a bucket.
    train: split string.
    val: split string.
    test: split string.
    classes: a text file with their names, one a line, or their number; by default the names in use, or the numbers up
      to the largest in the splits of the config. See `labels` for what a label means.
    class_order: of names in use: "numeric", numbers by value, or "text", so that "10" comes before "2".
    label: what the label is called in a sample's json, where it has no cls; without both it is what the txt says.
    labels: the most that one image has; more than one allows lists in json.
  """
  splits, named = sources.Splits(train, val, test), class_names(classes)
  files = listing.listed(path, (".tar",), "tar shards")
  shards = listing.by_split(files)

  @functools.cache
  def scanned(part):
    return index.made("tars", shards[part], functools.partial(_scan, shards[part], label), (label, IMAGES))

  known = {part: (shards[part], scanned(part)) for part in indexed.used(shards, splits, split, named is None)}
  names, records = indexed.resolved(known, named, labels, _where, order=class_order)
  parts = splits.select(split, indexed.sizes(records, shards))
  source = indexed.source(
    *(name, splits.spec(split), names, parts, records, labels, _where),
    together=int(files.remote),
    remote=files.remote,
    identify=_identify,
  )
  return sources.noted(source, *(overlaps.of_members(splits, shards, scanned, _where) if split == "train" else ()))


def _identify(part, records, i):
  files, file, arrays, number = records.locate(i)
  return f"{files.names[file]}/{_member(arrays, number)}"


def _where(files, file, arrays, record):
  return f"{files.path(file)}, member {_member(arrays, record)!r}"


def _member(arrays, record):
  """The name of a record's image in its shard."""
  return _name(arrays["names_of_members"], arrays["name_ends"], record)


def _name(members, ends, record):
  """A name among all names, one after the other, that end there."""
  return bytes(members[ends[record - 1] if record else 0 : ends[record]]).decode("utf-8", "surrogateescape")


def _normal(name):
  """The name of a member without what a file system ignores: "./a//1.jpg" and "/a/1.jpg" are "a/1.jpg"."""
  return posixpath.normpath(name).lstrip("/")


# Looking through a shard.


class _Sample(NamedTuple):
  """Members that are called alike."""

  key: str  # as of `_normal`
  first: str  # the first member
  images: dict[str, tuple[str, int, int]]  # (member, first byte, bytes) by normal name
  texts: dict[str, tuple[str, bytes]]  # (member, content) by extension


def _scan(files, label, file):
  """Where the images of a shard are, their names and labels; ConfigError that names shard and member."""
  path = files.path(file)
  members, starts, lengths = bytearray(), array.array("q"), array.array("q")
  ends, keys, labels, seen, longer = array.array("q"), array.array("q"), Collected(), {}, {}
  for sample in _samples(path, files.stream(file, BLOCK), longer):
    if sample.key in seen:
      before = _name(members, ends, seen[sample.key])
      raise ConfigError(
        f"{path} has sample {sample.key!r} twice, the members {before!r} and {sample.first!r}. Members of one sample "
        "must be neighbours; remove or rename one of two samples",
        "path",
      )
    seen[sample.key] = len(ends)
    if len(sample.images) != 1:
      there = f"{len(sample.images)} images, {sorted(sample.images)}" if sample.images else "no image"
      raise ConfigError(f"{path}, sample {sample.key!r}, has {there}; allowed: one of {', '.join(IMAGES)}", "path")
    ((member, start, size),) = sample.images.values()
    starts.append(start)
    lengths.append(size)
    members += member.encode("utf-8", "surrogateescape")
    ends.append(len(members))
    keys.append(overlaps.member_key(member, size))
    try:
      labels.add(_label(sample, label))
    except ValueError as error:
      raise ConfigError(f"{path}, member {member!r}: {error}", "path") from error
  _check_longer(path, longer, seen)
  if not starts:
    raise ConfigError(f"{path} holds no image ({', '.join(IMAGES)})", "path")
  return labels.arrays() | {
    "starts": np.array(starts, np.int64),
    "sizes": np.array(lengths, np.int64),
    "name_ends": np.array(ends, np.int64),
    "keys": np.array(keys, np.int64),
    "names_of_members": np.frombuffer(bytes(members), np.uint8),
  }


def _check_longer(path, longer, samples):
  """ConfigError for images that were meant as samples, where the first dot of a name is not that of its ending."""
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
      f"{path} has {amount(len(unused), 'image')} of no sample, the first {unused[0]!r}: in WebDataset a sample's name "
      f"ends at its first dot; write it as {better!r}",
      "path",
    )


def _samples(path, file, longer):
  """The samples of an open shard in order; {(sample, name up to the last dot): {ending: member}} of `longer` names."""
  sample = None
  for member in _members(path, file):
    name = _normal(member.name)
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
      raise ConfigError(f"{path}, member {member.name!r}, is a link or no regular file; write its content", "path")
    key = posixpath.join(folder, stem)
    if sample is None or sample.key != key:
      if sample:
        yield sample
      sample = _Sample(key, member.name, {}, {})
    if before := sample.images.get(name) or sample.texts.get(extension):
      both = "" if before[0] == member.name else f", the first time as {before[0]!r}"
      raise ConfigError(f"{path} has member {member.name!r} twice{both}. Remove or rename one of them", "path")
    if extension in IMAGES:
      sample.images[name] = member.name, member.offset_data, member.size
      continue
    if member.size > TEXT_BYTES:
      raise ConfigError(f"{path}, member {member.name!r}, has {member.size:,} bytes; allowed: {TEXT_BYTES:,}", "path")
    file.seek(member.offset_data)
    sample.texts[extension] = member.name, file.read(member.size)
  if sample:
    yield sample


class _Headers:
  """A file of which no more is read at a time than any header takes: a long name may be said to have 2^40 bytes."""

  def __init__(self, file):
    self._file = file
    self.tell, self.seek = file.tell, file.seek

  def read(self, size):
    """So many bytes; ReadError for too many."""
    if not 0 <= size <= TEXT_BYTES:
      raise tarfile.ReadError(f"a header of {size:,} bytes")
    return self._file.read(size)


def _members(path, file):
  """The headers of a tar; ConfigError unless it is whole. Of what it holds nothing is looked at."""
  end, size = 0, file.seek(0, os.SEEK_END)
  file.seek(0)
  try:
    with tarfile.open(fileobj=_Headers(file), mode="r:", errorlevel=2) as tar:
      while member := tar.next():
        if member.size < 0 or tar.offset > size:
          raise tarfile.ReadError(f"a member of {member.size:,} bytes, of a file of {size:,}")
        tar.members.clear()  # a shard may have millions
        yield member
        end = tar.offset
      end = tar.offset
  # Sizes and names are whatever a header says: seeking to 2^64 is a ValueError, 3,000 names of one member recurse.
  except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
    raise ConfigError(
      f"{path} is no whole tar, at byte {end:,} ({error}); allowed: tars that are not compressed", "path"
    ) from error
  # Python's reader takes a damaged header for the end.
  file.seek(end)
  if (behind := file.read(BEHIND)).strip(b"\0") or len(behind) == BEHIND:
    raise ConfigError(f"{path} is damaged at byte {end:,}: neither a header nor the end is there", "path")
  if len(behind) < 512:
    raise ConfigError(f"{path} is cut off at byte {end:,}: the empty block of a tar's end is missing", "path")


def _label(sample, key):
  """Returns the label of a sample; raises ValueError for none, or if the cls and the json contradict each other."""
  found = {}
  if "json" in sample.texts:
    try:
      about = parse_json(sample.texts["json"][1])
    except ValueError as error:
      raise ValueError(f"{sample.texts['json'][0]!r} is no JSON ({error})") from error
    found = about if isinstance(about, dict) else {}
  if "cls" in sample.texts:
    label = _number(*sample.texts["cls"])
    if key in found:
      _check_same(sample, label, key, found[key])
    return label
  if key in found:
    return found[key]
  if "txt" in sample.texts:
    return _number(*sample.texts["txt"])
  raise ValueError(f"it has no label; allowed: a .cls, {key!r} in a .json, a .txt")


def _check_same(sample, label, key, other):
  """Raises ValueError if the json has another label than the cls. A number and a name cannot be compared."""
  several = other if isinstance(other, list) else [other]
  comparable = [each for each in several if type(each) is type(label)]
  if comparable and label not in comparable:
    raise ValueError(
      f"sample {sample.key!r} has label {show(label)} in {sample.texts['cls'][0]!r}, but {key!r} is {show(other)} in "
      f"{sample.texts['json'][0]!r}. Correct one of them, or set label to another key of the json"
    )


def _number(member, content):
  """A number or a name, as it is written in a member."""
  try:
    text = content.decode("utf-8-sig").strip()
  except UnicodeDecodeError:
    raise ValueError(f"{member!r} is no text") from None
  if text.isascii() and text.isdigit() and len(text) < 10:
    return int(text)
  if _NUMERIC.fullmatch(text):
    raise ValueError(f"label {show(text)} is no number of a class; allowed: 0 and above, below {NAMES:,}, or a name")
  return text
