"""The membership of files in splits: a small record for checkpoints, and detection of files that changed their split.

A reader that draws splits takes the files of a folder in the order of a key, such as a hash of the name. Therefore each
split has an interval of keys. A checkpoint records the ends of the intervals. If files are removed or added later,
other files may change their split. The model is then evaluated on images that it was trained on.
"""

import collections
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax.data import sources
from vit_jax.data.sources import Membership, Splits
from vit_jax.schema import format_amount

Key = Callable[[str], Any]  # identifies a file of a folder

ROLES = ("train", "val", "test")  # of a run's data
DIGITS = 12  # of a hash, which are enough to order the files of a folder


def create_membership(
  splits: sources.Splits, files: Callable[[], Mapping[str, Sequence[str]]], key: Callable[[str], str]
) -> Membership:
  """Returns the membership of files, which are drawn independently in each folder.

  Args:
    splits: split strings of the config.
    files: function that returns the paths of the files of each split of the dataset, in its order.
    key: function that returns the key of a file. In each folder, the files of a split are in ascending order of keys.
  """
  return Membership(
    lambda: _create_record(_list_parts(splits, files()), key),
    lambda before: _describe_changes(before, _list_parts(splits, files()), key),
  )


def join_memberships(members: Mapping[str, Membership | None]) -> Membership | None:
  """Returns the membership of a mixture from those of its datasets, by name. None if no dataset has a membership."""
  known = {name: member for name, member in members.items() if member is not None}
  if not known:
    return None

  def list_changes(before: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {line}" for name in known if name in before for line in known[name].changes(before[name])]

  return Membership(lambda: {name: member.record() for name, member in known.items()}, list_changes)


def is_membership_record(value: object) -> bool:
  """Returns whether a JSON value has the form of a membership record of a dataset or a mixture."""
  if not isinstance(value, dict):
    return False
  if not value.keys() <= set(ROLES) or not all(isinstance(each, dict) and "images" in each for each in value.values()):
    return all(map(is_membership_record, value.values()))
  return all(
    isinstance(each["images"], int)
    and isinstance(each.get("folders"), dict)
    and all(
      isinstance(found, list) and all(list(map(type, interval)) == [int, str, str] for interval in found)
      for found in each["folders"].values()
    )
    for each in value.values()
  )


def _list_parts(splits: Splits, files: Mapping[str, Sequence[str]]) -> dict[str, list[Sequence[str]]]:
  """Returns the files of each part of "train", "val" and "test", if the config and the data have such a split."""
  sizes, result = {name: len(each) for name, each in files.items()}, {}
  for role in ROLES:
    try:
      found = splits.select(role, sizes)
    except sources.SplitError:  # a run that needs this split reports the error
      continue
    result[role] = [files[name][numbers.start : numbers.stop] for name, numbers in found]
  return result


def _create_record(parts: Mapping[str, Sequence[Sequence[str]]], key: Key) -> dict[str, Any]:
  """Returns {role: {"images", "folders": {folder: [[images, first key, last key]]}}}.

  A folder is recorded if at least one folder with the same parent contains files of several roles.
  """
  ends = {role: [_find_ends(part) for part in each] for role, each in parts.items()}
  roles = collections.Counter(name for each in ends.values() for name in set().union(*each))
  drawn = {os.path.dirname(name) for name, count in roles.items() if count > 1}
  return {
    role: {
      "images": sum(map(len, parts[role])),
      "folders": {
        name: [[count, key(first), key(last)] for part in each if name in part for count, first, last in [part[name]]]
        for name in sorted(set().union(*each))
        if os.path.dirname(name) in drawn
      },
    }
    for role, each in ends.items()
  }


def _find_ends(files: Sequence[str]) -> dict[str, tuple[int, str, str]]:
  """Returns {folder: (number of its files, first file, last file)}."""
  result = {}
  for file in files:
    name = os.path.dirname(file)
    count, first, _ = result.get(name, (0, file, file))
    result[name] = count + 1, first, file
  return result


def _describe_changes(before: Mapping[str, Any], parts: Mapping[str, Sequence[Sequence[str]]], key: Key) -> list[str]:
  """Returns a line for each role with a changed number of images, or with images that had a different role before."""
  if before == _create_record(parts, key):
    return []
  files = {role: dict.fromkeys(file for part in each for file in part) for role, each in parts.items()}
  former = {file: _find_former_roles(before, file, key) for each in files.values() for file in each}
  found = collections.Counter(interval for each in former.values() for interval in each.values())
  lines = []
  for role in (role for role in parts if role in before):
    origins = collections.defaultdict(list)
    for file in files[role]:
      if former[file] and role not in former[file]:
        origin = next(iter(former[file]))
        origins[origin].append(former[file][origin])
    count = sum(map(len, parts[role]))
    if origins or count != before[role]["images"]:
      words = [f"split {role!r}: {format_amount(before[role]['images'], 'image')} before, {count:,} now"]
      for origin, intervals in sorted(origins.items(), key=lambda each: ROLES.index(each[0])):
        # More files than before are in an interval if files were added, which were in no split.
        most = "up to " if any(found[interval] > _count_images(before, interval) for interval in intervals) else ""
        trained = ", which was trained on" if origin == "train" else ""
        words.append(f"{most}{len(intervals):,} of them from split {origin!r}{trained}")
      lines.append(", ".join(words))
  return lines


def _find_former_roles(before: Mapping[str, Any], file: str, key: Key) -> dict[str, tuple[str, str, int]]:
  """Returns {role: interval} of the former roles of a file, in the order of ROLES."""
  name = os.path.dirname(file)
  known = {role: before[role]["folders"][name] for role in ROLES if name in before.get(role, {}).get("folders", {})}
  if not known:
    return {}
  value = key(file)
  return {
    role: (role, name, i)
    for role, intervals in known.items()
    for i, (_, first, last) in enumerate(intervals)
    if first <= value <= last
  }


def _count_images(before: Mapping[str, Any], interval: tuple[str, str, int]) -> int:
  role, name, i = interval
  return before[role]["folders"][name][i][0]
