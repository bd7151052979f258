"""A corpus from any reader's source, written once and whole by all cores of a machine."""

import functools
import json
import math
import pathlib
import shutil
from collections.abc import Sequence

import numpy as np

from vit_jax import files, paths, runtime, schema
from vit_jax.corpora import description, duplicates, making, plan, processes, screen, work
from vit_jax.corpora.plan import Options, Plan
from vit_jax.data import catalog, sources
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import some

FEW = 5  # images that may be rejected of any corpus, however small
CHUNK = 256  # test images of a task


def write(
  name: str, data: dict, options: Options, root: pathlib.Path, count: int, max_rejected: float = 0.01
) -> list[str]:
  """Writes the corpus `name` 1.0.0 into the TFDS data directory `root`, or goes on where it was killed; says how.

  Its bytes follow from the input and the options, whatever the number of processes. Shards appear under their names
  when they are whole, `dataset_info.json` when all are.

  Args:
    name: of the dataset.
    data: a choice of the catalog's READERS, bound and plain; all of its splits are written.
    options: what is made of the images.
    root: the TFDS data directory.
    count: processes.
    max_rejected: share of the images that may be rejected before it stops; 5 always may.

  Raises:
    ConfigError: input that is not there, other input or options than before, too many rejected images, in use.
    OSError: the disk or the bucket of the corpus.
  """
  source, folders = begun(name, data, root)
  made = planned(name, data, source, options)
  if is_whole(made, folders):
    remove(folders)  # of one that was killed at its last step
    return [f"{name} is already prepared at {folders.corpus}"]
  with runtime.locked(folders.work, "another name"):
    if not made.check(folders.work / "plan.json"):
      files.write_text(folders.work / "plan.json", json.dumps(made.plain(), indent=1))
    for folder in () if paths.in_bucket(root) else (folders.corpus,):
      folder.mkdir(exist_ok=True)
    hash_test_sets(folders, data, options, count)
    reports = _write_shards(made, source, folders, data, count, max_rejected)
    lines = finished(made, source, folders, reports)
    clear(folders)
  remove(folders)
  return lines


def begun(name: str, data: dict, root: pathlib.Path) -> tuple[Source, work.Folders]:
  """The input, all of its splits, and the folders of the corpus; ConfigError for names that cannot be."""
  description.check_name(name)
  if name in catalog.CATALOG and catalog.CATALOG[name].builder:
    raise ConfigError(f"{name!r} is the catalog's own, of other images; take another name")
  source = plan.opened(data, catalog.READERS)
  with schema.at("data"):
    description.check_classes(source.classes)
  for group in description.alike(source.classes):
    runtime.say(f"note: classes that differ only in case stay apart: {some(map(repr, group))}")
  return source, work.Folders.of(root, name)


def is_whole(made: Plan, folders: work.Folders) -> bool:
  """Whether the corpus of a plan is there; ConfigError where another dataset is."""
  if not (folders.corpus / description.INFO).exists():
    return False
  if not made.check(folders.corpus / description.PLAN):
    raise ConfigError(f"{folders.corpus} is a dataset that was not made by this command; take another name")
  return True


def planned(name: str, data: dict, source: Source, options: Options) -> Plan:
  """The plan of a corpus."""
  against = []
  for text in options.against:
    against.append((text, sources.digest(work.test_set(text).fingerprint())))
  return Plan(
    *(name, data, source.fingerprint(), sources.digest(source.classes), source.labels),
    *(plan.splits(source, options), options, tuple(against)),
  )


def hash_test_sets(folders: work.Folders, data: dict, options: Options, count: int) -> None:
  """Writes the hashes of the test sets, unless they are there."""
  if not options.against or folders.hashes.exists():
    return
  lengths = [len(work.test_set(text)) for text in options.against]
  tasks = [
    work.Hashes(text, first, min(first + CHUNK, length))
    for text, length in zip(options.against, lengths, strict=True)
    for first in range(0, length, CHUNK)
  ]
  made = {}
  with screen.Screen("test images", sum(lengths)) as shown:
    prepare = functools.partial(work.Worker, data, folders)
    for task, hashes in processes.done(prepare, tasks, min(count, len(tasks)), lambda *_: None):
      made[task] = hashes
      shown.add(task.stop - task.first)
  hashes = [value for task in tasks for value in made[task]]
  with files.replacing(folders.hashes) as partial, partial.open("wb") as file:
    np.savez(file, hashes=np.array(hashes, np.uint64), counts=np.array(lengths))


def _write_shards(made, source, folders, data, count, max_rejected):
  """Writes the shards that are not there; the reports of all, by split."""
  reports, todo = {}, []
  for i, split in enumerate(made.splits):
    for number in range(split.shards):
      kept = files.content(folders.report(split, number))
      if kept is None:
        todo.append(work.Shard(i, number))
      else:
        reports[i, number] = json.loads(kept)
  limit = allowed(source, max_rejected)
  counts = [sum(len(report[key]) for report in reports.values()) for key in ("rejected", "duplicates")]
  done = sum(report["records"] for report in reports.values()) + sum(counts)
  total = sum(map(len, made.splits))
  with screen.Screen(made.name, total, done, *counts) as shown:

    def heard(task, words):
      shown.add(*words)
      if shown.rejected > 2 * limit:  # some shards are not done, and none need be done any more
        _refuse(f"more than {2 * limit:,}", reports, total, limit)

    if counts[0] > limit:
      _refuse(f"{counts[0]:,}", reports, total, limit)
    prepare = functools.partial(work.Worker, data, folders, plan=made)
    for task, report in processes.done(prepare, todo, min(count, len(todo)), heard):
      reports[task.split, task.number] = report
      rejected = sum(len(report["rejected"]) for report in reports.values())
      if rejected > limit:
        _refuse(f"{rejected:,}", reports, total, limit)
  merged = {split.name: [making.Report() for _ in range(split.shards)] for split in made.splits}
  for (i, number), report in reports.items():
    merged[made.splits[i].name][number].merge(report)
  return merged


def check_rejected(reports: dict[str, Sequence[making.Report]], source: Source, max_rejected: float) -> None:
  """ConfigError where more images are rejected than may be."""
  plain = {(name, number): report.plain() for name, each in reports.items() for number, report in enumerate(each)}
  rejected, limit = sum(len(report["rejected"]) for report in plain.values()), allowed(source, max_rejected)
  if rejected > limit:
    _refuse(f"{rejected:,}", plain, len(source), limit)


def allowed(source: Source, max_rejected: float) -> int:
  """How many images may be rejected."""
  return max(FEW, math.floor(max_rejected * len(source)))


def _refuse(many, reports, total, limit):
  """ConfigError with the first of the files that were rejected."""
  rows = [row for _, report in sorted(reports.items()) for row in report["rejected"]][:5]
  some = "; ".join(f"{row['file']}: {row['reason']}" for row in rows)
  raise ConfigError(
    f"{many} of {total:,} images are rejected; allowed: {limit:,}. Mend them and take another name, or go on with a "
    f"higher --max-rejected{': ' * bool(some)}{some}"
  )


def finished(
  made: Plan, source: Source, folders: work.Folders, reports: dict[str, Sequence[making.Report]]
) -> list[str]:
  """Writes what stands beside the shards, the last of it that all is whole; lines about it."""
  rows = [row for each in reports.values() for report in each for row in report.duplicates]
  description.show_duplicates(folders.corpus, rows, lambda row: _test_picture(row))
  description.describe(folders.corpus, made, source.classes, reports)
  return [f"{made.name} is prepared at {folders.corpus}", *description.summary(reports, source.classes)]


def _test_picture(row):
  from vit_jax.corpora import conversion

  data, _ = work.test_set(row["of"]).read(row["record"])
  return duplicates.shown(conversion.convert(data).pixels)


def clear(folders: work.Folders) -> None:
  """Removes what was kept beside the corpus, but for the lock."""
  for file in folders.work.iterdir():
    if file.name != "lock":
      file.unlink()


def remove(folders: work.Folders) -> None:
  """Removes the folder of a corpus that is whole, with its lock."""
  if not paths.in_bucket(folders.work):
    shutil.rmtree(folders.work, ignore_errors=True)
