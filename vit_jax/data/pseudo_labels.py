"""A folder of a teacher's labels: what it is of, its shards, the records that a student learns from (1911.04252)."""

import dataclasses
import hashlib
import json
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax import files
from vit_jax.data import sources
from vit_jax.data.sources import Fingerprint, Source
from vit_jax.schema import ConfigError

PLAN = "labels.json"
SHARD = 2**16  # records of a file: 300 million take 4,578 files
BEST = 5  # classes that soft labels keep of an image: 20 bytes an image, 6 GB of 300 million; all of 1,000: 600 GB


@dataclasses.dataclass(frozen=True)
class Plan:
  """What labels are of."""

  data: Mapping[str, Any]  # the choice of data, plain
  split: str
  records: int
  fingerprint: Fingerprint
  classes: tuple[str, ...]  # the teacher's
  weights: str  # SHA-256 of the teacher, and of how it sees images
  kept: int  # classes of an image
  shard: int = SHARD

  def to_json(self) -> str:
    """As text, of the same plan always the same."""
    return json.dumps(dataclasses.asdict(self) | {"fingerprint": self.fingerprint._asdict()}, indent=1) + "\n"

  def shards(self) -> Iterator[tuple[str, range]]:
    """The name of each file and its records, in order."""
    starts = range(0, self.records, self.shard)
    for number, first in enumerate(starts):
      name = f"labels-{number:05d}-of-{len(starts):05d}.npz"
      yield name, range(first, min(first + self.shard, self.records))


def read_plan(folder: pathlib.Path) -> Plan | None:
  """The plan in a folder; None where there is none. ConfigError for one that says something else."""
  values = files.read_json(folder / PLAN)
  if values is None:
    return None
  try:
    fingerprint, classes = Fingerprint(**values["fingerprint"]), tuple(values["classes"])
    return Plan(**{**values, "fingerprint": fingerprint, "classes": classes})
  except (KeyError, TypeError) as error:
    raise ConfigError(
      f"{folder / PLAN} is no plan of labels ({error}); take a folder of evaluate --write-labels"
    ) from None


def read_shard(file: pathlib.Path, records: int) -> tuple[np.ndarray, np.ndarray] | None:
  """(classes int32 [records, K], probabilities float16 [records, K]), best first; None where it is not there, whole.

  An image that could not be decoded has the probability 0.
  """
  try:
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
      classes, probabilities = arrays["classes"], arrays["probabilities"]
  except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
    return None
  whole = classes.ndim == 2 and classes.shape == probabilities.shape and len(classes) == records
  return (classes, probabilities) if whole else None


def write_shard(file: pathlib.Path, classes: np.ndarray, probabilities: np.ndarray) -> None:
  """Writes the file at once, of the same labels the same bytes."""
  with files.replacing(file) as partial, partial.open("wb") as opened:
    np.savez(opened, classes=classes.astype(np.int32), probabilities=probabilities.astype(np.float16))


def best(folder: pathlib.Path, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
  """(class int32 [N], probability float16 [N]) of every record, 6 bytes each. ConfigError where a file is missing."""
  classes, probabilities = np.zeros(plan.records, np.int32), np.zeros(plan.records, np.float16)
  for name, records in plan.shards():
    shard = read_shard(folder / name, len(records))
    if shard is None:
      raise ConfigError(f"{folder / name} is missing or damaged; run evaluate --write-labels={folder} again to its end")
    classes[records.start : records.stop] = shard[0][:, 0]
    probabilities[records.start : records.stop] = shard[1][:, 0]
  return classes, probabilities


def chosen(classes: np.ndarray, probabilities: np.ndarray, minimum: float, per_class: int | None) -> np.ndarray:
  """Records int64 [M] that a student learns from, in order.

  Args:
    classes: the teacher's best of each record, [N].
    probabilities: of these, [N].
    minimum: probability; one of 0 is no label.
    per_class: so many of each class: those of the highest probability, of equal ones the first; the images of a class
      with fewer come several times. A class without any stays without. None: all, once.
  """
  records = np.flatnonzero((probabilities >= minimum) & (probabilities > 0))
  if per_class is None:
    return records
  records = records[np.lexsort((records, -probabilities[records].astype(np.float32), classes[records]))]
  _, firsts = np.unique(classes[records], return_index=True)
  # `resize` repeats what is too short.
  parts = [np.resize(some[:per_class], per_class) for some in np.split(records, firsts[1:])] if len(records) else []
  return np.sort(np.concatenate([records[:0], *parts]))


def labelled(name: str, split: str, source: Source, folder: pathlib.Path, plan: Plan, records: np.ndarray) -> Source:
  """These records of a source with the teacher's best class as their label. ConfigError where it holds other images."""
  changes = [change for change in plan.fingerprint.changes(source.fingerprint()) if not change.startswith("times")]
  if len(source) != plan.records or changes:
    what = ", ".join(changes) or f"{len(source):,} images, not {plan.records:,}"
    raise ConfigError(f"{folder} labels other images than are there now: {what}; bring them back, or label them anew")
  classes, _ = best(folder, plan)
  labels = classes[records]
  part = sources.subset(source, records)
  content = hashlib.sha256(np.ascontiguousarray(records).tobytes() + labels.tobytes()).hexdigest()

  def fingerprint():
    now = source.fingerprint()
    return now._replace(names=sources.digest([now.names, content]), members=sources.digest([now.members, content]))

  return dataclasses.replace(
    part,
    name=name,
    split=split,
    classes=plan.classes,
    read=lambda i: (part.read(i)[0], int(labels[i])),
    read_label=lambda i: int(labels[i]),
    labels=1,
    fingerprint=fingerprint,
    parts=(),
  )
