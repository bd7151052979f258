"""Versions of the files of a source: a digest for caches, and detection of replaced files."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data import local_files, samples, sources

SOME = 32  # number of files per disk with individually recorded times of status change


def digest_versions(source: sources.Source) -> str:
  """Returns a digest that changes if an image changes, even if the new file has the same size and modification time.

  A version identifies files on this machine. Copies of the files have a different version. The version decides whether
  a cached result is used. Whether data belong to a run is decided by fingerprints, see `identity`. Images are not read.

  Args:
    source: an opened source.
  """
  return sources.digest([source.fingerprint(), *local_files.read_states(list(source.files())), *source.objects()])


def record_changes(files: Sequence[str]) -> list[dict[str, Any]]:
  """Returns when the status of files last changed, as JSON values. Files are not read.

  Programs cannot choose the time of status change. It becomes the current time when a file is written or replaced, and
  when its permissions, owner or links change.

  Args:
    files: names of local files. A file that does not exist is ignored.

  Returns:
    A description of each disk, in the order of the files. `files` is the number of files, `times` a digest of all
      times, `some` the times of some files in ns, and `last` the name of the file that changed last.
  """
  disks: dict[int, list[tuple[int, int]]] = {}
  for number, change in enumerate(local_files.read_change_times(files)):
    if change is not None:
      disks.setdefault(change[0], []).append((change[1], number))
  return [
    {
      "files": len(changes),
      "times": sources.digest([time for time, _ in changes]),
      "some": [changes[i][0] for i in samples.compute_spaced_numbers(len(changes), SOME)],
      "last": files[max(changes)[1]],
    }
    for changes in disks.values()
  ]


def find_replaced(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns the name of one changed file for each disk on which some but not all files changed.

  A copy to another disk and `chmod -R` change the times of all files of a disk. These changes are not reported. Disks
  are compared in their order, and only if they contain as many files as before.

  Args:
    before: the result of `record_changes` at an earlier time.
    now: the result of `record_changes` for the same files at present.
  """
  return [
    new["last"]
    for old, new in zip(before, now, strict=False)
    if old["files"] == new["files"]
    and old["times"] != new["times"]
    and any(a == b for a, b in zip(old["some"], new["some"], strict=False))
  ]
