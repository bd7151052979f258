"""A folder of a teacher's labels: what it is of, its shards, the records that a student learns from (1911.04252)."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import archives, files, renames
from vit_jax.data import class_names, samples, sources
from vit_jax.data.sources import Fingerprint, Source
from vit_jax.schema import ConfigError, amount, show, texts

PLAN = "labels.json"
SHARD = 2**16  # records of a file: 300 million take 4,578 files
BEST = 5  # classes that soft labels keep of an image: 30 bytes an image, 9 GB of 300 million; all of 1,000: 600 GB


@dataclasses.dataclass(frozen=True)
class Plan:
  """What labels are of."""

  data: Mapping[str, Any]  # the choice of data, plain
  split: str
  records: int
  fingerprint: Fingerprint
  contents: str  # digest of a few images
  classes: tuple[str, ...]  # the teacher's
  weights: str  # SHA-256 of the teacher, and of how it sees images
  kept: int  # classes of an image
  shard: int = SHARD

  def to_json(self) -> str:
    """As text, of the same plan always the same."""
    return json.dumps(dataclasses.asdict(self) | {"fingerprint": self.fingerprint._asdict()}, indent=1) + "\n"

  def digest(self) -> str:
    """What each file has, so that no other plan takes it for one of its own; images may move."""
    return hashlib.sha256(dataclasses.replace(self, data={}).to_json().encode()).hexdigest()

  def shards(self) -> Iterator[tuple[str, range]]:
    """The name of each file and its records, in order."""
    starts = range(0, self.records, self.shard)
    for number, first in enumerate(starts):
      name = f"labels-{number:05d}-of-{len(starts):05d}.npz"
      yield name, range(first, min(first + self.shard, self.records))


class Choice(NamedTuple):
  """Which labels a student learns from."""

  minimum: float  # probability of the best class
  per_class: int | None  # images; see `chosen`
  soft: bool  # the best classes with their probabilities, or the best alone


def read_plan(folder: pathlib.Path) -> Plan | None:
  """Returns the plan in a folder, with its data as today's code reads them; None if there is none.

  Raises:
    ConfigError: the file is not a plan of labels.
  """
  values = files.read_json(folder / PLAN)
  if values is None:
    return None
  try:
    fingerprint, classes = Fingerprint(**values["fingerprint"]), tuple(values["classes"])
    plan = Plan(**{**values, "fingerprint": fingerprint, "classes": classes})
    for key in ("records", "kept", "shard"):
      if type(getattr(plan, key)) is not int or getattr(plan, key) < 1:
        raise ValueError(f"{key}={show(getattr(plan, key))}")
    texts = {key: getattr(plan, key) for key in ("split", "contents", "weights")} | dict(enumerate(classes))
    for key, value in texts.items():
      if not isinstance(value, str):
        raise ValueError(f"{key}={show(value)}")
    if not classes or not isinstance(values["classes"], list) or not isinstance(plan.data, Mapping):
      raise ValueError(f"classes={show(values['classes'])}, data={show(plan.data)}")
    return dataclasses.replace(plan, data=renames.source(plan.data))
  except (KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{folder / PLAN} is no plan of labels ({error}); take a folder of evaluate --write-labels"
    ) from None


def read_shard(file: pathlib.Path, plan: Plan, records: int) -> tuple[np.ndarray, np.ndarray] | None:
  """(classes int32 [records, K], probabilities float16 [records, K]), best first, of a file of this plan.

  None where there is none, or one that is damaged, or of another plan, or says what no teacher does: others would teach
  nonsense without a word. An image that could not be decoded has the probability 0.
  """
  if not file.is_file():  # a pipe would be waited for
    return None
  try:
    with file.open("rb") as opened:
      classes, probabilities, digest = archives.load(opened, "classes", "probabilities", "plan")
  except files.DAMAGE:
    return None
  shape = (records, plan.kept)
  if str(digest) != plan.digest() or classes.shape != shape or probabilities.shape != shape:
    return None
  return (classes, probabilities) if _by_teacher(plan, classes, probabilities) else None


def _by_teacher(plan, classes, probabilities):
  if classes.dtype != np.int32 or probabilities.dtype != np.float16:
    return False
  inside = (classes >= 0) & (classes < len(plan.classes)) & (probabilities >= 0) & (probabilities <= 1)
  ordered = np.diff(probabilities.astype(np.float32), axis=1) <= 0
  twice = np.diff(np.sort(classes, axis=1), axis=1) == 0  # but in images that could not be decoded
  return bool(inside.all() and ordered.all() and not (twice & (probabilities[:, :1] > 0)).any())


def write_shard(file: pathlib.Path, plan: Plan, classes: np.ndarray, probabilities: np.ndarray) -> None:
  """Writes the file at once, of the same labels the same bytes."""
  with files.replacing(file) as partial, partial.open("wb") as opened:
    arrays = {"classes": classes.astype(np.int32), "probabilities": probabilities.astype(np.float16)}
    np.savez(opened, **arrays, plan=np.array(plan.digest()))


def kept(folder: pathlib.Path, plan: Plan, records: np.ndarray | None, count: int) -> tuple[np.ndarray, np.ndarray]:
  """(classes int32 [M, count], probabilities float16 [M, count]) of records in order, best first; None: of all.

  ConfigError where a file is missing.
  """
  records = np.arange(plan.records) if records is None else records
  classes, probabilities = (np.zeros((len(records), count), kind) for kind in (np.int32, np.float16))
  for name, of_shard in plan.shards():
    shard = read_shard(folder / name, plan, len(of_shard))
    if shard is None:
      raise ConfigError(
        f"{folder / name} is missing or damaged; run evaluate {texts.flag('write-labels', folder)} again to its end"
      )
    rows = slice(*np.searchsorted(records, (of_shard.start, of_shard.stop)))
    for values, stored in zip((classes, probabilities), shard, strict=True):
      values[rows] = stored[records[rows] - of_shard.start, :count]
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


def contents(source: Source) -> str:
  """Digest of the names and contents of a few images."""
  return sources.digest([(each["name"], each["sha256"]) for each in samples.of(source)])


def labelled(name: str, split: str, source: Source, folder: pathlib.Path, plan: Plan, choice: Choice) -> Source:
  """The records of a source that a student learns from, with the teacher's labels.

  Args:
    name: of the result.
    split: of it.
    source: the images that were labelled; ConfigError where it holds others.
    folder: with the labels.
    plan: of these.
    choice: what is chosen, and how it is said.
  """
  changes = [change for change in plan.fingerprint.changes(source.fingerprint()) if not change.startswith("times")]
  if len(source) == plan.records and contents(source) != plan.contents:
    changes.append("contents of some images")
  if len(source) != plan.records or changes:
    what = ", ".join(changes) or f"{amount(len(source), 'image')}, not {plan.records:,}"
    raise ConfigError(f"{folder} labels other images than are there now: {what}; bring them back, or label them anew")
  if choice.per_class is not None and choice.per_class > plan.records:
    raise ConfigError(
      f"{choice.per_class:,}; allowed: up to {plan.records:,}, all images that have labels", "per_class"
    )
  count = plan.kept if choice.soft else 1
  if choice.soft and count == 1:
    raise ConfigError(f"{folder} holds hard labels, one class an image; write soft ones, or take soft=false", "soft")
  classes, probabilities = (values[:, 0] for values in kept(folder, plan, None, 1))
  records = chosen(classes, probabilities, choice.minimum, choice.per_class)
  if not len(records):
    most = float(probabilities.max(initial=0))
    raise ConfigError(f"{choice.minimum}: the teacher is nowhere so sure; its surest label has {most:.3f}", "minimum")
  classes, probabilities = kept(folder, plan, records, count)
  part = sources.subset(source, records)
  content = hashlib.sha256(b"".join(map(np.ascontiguousarray, (records, classes, probabilities)))).hexdigest()

  def label(i):
    return tuple(classes[i].tolist()) if choice.soft else int(classes[i, 0])

  def fingerprint():
    now = source.fingerprint()
    return now._replace(names=sources.digest([now.names, content]), members=sources.digest([now.members, content]))

  return dataclasses.replace(
    part,
    name=name,
    split=split,
    classes=tuple(map(class_names.normal, plan.classes)),
    read=lambda i: (part.read(i)[0], label(i)),
    read_label=label,
    labels=count,
    shares=(lambda i: probabilities[i].astype(np.float32)) if choice.soft else None,
    fingerprint=fingerprint,
    parts=(),
  )
