"""Writing of a corpus from the source of any reader, with all cores of a machine."""

import functools
import json
import math
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from vit_jax import runtime, schema
from vit_jax.corpora import description, duplicates, plan, processes, record_maker, screen, shard_worker
from vit_jax.corpora.plan import CorpusOptions, CorpusPlan
from vit_jax.data import catalog, sources
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, format_amount, texts
from vit_jax.storage import files, paths

FEW = 5  # images that may be rejected in a corpus of any size
CHUNK = 256  # test images of a task
Reports = dict[shard_worker.ShardTask, record_maker.ShardReport]


def write(
  name: str, data: dict[str, Any], options: CorpusOptions, root: pathlib.Path, count: int, max_rejected: float = 0.01
) -> list[str]:
  """Writes the corpus `name` in version 1.0.0 into the TFDS data directory, or continues after a kill.

  The bytes of a corpus depend only on the input and the options, not on the number of processes. A shard becomes
  visible under its name when it is complete. `dataset_info.json` is written when all shards are complete.

  Args:
    name: name of the dataset.
    data: a name in the catalog's READERS and all arguments, as returned by `schema.to_plain`. All splits are written.
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
  return build_corpus(name, data, options, root, functools.partial(write_shards, count, max_rejected), count)


def build_corpus(
  name: str,
  data: dict[str, Any],
  options: CorpusOptions,
  root: pathlib.Path,
  shards: Callable[[CorpusPlan, Source, shard_worker.Folders], Reports],
  count: int = 1,
) -> list[str]:
  """Writes a corpus like `write`, with a given function for the shards.

  Args:
    name: name of the dataset.
    data: a name in the catalog's READERS and all arguments, as returned by `schema.to_plain`.
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
  source, folders = _open_corpus(name, data, root)
  made = _create_plan(name, data, source, options)
  summary = [f"{name} is already prepared at {folders.corpus}"]
  if _is_complete(made, folders):
    _remove_work_folder(folders)  # the folder of a process that was killed at its last step
    return summary
  with runtime.lock_workdir(folders.work, "another name"):
    if _is_complete(made, folders):  # completed by a process that held the lock until now
      return summary
    if made.check(folders.work / plan.FILE):
      made.check_input(source, folders.work)
    else:
      _remove_temporary_files(folders)  # reports of a removed plan are meaningless
      started = made.to_json() | {"contents": plan.describe_contents(source)}
      files.write_text(folders.work / plan.FILE, json.dumps(started, indent=1))
    if not paths.is_in_bucket(root):
      folders.corpus.mkdir(exist_ok=True)
    _hash_test_sets(made, folders, count)
    lines = _finish_corpus(made, source, folders, shards(made, source, folders))
    _remove_temporary_files(folders)
  _remove_work_folder(folders)
  return lines


def _open_corpus(name: str, data: dict[str, Any], root: pathlib.Path) -> tuple[Source, shard_worker.Folders]:
  """Returns the input with all of its splits, and the folders. Raises ConfigError for unsuitable names."""
  description.check_dataset_name(name)
  if name in catalog.CATALOG and catalog.CATALOG[name].builder:
    raise ConfigError(f"{name!r} is a dataset of the catalog with other images. Use another name")
  source = plan.open_input(data)
  with schema.enter_key("data"):
    description.check_classes(source.classes)
  runtime.print_note(source.note)
  return source, shard_worker.Folders.locate(root, name)


def _is_complete(made: CorpusPlan, folders: shard_worker.Folders) -> bool:
  """Returns true if the corpus of a plan is complete. Raises ConfigError if the folder contains another dataset."""
  if not (folders.corpus / description.INFO).exists():
    return False
  if not made.check(folders.corpus / description.PLAN):
    raise ConfigError(f"{folders.corpus} is a dataset that was not made by this command. Use another name")
  return True


def _create_plan(name: str, data: dict[str, Any], source: Source, options: plan.CorpusOptions) -> CorpusPlan:
  return CorpusPlan(
    *(name, data, source.fingerprint(), sources.digest(source.classes), source.labels),
    *(plan.plan_splits(source, options), options, _read_digests(options)),
  )


def _read_digests(options: plan.CorpusOptions) -> tuple[tuple[str, str], ...]:
  """Returns (test set, digest of its files) for each test set."""
  return tuple((text, sources.digest(shard_worker.open_test_set(text).fingerprint())) for text in options.against)


def _hash_test_sets(made: CorpusPlan, folders: shard_worker.Folders, count: int) -> None:
  """Writes the hashes of the test sets, unless they exist for the present state of the test sets."""
  against = made.options.against
  if not against:
    return
  now, before = shard_worker.read_test_set_versions(made.options), shard_worker.read_hashes(folders)
  if before is not None and before.versions == now:
    return
  lengths = [len(shard_worker.open_test_set(text)) for text in against]
  tasks = [
    shard_worker.HashTask(text, first, min(first + CHUNK, length))
    for text, length in zip(against, lengths, strict=True)
    for first in range(0, length, CHUNK)
  ]
  with screen.ProgressScreen("test images", sum(lengths)) as shown:
    prepare = functools.partial(shard_worker.Worker, made, folders)
    with processes.run_tasks(prepare, tasks, min(count, len(tasks)), lambda task, words: shown.add(words)) as results:
      by_task = dict(results)
  hashes = np.array([value for task in tasks for value in by_task[task]], np.uint64)
  if before is not None and not np.array_equal(before.values, hashes):
    _raise_changed(folders)  # shards were compared with the earlier images
  shard_worker.write_hashes(folders, shard_worker.StoredHashes(hashes, np.array(lengths), now))


def write_shards(
  count: int, max_rejected: float, made: CorpusPlan, source: Source, folders: shard_worker.Folders
) -> Reports:
  """Writes the missing shards.

  Args:
    count: number of processes.
    max_rejected: fraction of the images that may be rejected.
    made: the plan of the corpus.
    source: the input.
    folders: folders of the corpus and of its temporary files.

  Returns:
    Reports of all shards, also of those that were complete before.

  Raises:
    ConfigError: too many images were rejected.
  """
  tasks = [shard_worker.ShardTask(i, number) for i, split in enumerate(made.splits) for number in range(split.shards)]
  kept = {task: folders.read_complete_report(made.name, made.splits[task.split], task.number) for task in tasks}
  reports = {task: report for task, report in kept.items() if report is not None}
  todo = [task for task in tasks if task not in reports]
  count = min(count, len(todo))
  before, limit = record_maker.sum_reports(reports.values()), _count_allowed(source, max_rejected)
  left_out = len(before.rejected), len(before.duplicates)
  with screen.ProgressScreen(made.name, len(source), before.records + sum(left_out), *left_out) as shown:

    def name_shard(task: shard_worker.ShardTask) -> str:
      return folders.shard(made.name, made.splits[task.split], task.number).name

    def count_records(task: shard_worker.ShardTask, words: Any) -> None:
      shown.add(*words)
      if shown.rejected > 2 * limit:  # some shards are not done, and need not be done
        _raise_rejected(f"more than {2 * limit:,}", reports, source, limit)

    check_rejected(reports, source, max_rejected)
    prepare = functools.partial(shard_worker.Worker, made, folders, input=source if count < 2 else None)
    with processes.run_tasks(prepare, todo, count, count_records, name_shard) as results:
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
  rejected, limit = sum(len(report.rejected) for report in reports.values()), _count_allowed(source, max_rejected)
  if rejected > limit:
    _raise_rejected(f"{rejected:,}", reports, source, limit)


def _count_allowed(source: Source, max_rejected: float) -> int:
  """Returns the number of images that may be rejected."""
  return max(FEW, math.floor(max_rejected * len(source)))


def _raise_rejected(many: str, reports: Reports, source: Source, limit: int) -> None:
  """Raises ConfigError with the first rejected files."""
  rows = [row for _, report in sorted(reports.items()) for row in report.rejected][:5]
  examples = "; ".join(f"{row['file']}: {row['reason']}" for row in rows)
  raise ConfigError(
    f"rejected: {many} of {format_amount(len(source), 'image')}. Allowed: {limit:,}. Fix them and use another name, or "
    f"continue with a higher --max-rejected{': ' * bool(examples)}{examples}"
  )


def _finish_corpus(made: CorpusPlan, source: Source, folders: shard_worker.Folders, reports: Reports) -> list[str]:
  """Writes the files next to the shards.

  The file that marks the corpus as complete is written last. Returns a summary.
  """
  _check_unchanged(made, folders)
  by_split = {
    split.name: [reports[shard_worker.ShardTask(i, number)] for number in range(split.shards)]
    for i, split in enumerate(made.splits)
  }
  rows = [row for each in by_split.values() for report in each for row in report.duplicates]
  if rows:
    opened = functools.cache(shard_worker.open_test_set)
    duplicates.write_duplicates_page(
      folders.corpus / "duplicates.html", rows, lambda row: _read_picture(opened(row["of"]), row["record"])
    )
  description.write_description(folders.corpus, made, source.classes, by_split)
  trained = f"train on it with --config.data.name=tfds {texts.format_flag('config.data.path', folders.corpus)}"
  return [
    f"{made.name} is prepared at {folders.corpus}",
    *description.summarise_reports(by_split, source.classes),
    trained,
  ]


def _check_unchanged(made: CorpusPlan, folders: shard_worker.Folders) -> None:
  """Raises ConfigError if the input or a test set has changed, because shards may then have different contents."""
  shard_worker.reopen_input(made, folders)
  if _read_digests(made.options) != made.against:
    _raise_changed(folders)
  if not made.options.against:
    return
  hashed = shard_worker.read_hashes(folders)
  assert hashed is not None, folders
  if hashed.versions != shard_worker.read_test_set_versions(made.options):
    raise ConfigError(
      "files of test sets changed while this corpus was written. Run the same command again to compare the new files",
      "--dedup-against",
    )


def _raise_changed(folders: shard_worker.Folders) -> NoReturn:
  raise ConfigError(
    f"test sets have changed since this corpus was started. Remove {folders.work}, and run the same command again",
    "--dedup-against",
  )


def _read_picture(test_set: Source, record: int) -> dict[str, Any]:
  return duplicates.make_thumbnail(duplicates.read_pixels(test_set, record))


def _remove_temporary_files(folders: shard_worker.Folders) -> None:
  """Removes the temporary files next to the corpus, except the lock."""
  for file in folders.work.iterdir():
    if file.name != "lock":
      file.unlink(missing_ok=True)


def _remove_work_folder(folders: shard_worker.Folders) -> None:
  """Removes the folder of temporary files of a complete corpus, including its lock."""
  if not paths.is_in_bucket(folders.work):
    shutil.rmtree(folders.work, ignore_errors=True)
