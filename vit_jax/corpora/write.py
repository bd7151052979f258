"""A corpus from any reader's source, written once and whole by all cores of a machine."""

import functools
import json
import math
import pathlib
import shutil
from collections.abc import Callable

import numpy as np

from vit_jax import files, paths, runtime, schema
from vit_jax.corpora import description, duplicates, making, plan, processes, screen, work
from vit_jax.corpora.plan import Options, Plan
from vit_jax.data import catalog, sources
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, amount, texts

FEW = 5  # images that may be rejected of any corpus, however small
CHUNK = 256  # test images of a task
Reports = dict[work.Shard, making.Report]


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
  return whole(name, data, options, root, functools.partial(_write_shards, count, max_rejected), count)


def whole(name: str, data: dict, options: Options, root: pathlib.Path, shards: Callable, count: int = 1) -> list[str]:
  """As `write`, but for the shards, which `shards(plan, source, folders)` writes, and whose `Reports` it gives."""
  source, folders = _begun(name, data, root)
  made = _planned(name, data, source, options)
  said = [f"{name} is already prepared at {folders.corpus}"]
  if _is_whole(made, folders):
    _remove(folders)  # of one that was killed at its last step
    return said
  with runtime.locked(folders.work, "another name"):
    if _is_whole(made, folders):  # by a process that held the lock until now
      return said
    if made.check(folders.work / plan.FILE):
      made.check_input(source, folders.work)
    else:
      _clear(folders)  # reports of a plan that is gone say nothing
      started = made.plain() | {"contents": plan.contents(source)}
      files.write_text(folders.work / plan.FILE, json.dumps(started, indent=1))
    if not paths.in_bucket(root):
      folders.corpus.mkdir(exist_ok=True)
    _hash_test_sets(made, folders, count)
    lines = _finished(made, source, folders, shards(made, source, folders))
    _clear(folders)
  _remove(folders)
  return lines


def _begun(name, data, root):
  """The input, all of its splits, and the folders of the corpus; ConfigError for names that cannot be."""
  description.check_name(name)
  if name in catalog.CATALOG and catalog.CATALOG[name].builder:
    raise ConfigError(f"{name!r} is the catalog's own, of other images; take another name")
  source = plan.opened(data)
  with schema.at("data"):
    description.check_classes(source.classes)
  runtime.note(source.note)
  return source, work.Folders.of(root, name)


def _is_whole(made, folders):
  """Whether the corpus of a plan is there; ConfigError where another dataset is."""
  if not (folders.corpus / description.INFO).exists():
    return False
  if not made.check(folders.corpus / description.PLAN):
    raise ConfigError(f"{folders.corpus} is a dataset that was not made by this command; take another name")
  return True


def _planned(name, data, source, options):
  return Plan(
    *(name, data, source.fingerprint(), sources.digest(source.classes), source.labels),
    *(plan.splits(source, options), options, _digests(options)),
  )


def _digests(options):
  """(test set, digest of what is known of its files) of each."""
  return tuple((text, sources.digest(work.test_set(text).fingerprint())) for text in options.against)


def _hash_test_sets(made, folders, count):
  """Writes the hashes of the test sets, unless they exist for the test sets as they are now."""
  against = made.options.against
  if not against:
    return
  now, before = work.test_set_versions(made.options), work.read_hashes(folders)
  if before is not None and before.versions == now:
    return
  lengths = [len(work.test_set(text)) for text in against]
  tasks = [
    work.Hashes(text, first, min(first + CHUNK, length))
    for text, length in zip(against, lengths, strict=True)
    for first in range(0, length, CHUNK)
  ]
  with screen.Screen("test images", sum(lengths)) as shown:
    prepare = functools.partial(work.Worker, made, folders)
    with processes.done(prepare, tasks, min(count, len(tasks)), lambda task, words: shown.add(words)) as results:
      by_task = dict(results)
  hashes = np.array([value for task in tasks for value in by_task[task]], np.uint64)
  if before is not None and not np.array_equal(before.values, hashes):
    _refuse_changed(folders)  # shards were compared with the images of before
  work.write_hashes(folders, work.Hashed(hashes, np.array(lengths), now))


def _write_shards(count, max_rejected, made, source, folders):
  """Writes the shards that are not there; the reports of all."""
  tasks = [work.Shard(i, number) for i, split in enumerate(made.splits) for number in range(split.shards)]
  kept = {task: folders.read_whole(made.name, made.splits[task.split], task.number) for task in tasks}
  reports = {task: report for task, report in kept.items() if report is not None}
  todo = [task for task in tasks if task not in reports]
  count = min(count, len(todo))
  before, limit = making.total(reports.values()), _allowed(source, max_rejected)
  left_out = len(before.rejected), len(before.duplicates)
  with screen.Screen(made.name, len(source), before.records + sum(left_out), *left_out) as shown:

    def named(task):
      return folders.shard(made.name, made.splits[task.split], task.number).name

    def heard(task, words):
      shown.add(*words)
      if shown.rejected > 2 * limit:  # some shards are not done, and none need be done any more
        _refuse(f"more than {2 * limit:,}", reports, source, limit)

    check_rejected(reports, source, max_rejected)
    prepare = functools.partial(work.Worker, made, folders, input=source if count < 2 else None)
    with processes.done(prepare, todo, count, heard, named) as results:
      for task, report in results:
        reports[task] = report
        check_rejected(reports, source, max_rejected)
  return reports


def check_rejected(reports: Reports, source: Source, max_rejected: float) -> None:
  """ConfigError where more images are rejected than may be."""
  rejected, limit = sum(len(report.rejected) for report in reports.values()), _allowed(source, max_rejected)
  if rejected > limit:
    _refuse(f"{rejected:,}", reports, source, limit)


def _allowed(source, max_rejected):
  """How many images may be rejected."""
  return max(FEW, math.floor(max_rejected * len(source)))


def _refuse(many, reports, source, limit):
  """ConfigError with the first of the files that were rejected."""
  rows = [row for _, report in sorted(reports.items()) for row in report.rejected][:5]
  examples = "; ".join(f"{row['file']}: {row['reason']}" for row in rows)
  raise ConfigError(
    f"rejected: {many} of {amount(len(source), 'image')}; allowed: {limit:,}. Mend them and take another name, or "
    f"go on with a higher --max-rejected{': ' * bool(examples)}{examples}"
  )


def _finished(made, source, folders, reports):
  """Writes what stands beside the shards, the last of it that all is whole; lines about it."""
  _check_unchanged(made, folders)
  by_split = {
    split.name: [reports[work.Shard(i, number)] for number in range(split.shards)]
    for i, split in enumerate(made.splits)
  }
  rows = [row for each in by_split.values() for report in each for row in report.duplicates]
  if rows:
    opened = functools.cache(work.test_set)
    duplicates.page(folders.corpus / "duplicates.html", rows, lambda row: _picture(opened(row["of"]), row["record"]))
  description.describe(folders.corpus, made, source.classes, by_split)
  trained = f"train on it with --config.data.name=tfds {texts.flag('config.data.path', folders.corpus)}"
  return [f"{made.name} is prepared at {folders.corpus}", *description.summary(by_split, source.classes), trained]


def _check_unchanged(made, folders):
  """ConfigError if the input or a test set has changed, so that a shard may be of either content."""
  work.reopened(made, folders)
  if _digests(made.options) != made.against:
    _refuse_changed(folders)
  if made.options.against and work.read_hashes(folders).versions != work.test_set_versions(made.options):
    raise ConfigError(
      "files of test sets were written to while this corpus was made. Run the same command again, which compares them",
      "--dedup-against",
    )


def _refuse_changed(folders):
  raise ConfigError(
    f"test sets have changed since this corpus was started; remove {folders.work}, and run the same command again",
    "--dedup-against",
  )


def _picture(test_set, record):
  return duplicates.shown(duplicates.pixels(test_set, record))


def _clear(folders):
  """Removes what was kept beside the corpus, but for the lock."""
  for file in folders.work.iterdir():
    if file.name != "lock":
      file.unlink(missing_ok=True)


def _remove(folders):
  """Removes the folder of a corpus that is whole, with its lock."""
  if not paths.in_bucket(folders.work):
    shutil.rmtree(folders.work, ignore_errors=True)
