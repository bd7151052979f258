"""Directories with a teacher's labels: their description, their files, and the selection of records for a student.

Source: Noisy Student (arXiv:1911.04252).
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax.config import migrations
from vit_jax.data import class_names, samples, sources
from vit_jax.data.dataset_row import Label
from vit_jax.data.sources import Fingerprint, Source
from vit_jax.schema import ConfigError, format_amount, show, texts
from vit_jax.storage import archives, files

PLAN = "labels.json"
SHARD = 2**16  # records per file; 300 million records need 4,578 files
# Classes of an image in soft labels: 30 bytes per image, 9 GB for 300 million images; 1,000 classes would need 600
# GB.
BEST = 5


@dataclasses.dataclass(frozen=True)
class LabelPlan:
  """A description of the labels in a directory.

  Attributes:
    data: choice of the dataset that the teacher labelled, as plain values.
    split: split string of this dataset.
    records: number of records.
    fingerprint: fingerprint of the dataset.
    contents: digest of a few images.
    classes: names of the teacher's classes.
    weights: SHA-256 of the teacher and of its preprocessing.
    kept: number of classes that are stored for each image.
    shard: number of records per file.
  """

  data: Mapping[str, Any]
  split: str
  records: int
  fingerprint: Fingerprint
  contents: str
  classes: tuple[str, ...]
  weights: str
  kept: int
  shard: int = SHARD

  def to_json(self) -> str:
    """Returns the plan as text. Equal plans have equal texts."""
    return json.dumps(dataclasses.asdict(self) | {"fingerprint": self.fingerprint._asdict()}, indent=1) + "\n"

  def digest(self) -> str:
    """Returns the digest that identifies the plan in each file. It does not depend on the location of the images."""
    return hashlib.sha256(dataclasses.replace(self, data={}).to_json().encode()).hexdigest()

  def shards(self) -> Iterator[tuple[str, range]]:
    """Yields the name and the records of each file, in order."""
    starts = range(0, self.records, self.shard)
    for number, first in enumerate(starts):
      name = f"labels-{number:05d}-of-{len(starts):05d}.npz"
      yield name, range(first, min(first + self.shard, self.records))


class Selection(NamedTuple):
  """The selection of labels for a student.

  Attributes:
    minimum: lowest probability of the best class.
    per_class: number of images of each class, see `select_records`.
    soft: whether labels are the best classes with their probabilities, instead of the best class alone.
  """

  minimum: float
  per_class: int | None
  soft: bool


def read_plan(folder: pathlib.Path) -> LabelPlan | None:
  """Reads the plan in a directory, or returns None if there is no plan. Converts the choice of data to the current
  format.

  Raises:
    ConfigError: if the file does not describe labels.
  """
  values = files.read_json(folder / PLAN)
  if values is None:
    return None
  try:
    fingerprint, classes = Fingerprint(**values["fingerprint"]), tuple(values["classes"])
    plan = LabelPlan(**{**values, "fingerprint": fingerprint, "classes": classes})
    for key in ("records", "kept", "shard"):
      if type(getattr(plan, key)) is not int or getattr(plan, key) < 1:
        raise ValueError(f"{key}={show(getattr(plan, key))}")
    texts = {key: getattr(plan, key) for key in ("split", "contents", "weights")} | dict(enumerate(classes))
    for name, value in texts.items():
      if not isinstance(value, str):
        raise ValueError(f"{name}={show(value)}")
    if not classes or not isinstance(values["classes"], list) or not isinstance(plan.data, Mapping):
      raise ValueError(f"classes={show(values['classes'])}, data={show(plan.data)}")
    return dataclasses.replace(plan, data=migrations.migrate_source(plan.data))
  except (KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{folder / PLAN} does not describe labels ({error}). Use a folder that evaluate --write-labels wrote"
    ) from None


def read_shard(file: pathlib.Path, plan: LabelPlan, records: int) -> tuple[np.ndarray, np.ndarray] | None:
  """Reads a file of labels, and checks that it belongs to the plan and could be written by a teacher.

  Wrong labels would reduce the student's accuracy without an error, so they are rejected here.

  Args:
    file: path of the file.
    plan: plan of the directory.
    records: number of records of the file.

  Returns:
    (classes int32 (records, K), probabilities float16 (records, K)), the best class first. An image that could not be
    decoded has the probability 0. None if the file is missing, damaged, or belongs to another plan.
  """
  if not file.is_file():  # reading a pipe could wait for ever
    return None
  try:
    with file.open("rb") as opened:
      classes, probabilities, digest = archives.load(opened, "classes", "probabilities", "plan")
  except files.DAMAGE:
    return None
  shape = (records, plan.kept)
  if str(digest) != plan.digest() or classes.shape != shape or probabilities.shape != shape:
    return None
  return (classes, probabilities) if _is_teacher_output(plan, classes, probabilities) else None


def _is_teacher_output(plan: LabelPlan, classes: np.ndarray, probabilities: np.ndarray) -> bool:
  if classes.dtype != np.int32 or probabilities.dtype != np.float16:
    return False
  inside = (classes >= 0) & (classes < len(plan.classes)) & (probabilities >= 0) & (probabilities <= 1)
  ordered = np.diff(probabilities.astype(np.float32), axis=1) <= 0
  twice = np.diff(np.sort(classes, axis=1), axis=1) == 0  # allowed only for images that could not be decoded
  return bool(inside.all() and ordered.all() and not (twice & (probabilities[:, :1] > 0)).any())


def write_shard(file: pathlib.Path, plan: LabelPlan, classes: np.ndarray, probabilities: np.ndarray) -> None:
  """Writes a file of labels in one operation. Equal labels result in equal bytes.

  Args:
    file: path of the file.
    plan: plan of the directory.
    classes: classes of each record, (records, K), the best class first.
    probabilities: probabilities of these classes, (records, K).
  """
  with files.atomic_write(file) as partial, partial.open("wb") as opened:
    np.savez(
      opened,
      classes=classes.astype(np.int32),
      probabilities=probabilities.astype(np.float16),
      plan=np.array(plan.digest()),
    )


def read_labels(
  folder: pathlib.Path, plan: LabelPlan, records: np.ndarray | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the stored labels of records.

  Args:
    folder: directory of the labels.
    plan: plan of the directory.
    records: record numbers in increasing order, (M,). None: all records.
    count: number of classes per record.

  Returns:
    (classes int32 (M, count), probabilities float16 (M, count)), the best class first.

  Raises:
    ConfigError: if a file is missing or damaged.
  """
  records = np.arange(plan.records) if records is None else records
  classes, probabilities = (np.zeros((len(records), count), kind) for kind in (np.int32, np.float16))
  for name, of_shard in plan.shards():
    shard = read_shard(folder / name, plan, len(of_shard))
    if shard is None:
      raise ConfigError(
        f"{folder / name} is missing or damaged. Run evaluate {texts.format_flag('write-labels', folder)} again to "
        "its end"
      )
    rows = slice(*np.searchsorted(records, (of_shard.start, of_shard.stop)))
    for values, stored in zip((classes, probabilities), shard, strict=True):
      values[rows] = stored[records[rows] - of_shard.start, :count]
  return classes, probabilities


def select_records(classes: np.ndarray, probabilities: np.ndarray, minimum: float, per_class: int | None) -> np.ndarray:
  """Returns the numbers of the records that a student learns from, int64 (M,), in increasing order.

  Args:
    classes: best class of each record, (N,).
    probabilities: probability of the best class of each record, (N,). Records with probability 0 have no label.
    minimum: lowest probability to use.
    per_class: number of records of each class. The records with the highest probabilities are used. If probabilities
      are equal, earlier records are preferred. A class with fewer records repeats them. A class without records is
      omitted. None: each record once.
  """
  records = np.flatnonzero((probabilities >= minimum) & (probabilities > 0))
  if per_class is None:
    return records
  records = records[np.lexsort((records, -probabilities[records].astype(np.float32), classes[records]))]
  _, firsts = np.unique(classes[records], return_index=True)
  # `resize` repeats the records of small classes.
  parts = [np.resize(some[:per_class], per_class) for some in np.split(records, firsts[1:])] if len(records) else []
  return np.sort(np.concatenate([records[:0], *parts]))


def digest_contents(source: Source) -> str:
  """Returns a digest of the names and contents of a few images."""
  return sources.digest([(each["name"], each["sha256"]) for each in samples.describe_samples(source)])


def select_labelled(
  name: str, split: str, source: Source, folder: pathlib.Path, plan: LabelPlan, choice: Selection
) -> Source:
  """Returns the records of a source that a student learns from, with the teacher's labels.

  Args:
    name: name of the result.
    split: split string of the result.
    source: the images that the teacher labelled.
    folder: directory of the labels.
    plan: plan of the directory.
    choice: selection of labels.

  Raises:
    ConfigError: if the source has changed, if labels are missing, or if the selection is impossible.
  """
  changes = [
    change for change in plan.fingerprint.changes(source.fingerprint()) if not change.startswith("modification times")
  ]
  if len(source) == plan.records and digest_contents(source) != plan.contents:
    changes.append("contents of some images")
  if len(source) != plan.records or changes:
    what = ", ".join(changes) or f"{format_amount(len(source), 'image')}, not {plan.records:,}"
    raise ConfigError(
      f"{folder} has labels for other images than the current ones: {what}. Restore the images, or label them again"
    )
  if choice.per_class is not None and choice.per_class > plan.records:
    raise ConfigError(
      f"{choice.per_class:,}. Allowed: up to {plan.records:,}, all images that have labels", "per_class"
    )
  count = plan.kept if choice.soft else 1
  if choice.soft and count == 1:
    raise ConfigError(
      f"{folder} contains hard labels, one class per image. Write soft labels, or set soft=false",
      "soft",
    )
  classes, probabilities = (values[:, 0] for values in read_labels(folder, plan, None, 1))
  records = select_records(classes, probabilities, choice.minimum, choice.per_class)
  if not len(records):
    most = float(probabilities.max(initial=0))
    raise ConfigError(
      f"{choice.minimum}: no label of the teacher is that confident. The highest confidence is {most:.3f}", "minimum"
    )
  classes, probabilities = read_labels(folder, plan, records, count)
  part = sources.select_subset(source, records)
  content = hashlib.sha256(b"".join(each.tobytes() for each in (records, classes, probabilities))).hexdigest()

  def label(i: int) -> Label:
    return tuple(classes[i].tolist()) if choice.soft else int(classes[i, 0])

  def fingerprint() -> Fingerprint:
    now = source.fingerprint()
    return now._replace(names=sources.digest([now.names, content]), members=sources.digest([now.members, content]))

  return dataclasses.replace(
    part,
    name=name,
    split=split,
    classes=tuple(map(class_names.normalise_name, plan.classes)),
    read=lambda i: (part.read(i)[0], label(i)),
    read_label=label,
    labels=count,
    shares=(lambda i: probabilities[i].astype(np.float32)) if choice.soft else None,
    fingerprint=fingerprint,
    parts=(),
  )
