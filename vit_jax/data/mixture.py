"""Several sources as one, by weights: one space of classes, and records numbered through all of them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from vit_jax.data import class_names, sources
from vit_jax.data.readers import index
from vit_jax.data.readers.labels import packed, unpacked
from vit_jax.data.sources import Corpus, Fingerprint, Runs, Source
from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import some

Classes = Literal["union", "same"]
RATIO = 10**6  # of the largest to the smallest weight: a smaller share is not seen in a run


def mixture(
  name: str, split: str, parts: Sequence[Source], weights: Sequence[float], classes: Classes, epoch: str | None
) -> Source:
  """The records of all parts, one part after the other.

  Args:
    name: of the mixture.
    split: of it.
    parts: at least one.
    weights: of the examples that are drawn of each, whatever its size; see `mixed`.
    classes: "union", by name, in the order of the parts; or "same", where those of all parts must be.
    epoch: the part by name of which an epoch of the run is one; None: as many examples as there are records.
  """
  names = _names(parts)
  if max(weights) > RATIO * min(weights):
    raise ConfigError(
      f"weights {min(weights):g} and {max(weights):g}; allowed: the largest up to {RATIO:,} times the smallest. Leave "
      "out a part that is to have no share",
      "parts",
    )
  together, numbers = _classes(names, parts, classes)
  firsts, labels = index.firsts(map(len, parts)), max(part.labels for part in parts)
  joined = _Joined(name, tuple(parts), firsts, numbers, len(together), labels)

  def of_part(function):
    return lambda i: function(*joined.locate(i))

  return Source(
    name,
    split,
    together,
    firsts[-1],
    of_part(joined.read),
    of_part(lambda part, i: f"{name}, part {names[part]!r}: {parts[part].place(i)}"),
    labels,
    of_part(lambda part, i: f"{names[part]}/{parts[part].identify(i)}"),
    lambda: _fingerprint(parts),
    of_part(lambda part, i: joined.renumbered(part, parts[part].label(i))),
    tuple((f"{names[i]}/{part}", range_) for i, each in enumerate(parts) for part, range_ in each.parts),
    Runs(joined.run, joined.parse) if any(part.runs for part in parts) else None,
    any(part.remote for part in parts),
    tuple(
      Corpus(names[i], range(firsts[i], firsts[i + 1]), weights[i], part.runs.together if part.runs else 0)
      for i, part in enumerate(parts)
    ),
    _epoch(names, parts, weights, epoch),
    of_part(lambda part, i: f"{names[part]}/{parts[part].called(i)}"),
    of_part(joined.shares) if any(part.shares for part in parts) else None,
    is_published=of_part(lambda part, i: parts[part].is_published(i)),
    note="\n".join(filter(None, dict.fromkeys((*(part.note for part in parts), class_names.note(together))))),
    files=lambda: [file for part in parts for file in part.files()],
    objects=lambda: [version for part in parts for version in part.objects()],
  )


@dataclasses.dataclass(frozen=True)
class _Joined:
  """The records of all parts."""

  name: str
  parts: tuple[Source, ...]
  firsts: list[int]
  numbers: list[list[int]]  # of each part's classes among all
  classes: int
  labels: int

  def locate(self, i: int) -> tuple[int, int]:
    """(part, record of it)."""
    if not 0 <= i < self.firsts[-1]:
      raise IndexError(f"record {i} is past the end of {self.name}")
    return index.locate(self.firsts, i)

  def renumbered(self, part: int, label: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """A label of a part as one of the mixture."""
    several, numbers = label if isinstance(label, tuple) else (label,), self.numbers[part]
    # One that is none of the classes is for `Images` to refuse, whose error names the record.
    of_all = tuple(numbers[n] if 0 <= n < len(numbers) else self.classes for n in several)
    return of_all if self.labels > 1 or len(of_all) != 1 else of_all[0]

  def shares(self, part: int, i: int) -> np.ndarray:
    """As `Source.shares`, of a part; all of it where that has none."""
    one = self.parts[part]
    own = one.shares(i) if one.shares else np.ones(one.labels, np.float32)
    return np.pad(own, (0, self.labels - one.labels))

  def read(self, part: int, i: int) -> tuple[bytes, int | tuple[int, ...]]:
    """As `Source.read`, of a part."""
    data, label = self.parts[part].read(i)
    return data, self.renumbered(part, label)

  def run(self, first: int, stop: int) -> list[bytes]:
    """As `Runs.read`: each record with its part in front."""
    result = []
    while first < stop:
      part, i = self.locate(first)
      count = min(stop - first, len(self.parts[part]) - i)
      result += [part.to_bytes(2, "little") + data for data in _run(self.parts[part], i, i + count)]
      first += count
    return result

  def parse(self, data: bytes) -> tuple[bytes, int | tuple[int, ...]]:
    """As `Runs.parse`."""
    part = int.from_bytes(data[:2], "little")
    runs = self.parts[part].runs
    image, label = (runs.parse if runs else unpacked)(data[2:])
    return image, self.renumbered(part, label)


def _run(part, first, stop):
  """Neighbours of a part as they are stored, or read one by one and `packed`."""
  if part.runs:
    return part.runs.read(first, stop)
  return [packed(label, data) for data, label in map(part.read, range(first, stop))]


def _names(parts):
  """Those of the parts, with a number where two have the same."""
  names = [part.name for part in parts]
  return [each if names.index(each) == i else f"{each}_{names[: i + 1].count(each)}" for i, each in enumerate(names)]


def _classes(names, parts, classes):
  """(all classes, the numbers among them of each part's classes)."""
  first = parts[0].classes
  for name, part in zip(names, parts, strict=True):
    if classes == "same" and part.classes != first:
      odd = sorted(set(part.classes) ^ set(first))
      what = f"as {some(odd, 5)}" if odd else "in their order"
      raise ConfigError(
        f"{names[0]} and {name} differ in classes, {what}; take 'union' to join them by name", "classes"
      )
  together = tuple(dict.fromkeys(each for part in parts for each in part.classes))
  number = {each: i for i, each in enumerate(together)}
  return together, [[number[each] for each in part.classes] for part in parts]


def _epoch(names, parts, weights, epoch):
  """Examples of an epoch of the run."""
  if epoch is None:
    return None
  if epoch not in names:
    raise ConfigError(f"no part {show(epoch)}; allowed: {some(names)}", "epoch")
  part = names.index(epoch)
  return max(1, round(len(parts[part]) * sum(weights) / weights[part]))


def _fingerprint(parts):
  each = [part.fingerprint() for part in parts]
  return Fingerprint(*(sources.digest(values) if any(values) else "" for values in zip(*each, strict=True)))
