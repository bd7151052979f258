"""Mixtures: several sources as one, with weights, a common set of classes, and consecutive record numbers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from vit_jax.data import class_names, membership, sources
from vit_jax.data.dataset_row import Label
from vit_jax.data.readers import index
from vit_jax.data.readers.labels import pack_label, unpack_label
from vit_jax.data.sources import Corpus, Fingerprint, Source, SpanReader
from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import format_names

MergeMode = Literal["union", "same"]
RATIO = 10**6  # largest ratio of two weights; a run does not see a smaller share


def join_sources(
  name: str, split: str, parts: Sequence[Source], weights: Sequence[float], classes: MergeMode, epoch: str | None
) -> Source:
  """Returns a source with the records of all parts, one part after the other.

  Args:
    name: name of the mixture.
    split: split string of the mixture.
    parts: at least one source.
    weights: relative number of examples that are drawn from each part, independent of its size. See `mixed`.
    classes: "union" joins the classes by name, in the order of the parts. "same" requires equal classes in all parts.
    epoch: name of a part. An epoch of the mixture is then one epoch of this part. None: an epoch has as many examples
      as the mixture has records.

  Raises:
    ConfigError: if weights differ too much, if classes differ with "same", or if no part has the name `epoch`.
  """
  names = _name_parts(parts)
  if max(weights) > RATIO * min(weights):
    raise ConfigError(
      f"weights {min(weights):g} and {max(weights):g}. Allowed: the largest up to {RATIO:,} times the smallest. Leave "
      "out a part that should not be used",
      "parts",
    )
  together, numbers = _merge_classes(names, parts, classes)
  firsts, labels = index.compute_firsts(map(len, parts)), max(part.labels for part in parts)
  joined = _JoinedRecords(name, tuple(parts), firsts, numbers, len(together), labels)

  def call_part(function: Callable[..., object]) -> Callable[[int], Any]:
    return lambda i: function(*joined.locate(i))

  return Source(
    name,
    split,
    together,
    firsts[-1],
    call_part(joined.read),
    call_part(lambda part, i: f"{name}, part {names[part]!r}: {parts[part].place(i)}"),
    labels,
    call_part(lambda part, i: f"{names[part]}/{parts[part].identify(i)}"),
    lambda: _join_fingerprints(parts),
    call_part(lambda part, i: joined.renumber_label(part, parts[part].label(i))),
    tuple((f"{names[i]}/{part}", range_) for i, each in enumerate(parts) for part, range_ in each.parts),
    SpanReader(joined.run, joined.parse) if any(part.runs for part in parts) else None,
    any(part.remote for part in parts),
    tuple(
      Corpus(names[i], range(firsts[i], firsts[i + 1]), weights[i], part.runs.together if part.runs else 0)
      for i, part in enumerate(parts)
    ),
    _compute_epoch(names, parts, weights, epoch),
    call_part(lambda part, i: f"{names[part]}/{parts[part].display_name(i)}"),
    call_part(joined.shares) if any(part.shares for part in parts) else None,
    is_published=call_part(lambda part, i: parts[part].is_published(i)),
    note="\n".join(filter(None, dict.fromkeys((*(part.note for part in parts), class_names.describe_alike(together))))),
    files=lambda: [file for part in parts for file in part.files()],
    objects=lambda: [version for part in parts for version in part.objects()],
    membership=membership.join_memberships({names[i]: part.membership for i, part in enumerate(parts)}),
  )


@dataclasses.dataclass(frozen=True)
class _JoinedRecords:
  """The records of all parts. `numbers` converts the class numbers of each part to those of the mixture."""

  name: str
  parts: tuple[Source, ...]
  firsts: list[int]
  numbers: list[list[int]]
  classes: int
  labels: int

  def locate(self, i: int) -> tuple[int, int]:
    """Returns (part, record number in the part)."""
    if not 0 <= i < self.firsts[-1]:
      raise IndexError(f"record {i} is past the end of {self.name}")
    return index.locate(self.firsts, i)

  def renumber_label(self, part: int, label: Label) -> Label:
    """Converts a label of a part to a label of the mixture."""
    several, numbers = label if isinstance(label, tuple) else (label,), self.numbers[part]
    # An unknown class is refused by `Images`, which names the record in its error.
    of_all = tuple(numbers[n] if 0 <= n < len(numbers) else self.classes for n in several)
    return of_all if self.labels > 1 or len(of_all) != 1 else of_all[0]

  def shares(self, part: int, i: int) -> np.ndarray:
    """Returns the weights of a record's labels. All labels of a part without weights count fully."""
    one = self.parts[part]
    own = one.shares(i) if one.shares else np.ones(one.labels, np.float32)
    return np.pad(own, (0, self.labels - one.labels))

  def read(self, part: int, i: int) -> tuple[bytes, Label]:
    """Returns the image file and label of a record of a part."""
    data, label = self.parts[part].read(i)
    return data, self.renumber_label(part, label)

  def run(self, first: int, stop: int) -> list[bytes]:
    """Reads neighbouring records. Puts the number of its part before each record."""
    result = []
    while first < stop:
      part, i = self.locate(first)
      count = min(stop - first, len(self.parts[part]) - i)
      result += [part.to_bytes(2, "little") + data for data in _read_run(self.parts[part], i, i + count)]
      first += count
    return result

  def parse(self, data: bytes) -> tuple[bytes, Label]:
    """Parses a record from `run`."""
    part = int.from_bytes(data[:2], "little")
    runs = self.parts[part].runs
    image, label = (runs.parse if runs else unpack_label)(data[2:])
    return image, self.renumber_label(part, label)


def _read_run(part: Source, first: int, stop: int) -> list[bytes]:
  """Returns neighbouring records of a part in stored form, or in `pack_label` form if they must be read one by one."""
  if part.runs:
    return part.runs.read(first, stop)
  return [pack_label(label, data) for data, label in map(part.read, range(first, stop))]


def _name_parts(parts: Sequence[Source]) -> list[str]:
  """Returns the names of the parts, with a number after repeated names."""
  names = [part.name for part in parts]
  return [each if names.index(each) == i else f"{each}_{names[: i + 1].count(each)}" for i, each in enumerate(names)]


def _merge_classes(
  names: Sequence[str], parts: Sequence[Source], classes: str
) -> tuple[tuple[str, ...], list[list[int]]]:
  """Returns the classes of the mixture, and the numbers that the classes of each part have in it."""
  first = parts[0].classes
  for name, part in zip(names, parts, strict=True):
    if classes == "same" and part.classes != first:
      odd = sorted(set(part.classes) ^ set(first))
      what = f"for example {format_names(odd, 5)}" if odd else "but only in their order"
      raise ConfigError(f"{names[0]} and {name} differ in classes, {what}. Use 'union' to join them by name", "classes")
  together = tuple(dict.fromkeys(each for part in parts for each in part.classes))
  number = {each: i for i, each in enumerate(together)}
  return together, [[number[each] for each in part.classes] for part in parts]


def _compute_epoch(
  names: Sequence[str], parts: Sequence[Source], weights: Sequence[float], epoch: str | None
) -> int | None:
  """Returns the number of examples of an epoch of the mixture. None: as many as there are records."""
  if epoch is None:
    return None
  if epoch not in names:
    raise ConfigError(f"no part {show(epoch)}. Allowed: {format_names(names)}", "epoch")
  part = names.index(epoch)
  return max(1, round(len(parts[part]) * sum(weights) / weights[part]))


def _join_fingerprints(parts: Sequence[Source]) -> Fingerprint:
  each = [part.fingerprint() for part in parts]
  return Fingerprint(*(sources.digest(values) if any(values) else "" for values in zip(*each, strict=True)))
