"""Writing of a corpus from the source of any reader, with all cores of a machine."""

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

FEW = 5  # images that may be rejected in a corpus of any size
CHUNK = 256  # test images of a task
Reports = dict[work.Shard, making.Report]


def write(
  name: str, data: dict, options: Options, root: pathlib.Path, count: int, max_rejected: float = 0.01
) -> list[str]:
  """Writes the corpus `name` in version 1.0.0 into the TFDS data directory, or continues after a kill.

  The bytes of a corpus depend only on the input and the options, not on the number of processes. A shard becomes
  visible under its name when it is complete. `dataset_info.json` is written when all shards are complete.

  Args:
    name: name of the dataset.
    data: a name in the catalog's READERS and all arguments, as returned by `schema.plain`. All splits are written.
    options: options for the processing of the images.
    root: the TFDS data directory.
    count: number of processes.
    max_rejected: fraction of the images that may be rejected. 5 images may always be rejected.

  Returns:
    Lines that describe the result.

  Raises:
    ConfigError: the input is missing, input or options have changed, too many images were rejected, or another process
      uses the folder.
    OSError: the disk or bucket of the corpus failed.
  """
  return whole(name, data, options, root, functools.partial(_write_shards, count, max_rejected), count)


def whole(name: str, data: dict, options: Options, root: pathlib.Path, shards: Callable, count: int = 1) -> list[str]:
  """Writes a corpus like `write`, with a given function for the shards.

  Args:
    name: name of the dataset.
    data: a name in the catalog's READERS and all arguments, as returned by `schema.plain`.
    options: options for the processing of the images.
    root: the TFDS data directory.
    shards: called with (plan, source, folders), writes the shards and returns `Reports`.
    count: number of processes that compute hashes.

  Returns:
    Lines that describe the result.

  Raises:
    ConfigError: as for `write`.
    OSError: the disk or bucket of the corpus failed.
  """
  source, folders = _begun(name, data, root)
  made = _planned(name, data, source, options)
  said = [f"{name} is already prepared at {folders.corpus}"]
  if _is_whole(made, folders):
    _remove(folders)  # the folder of a process that was killed at its last step
    return said
  with runtime.locked(folders.work, "another name"):
    if _is_whole(made, folders):  # completed by a process that held the lock until now
      return said
    if made.check(folders.work / plan.FILE):
      made.check_input(source, folders.work)
    else:
      _clear(folders)  # reports of a removed plan are meaningless
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
  """Returns the input with all of its splits, and the folders. Raises ConfigError for unsuitable names."""
  description.check_name(name)
  if name in catalog.CATALOG and catalog.CATALOG[name].builder:
    raise ConfigError(f"{name!r} is a dataset of the catalog with other images. Use another name")
  source = plan.opened(data)
  with schema.at("data"):
    description.check_classes(source.classes)
  runtime.note(source.note)
  return source, work.Folders.of(root, name)


def _is_whole(made, folders):
  """Returns true if the corpus of a plan is complete. Raises ConfigError if the folder contains another dataset."""
  if not (folders.corpus / description.INFO).exists():
    return False
  if not made.check(folders.corpus / description.PLAN):
    raise ConfigError(f"{folders.corpus} is a dataset that was not made by this command. Use another name")
  return True


def _planned(name, data, source, options):
  return Plan(
    *(name, data, source.fingerprint(), sources.digest(source.classes), source.labels),
    *(plan.splits(source, options), options, _digests(options)),
  )


def _digests(options):
  """Returns (test set, digest of its files) for each test set."""
  return tuple((text, sources.digest(work.test_set(text).fingerprint())) for text in options.against)


def _hash_test_sets(made, folders, count):
  """Writes the hashes of the test sets, unless they exist for the present state of the test sets."""
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
    _refuse_changed(folders)  # shards were compared with the earlier images
  work.write_hashes(folders, work.Hashed(hashes, np.array(lengths), now))


def _write_shards(count, max_rejected, made, source, folders):
  """Writes the missing shards and returns the reports of all shards."""
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
      if shown.rejected > 2 * limit:  # some shards are not done, and need not be done
        _refuse(f"more than {2 * limit:,}", reports, source, limit)

    check_rejected(reports, source, max_rejected)
    prepare = functools.partial(work.Worker, made, folders, input=source if count < 2 else None)
    with processes.done(prepare, todo, count, heard, named) as results:
      for task, report in results:
        reports[task] = report
        check_rejected(reports, source, max_rejected)
  return reports


def check_rejected(reports: Reports, source: Source, max_rejected: float) -> None:
  """Checks the number of rejected images.

  Args:
    reports: reports of completed shards.
    source: the input.
    max_rejected: fraction of the images that may be rejected.

  Raises:
    ConfigError: too many images were rejected.
  """
  rejected, limit = sum(len(report.rejected) for report in reports.values()), _allowed(source, max_rejected)
  if rejected > limit:
    _refuse(f"{rejected:,}", reports, source, limit)


def _allowed(source, max_rejected):
  """Returns the number of images that may be rejected."""
  return max(FEW, math.floor(max_rejected * len(source)))


def _refuse(many, reports, source, limit):
  """Raises ConfigError with the first rejected files."""
  rows = [row for _, report in sorted(reports.items()) for row in report.rejected][:5]
  examples = "; ".join(f"{row['file']}: {row['reason']}" for row in rows)
  raise ConfigError(
    f"rejected: {many} of {amount(len(source), 'image')}. Allowed: {limit:,}. Fix them and use another name, or "
    f"continue with a higher --max-rejected{': ' * bool(examples)}{examples}"
  )


def _finished(made, source, folders, reports):
  """Writes the files next to the shards.

  The file that marks the corpus as complete is written last. Returns a summary.
  """
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
  """Raises ConfigError if the input or a test set has changed, because shards may then have different contents."""
  work.reopened(made, folders)
  if _digests(made.options) != made.against:
    _refuse_changed(folders)
  if made.options.against and work.read_hashes(folders).versions != work.test_set_versions(made.options):
    raise ConfigError(
      "files of test sets changed while this corpus was written. Run the same command again to compare the new files",
      "--dedup-against",
    )


def _refuse_changed(folders):
  raise ConfigError(
    f"test sets have changed since this corpus was started. Remove {folders.work}, and run the same command again",
    "--dedup-against",
  )


def _picture(test_set, record):
  return duplicates.shown(duplicates.pixels(test_set, record))


def _clear(folders):
  """Removes the temporary files next to the corpus, except the lock."""
  for file in folders.work.iterdir():
    if file.name != "lock":
      file.unlink(missing_ok=True)


def _remove(folders):
  """Removes the folder of temporary files of a complete corpus, including its lock."""
  if not paths.in_bucket(folders.work):
    shutil.rmtree(folders.work, ignore_errors=True)
