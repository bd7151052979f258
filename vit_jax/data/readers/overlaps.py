"""Notes on images that are in both training and evaluation data.

They are found by name and size, and compared byte by byte.
"""

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vit_jax.data import sources
from vit_jax.data.readers import copies, index, indexed, listing, locations
from vit_jax.schema import ConfigError

# Number of pairs of images with equal name and size that are read to detect an overlap of training and test data.
COMPARED, COMPARED_IN_BUCKET = 32, 4

Record = tuple[str, int]  # (split, record number)


def find_file_overlaps(
  root: locations.DiskFolder | locations.BucketFolder,
  splits: sources.Splits,
  files: Mapping[str, Sequence[tuple[str, int]]],
) -> list[str]:
  """Returns notes on files that are both in the training data and in other data of the config.

  Args:
    root: the directory of the files.
    splits: split strings of the config.
    files: for each split, (path relative to the root, label) of each record.
  """
  bases = {part: [file.rpartition("/")[2] for file, _ in records] for part, records in files.items()}
  times = collections.Counter(itertools.chain(*bases.values()))
  if len(times) == sum(map(len, bases.values())):
    return []
  keys, of_class = ({part: np.full(len(each), copies.UNKNOWN, np.int64) for part, each in bases.items()} for _ in "ab")
  for part, names in bases.items():
    some = [i for i, name in enumerate(names) if times[name] > 1]
    for i, (size, _) in zip(some, root.read_stamps([files[part][i][0] for i in some]), strict=True):
      if size is not None:
        keys[part][i] = copies.compute_key(f"{size} {names[i]}")
        of_class[part][i] = copies.compute_key(f"{size} {names[i]} {files[part][i][1]}")

  def content(record: Record) -> bytes:
    return root.read(files[record[0]][record[1]][0])

  def words(record: Record) -> str:
    return repr(f"{root.root}/{files[record[0]][record[1]][0]}")

  pairs, better = copies.find_overlaps(splits, keys), copies.find_overlaps(splits, of_class)
  # If several training images match, one of the same class is preferred for the comparison.
  chosen = {role: [*{pair.other: pair for pair in (*each, *better[role])}.values()] for role, each in pairs.items()}
  return _describe_overlaps(chosen, content, words, isinstance(root, locations.BucketFolder))


def find_member_overlaps(
  splits: sources.Splits,
  shards: Mapping[str, listing.Files],
  scanned: Callable[[str], Sequence[index.Arrays]],
  where: indexed.DescribeRecord,
) -> list[str]:
  """Returns notes on members of archives that are both in the training data and in other data of the config.

  Args:
    splits: split strings of the config.
    shards: the archives of each split.
    scanned: function from a split to the arrays of each archive, for `index.Extents`, with "keys" from
      `compute_member_key`.
    where: function (files, file, its arrays, record in the file) that describes a record.
  """
  known, wanted = {}, sources.parse_split_names(splits.specs().values())
  for split in shards:
    if split in wanted:
      with contextlib.suppress(ConfigError, OSError):  # reported when this split is opened
        known[split] = scanned(split)
  extents = functools.cache(lambda split: index.Extents(shards[split], known[split]))

  def content(record: Record) -> bytes:
    split, number = record
    return extents(split).read(number, number + 1)[0]

  def words(record: Record) -> str:
    file, number = extents(record[0]).locate(record[1])
    return where(shards[record[0]], file, known[record[0]][file], number)

  keys = {split: np.concatenate([each["keys"] for each in arrays]) for split, arrays in known.items()}
  remote = any(shards[split].remote for split in known)
  return _describe_overlaps(copies.find_overlaps(splits, keys), content, words, remote)


def compute_member_key(name: str, size: int) -> int:
  """Returns the key of a member of an archive, computed from its name without directories and from its size.

  Args:
    name: name of the member.
    size: size of the member in bytes.
  """
  return copies.compute_key(f"{size} {name.rpartition('/')[2]}")


def _describe_overlaps(
  found: Mapping[str, Sequence[copies.Pair]],
  content: Callable[[Record], bytes],
  words: Callable[[Record], str],
  remote: bool,
) -> list[str]:
  """Returns a note on each role that has equal images among the `found` pairs. Only some of the pairs are compared."""
  notes = []
  for role, pairs in found.items():
    some = copies.sample_pairs(pairs, COMPARED_IN_BUCKET if remote else COMPARED)
    same = [pair for pair in some if _is_equal(content, pair)]
    if same:
      example = f"{words(same[0].one)} and {words(same[0].other)}"
      notes.append(copies.describe_overlap(role, len(same), example, len(some), len(pairs)))
  return notes


def _is_equal(content: Callable[[Record], bytes], pair: copies.Pair) -> bool:
  try:
    return content(pair.one) == content(pair.other)
  except OSError:  # reported when the image is used
    return False
