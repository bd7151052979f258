"""Labelling of all images of a split by a teacher.

Labels are written in shards, so that at most one shard is lost by a kill.
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import runtime
from vit_jax.data import catalog, pseudo_labels, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.data.pseudo_labels import PLAN, LabelPlan
from vit_jax.evals import subject as subjects
from vit_jax.evals.subject import EvalContext, Poll, Weights
from vit_jax.schema import ConfigError, format_amount, to_plain
from vit_jax.storage import files


def create_plan(
  subject: EvalContext,
  data: EvalData | None,
  opened: dict[str, Any],
  source: sources.Source,
  classes: tuple[str, ...],
  params: dict[str, jax.Array],
  soft: bool,
) -> LabelPlan:
  """Returns a description of the labels: images, classes and weights.

  Args:
    subject: the teacher.
    data: the data to label, or None for the teacher's own data.
    opened: description from which a reader can open the data again, see `describe_origin`.
    source: the images.
    classes: names of the teacher's classes.
    params: {path: parameter} of the teacher.
    soft: true stores `pseudo_labels.BEST` classes per image, false stores one class.
  """
  seen = subject.choose_data(data).seen
  weights = hashlib.sha256(
    f"{subject.compute_identity(params)} {json.dumps(seen, sort_keys=True, default=repr)}".encode()
  )
  kept = min(pseudo_labels.BEST, len(classes)) if soft else 1
  images = (len(source), source.fingerprint(), pseudo_labels.digest_contents(source))
  return LabelPlan(opened, source.split, *images, classes, weights.hexdigest(), kept)


def describe_origin(data: EvalData) -> dict[str, Any]:
  """Returns plain values from which a reader can open the images of bound data again.

  For a student's data, the result describes the images that have labels.

  Args:
    data: a bound data choice.

  Raises:
    ConfigError: the data are a mixture.
  """
  if data.name == "pseudo_labelled":
    return describe_origin(data.args["labelled"])
  if data.name == "mixture":
    raise ConfigError("--data.name: missing. The data of the run are a mixture, so name the images to label")
  return {"name": data.name, **to_plain(data.select(catalog.READERS[data.name]))}


class _Batch(NamedTuple):
  """Predictions for a batch. `record` is the record of each image. All records before `reached` are complete."""

  best: np.ndarray
  probability: np.ndarray
  record: np.ndarray
  reached: int


def label_images(
  subject: EvalContext,
  data: EvalData | None,
  source: sources.Source,
  params: Weights,
  wanted: LabelPlan,
  folder: pathlib.Path,
  poll: Poll,
) -> int:
  """Labels all images that are not labelled yet, and returns the number of these images.

  All processes compute predictions, and the first process reads and writes the folder. One shard at a time is held in
  memory.

  Args:
    subject: the teacher.
    data: the data to label, or None for the teacher's own data.
    source: the images.
    params: {path: parameter} of the teacher.
    wanted: the plan.
    folder: folder of the labels.
    poll: called between batches. Raises an exception to stop.

  Raises:
    ConfigError: the folder contains labels of other weights or images. Raised on all processes.
  """
  first = jax.process_index() == 0
  stop = _check_folder(folder, wanted) if first else ""
  if runtime.copy_from_first(np.array([bool(stop)]))[0]:
    raise ConfigError(stop or f"{folder} contains other labels. See the message of the first process")
  if first:
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / PLAN, wanted.to_json())
  shards = list(wanted.shards())
  done = _count_complete(folder, wanted, shards) if first else 0
  done = int(runtime.copy_from_first(np.array([done]))[0])
  if done == len(shards):
    return 0
  size = subject.choose_batch_size(None)
  start = shards[done][1].start // size * size  # the same batches as without a kill, and therefore the same bits
  rest = sources.select_subset(source, range(start, wanted.records)) if start else source
  compute = functools.partial(subject.compile_predictions(data, False), params)
  made = subjects.compute_batches(compute, subject.open_batches(data, rest, size), poll, size, rest.display_name)
  waiting: list[_Batch] = []
  for name, records in shards[done:]:
    while not waiting or waiting[-1].reached < records.stop:
      rows = next(made, None)
      if rows is None:
        break
      record = rows["position"] + start
      reached = int(record[-1]) + 1 if len(record) else start  # no image of the batch could be decoded
      waiting.append(_Batch(rows["best"], rows["probability"], record, reached))
    if first:
      pseudo_labels.write_shard(folder / name, wanted, *_compute_shard(waiting, records, wanted.kept))
    waiting = [rows for rows in waiting if rows.reached > records.stop]
  return wanted.records - shards[done][1].start


def _compute_shard(waiting: Sequence[_Batch], records: range, kept: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (classes `(N, K)`, probabilities `(N, K)`) of the records of a file, from the batches that contain them."""
  classes, probabilities = np.zeros((len(records), kept), np.int32), np.zeros((len(records), kept), np.float16)
  for rows in waiting:
    inside = (rows.record >= records.start) & (rows.record < records.stop)
    at = rows.record[inside] - records.start
    classes[at], probabilities[at] = rows.best[inside, :kept], rows.probability[inside, :kept]
  return classes, probabilities


def _count_complete(folder: pathlib.Path, wanted: LabelPlan, shards: Sequence[tuple[str, range]]) -> int:
  """Returns the number of complete files before the first missing file.

  Later files are made again, with the same bytes.
  """
  for number, (name, records) in enumerate(shards):
    if pseudo_labels.read_shard(folder / name, wanted, len(records)) is None:
      return number
  return len(shards)


def _check_folder(folder: pathlib.Path, wanted: LabelPlan) -> str:
  """Returns the reason why labels must not be written into a folder, or ""."""
  try:
    before = pseudo_labels.read_plan(folder)
  except ConfigError as error:
    return str(error)
  if before is None or before == wanted:
    return ""
  what = [
    words
    for key, words in (
      ("weights", "made with other weights or other image preprocessing"),
      ("classes", "of other classes"),
      ("kept", "in the other format (hard or soft)"),
      ("split", f"of the split {before.split!r}"),
      ("records", f"of {format_amount(before.records, 'image')}"),
    )
    if getattr(before, key) != getattr(wanted, key)
  ]
  same_split = (before.split, before.records) == (wanted.split, wanted.records)
  # If the split differs, that explains all other differences.
  changes = before.fingerprint.changes(wanted.fingerprint) if same_split else []
  changes += ["contents of some images"] if same_split and before.contents != wanted.contents else []
  what += [f"of changed data ({', '.join(changes)})"] if changes else []
  return f"{folder} contains labels {'; '.join(what or ['of other data'])}. Use another folder, or remove this one"
