"""Versions of the files of a source: a digest for caches, and detection of replaced files."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data import local_files, samples, sources

SOME = 32  # number of files per disk with individually recorded times of status change


def of(source: sources.Source) -> str:
  """Returns a digest that changes if an image changes, even if the new file has the same size and modification time.

  The version belongs to the files of this machine. Copies of the files have a different version. It decides whether a
  cached result is used. Fingerprints decide whether data belong to a run, see `identity`. No image is read.

  Args:
    source: an opened source.
  """
  return sources.digest([source.fingerprint(), *local_files.states(list(source.files())), *source.objects()])


def of_disks(files: Sequence[str]) -> list[dict[str, Any]]:
  """Describes when the status of files changed last, as JSON values. No file is read.

  Programs cannot set the time of status change. Writing to a file, replacing it, and changes of permissions, owner or
  links set it to the current time.

  Args:
    files: names of local files. A file that does not exist is ignored.

  Returns:
    For each disk, in the order of the files: the number of `files`, a digest of all `times`, the times of `some` files
    in ns, and the name of the file that changed `last`.
  """
  disks: dict[int, list[tuple[int, int]]] = {}
  for number, change in enumerate(local_files.changes(files)):
    if change is not None:
      disks.setdefault(change[0], []).append((change[1], number))
  return [
    {
      "files": len(changes),
      "times": sources.digest([time for time, _ in changes]),
      "some": [changes[i][0] for i in samples.spread(len(changes), SOME)],
      "last": files[max(changes)[1]],
    }
    for changes in disks.values()
  ]


def replaced(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns the name of a changed file of each disk on which some files changed and others did not.

  A copy to another disk and `chmod -R` change the times of all files of a disk. These changes are not reported. Disks
  are compared in their order, and only if they contain as many files as before.

  Args:
    before: the result of `of_disks` at an earlier time.
    now: the result of `of_disks` for the same files at present.
  """
  return [
    new["last"]
    for old, new in zip(before, now, strict=False)
    if old["files"] == new["files"]
    and old["times"] != new["times"]
    and any(a == b for a, b in zip(old["some"], new["some"], strict=False))
  ]
