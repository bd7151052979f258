"""Labels of records, compact: collected while files are scanned, numbers or names, one or several of an image."""

import array
import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np

from vit_jax import paths
from vit_jax.schema import ConfigError, Range, at, nearest, show

Most = Annotated[int, Range(1, 4096)]  # labels of one image
NAMES = 2**20  # different labels of a corpus, at most: more are captions


class Collected:
  """Labels of the records of one file, while it is scanned."""

  def __init__(self):
    self._numbers, self._counts, self._names = array.array("i"), array.array("H"), {}

  def add(self, value) -> None:
    """The label of the next record: a number, a name, or a list of either. ValueError for anything else."""
    several = value if isinstance(value, list) else [value]
    if len(several) >= 2**16:
      raise ValueError(f"{len(several):,} labels of one image")
    for each in several:
      self._numbers.append(self._number(each))
    self._counts.append(len(several))

  def _number(self, value):
    if isinstance(value, str) and value and (self._names or not self._numbers):
      if len(self._names) >= NAMES:
        raise ValueError(f"label {show(value)} is one of more than {NAMES:,} different ones; are they captions?")
      return self._names.setdefault(value, len(self._names))
    if isinstance(value, int) and not isinstance(value, bool) and not self._names:
      if not 0 <= value < 2**31:
        raise ValueError(f"label {show(value)} is out of range; allowed: 0 and above")
      return value
    kind = "a number or a name" if not self._numbers else "a name, as others" if self._names else "a number, as others"
    raise ValueError(f"label {show(value)} is not {kind}")

  def arrays(self) -> dict[str, np.ndarray]:
    """All of it: `numbers` of the labels, in the order of `names` where they have such, and `counts` of each record."""
    counts = np.frombuffer(self._counts, np.uint16) if self._counts else np.zeros(0, np.uint16)
    numbers = np.frombuffer(self._numbers, np.int32) if self._numbers else np.zeros(0, np.int32)
    names = "\n".join(name.replace("\\", "\\\\").replace("\n", "\\n") for name in self._names)
    named = np.frombuffer(names.encode("utf-8", "surrogatepass"), np.uint8)
    return {"numbers": numbers, "counts": counts[:0] if (counts == 1).all() else counts, "names": named}


@dataclasses.dataclass(frozen=True)
class Labels:
  """Labels by record: numbers of classes, or tuples of them."""

  numbers: np.ndarray  # int32, of all records one after the other
  ends: np.ndarray | None  # int64 [records + 1], where those of each begin and end; None: each has one
  listed: bool  # whether they are tuples

  def __getitem__(self, record: int) -> int | tuple[int, ...]:
    if self.ends is None:
      label = int(self.numbers[record])
      return (label,) if self.listed else label
    return tuple(self.numbers[self.ends[record] : self.ends[record + 1]].tolist())


Where = Callable[[int, int], str]  # (file, record) in words


def resolve(
  files: Sequence[Mapping[str, np.ndarray]], classes: Sequence[str] | None, most: int, where: Where
) -> tuple[tuple[str, ...], list[Labels]]:
  """The classes, and the labels of each file's records.

  Args:
    files: what `Collected.arrays` gave of each.
    classes: their names in order; None: the names that there are, sorted, or numbers up to the largest.
    most: labels of an image; more than one makes all of them tuples.
    where: file and record, for errors.
  """
  names = [_names(file) for file in files]
  numbered = [i for i, file in enumerate(files) if len(file["numbers"]) and not names[i]]
  if any(names) and numbered:
    named = next(i for i, some in enumerate(names) if some)
    raise ConfigError(f"labels are names at {where(named, 0)} and numbers at {where(numbered[0], 0)}; take either")
  if classes is None:
    largest = max((int(file["numbers"].max()) for file in files if len(file["numbers"])), default=-1)
    if largest >= NAMES:
      i = next(i for i in numbered if files[i]["numbers"].max() >= NAMES)
      record = _record(files[i], int(np.argmax(files[i]["numbers"] >= NAMES)))
      raise ConfigError(f"{where(i, record)}: label {largest:,}; allowed: below {NAMES:,}. Is it an id?")
    classes = sorted(set().union(*names)) if any(names) else map(str, range(largest + 1))
  classes = tuple(classes)
  if not classes:
    raise ConfigError("there is no label, and so no class")
  index = {name: number for number, name in enumerate(classes)}
  return classes, [
    _resolved(file, names[i], index, most, lambda record, i=i: where(i, record)) for i, file in enumerate(files)
  ]


def _resolved(file, names, index, most, where) -> Labels:
  numbers, counts = file["numbers"], file["counts"]
  ends = _ends(file)

  def refuse(at, reason):
    raise ConfigError(f"{where(_record(file, at))}: {reason}")

  if names:
    if unknown := [number for number, name in enumerate(names) if name not in index]:
      at, name = int(np.flatnonzero(numbers == unknown[0])[0]), names[unknown[0]]
      refuse(at, f"label {show(name)} is none of the classes.{nearest(name, list(index)[:1000])}")
    numbers = np.array([index[name] for name in names], np.int32)[numbers]
  elif len(numbers) and numbers.max() >= len(index):
    at = int(np.argmax(numbers >= len(index)))
    refuse(at, f"label {numbers[at]} is out of range; allowed: 0 to {len(index) - 1}, the number of classes less one")
  if ends is not None:
    if most == 1:
      record = int(np.argmax(counts != 1))
      raise ConfigError(f"{where(record)}: {counts[record]} labels; set labels above 1 to allow such lists", "labels")
    if counts.max() > most:
      record = int(counts.argmax())
      raise ConfigError(f"{where(record)}: {counts[record]} labels; allowed: {most}, which `labels` sets", "labels")
  return Labels(numbers, ends, most > 1)


def _ends(file):
  """Where the labels of each record begin and end, int64 [records + 1]; None where each has one."""
  counts = file["counts"]
  return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) if len(counts) else None


def _record(file, at):
  """The record that a label is of."""
  ends = _ends(file)
  return at if ends is None else int(np.searchsorted(ends, at, "right")) - 1


def _names(file):
  text = bytes(file["names"]).decode("utf-8", "surrogatepass")
  if not text:
    return []
  pieces = [name.split("\\\\") for name in text.split("\n")]
  return ["\\".join(part.replace("\\n", "\n") for part in parts) for parts in pieces]


def class_names(text: str | None) -> tuple[str, ...] | None:
  """The classes that the key `classes` says: their number, or a text file with a name a line; None for None."""
  if text is None:
    return None
  with at("classes"):
    if text.isascii() and text.isdigit():
      if not 0 < int(text) <= NAMES:
        raise ConfigError(f"{text} classes; allowed: 1 to {NAMES:,}")
      return tuple(map(str, range(int(text))))
    try:
      lines = paths.expand(paths.path(text)).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
      raise ConfigError(f"no names of classes can be read from {show(text)}: {error}; or give their number") from error
    while lines and not lines[-1].strip():
      lines.pop()
    names = tuple(line.strip() for line in lines)
    if not names or "" in names:
      line = names.index("") + 1 if names else 1
      raise ConfigError(f"{text}, line {line}, has no name; write one class a line")
    if again := repeated(names):
      raise ConfigError(f"{text} has {show(again)} twice; write each class once")
    return names


def repeated(names: Sequence[str]) -> str | None:
  """The first name that was there before; None where each is there once."""
  seen = set()
  return next((name for name in names if name in seen or seen.add(name)), None)


# A label in front of what is stored: what is read as a run is to be told from nothing but its bytes.


def packed(label: int | tuple[int, ...], data: bytes) -> bytes:
  """Both as bytes."""
  if isinstance(label, tuple):
    return struct.pack(f"<i{len(label)}i", len(label), *label) + data
  return struct.pack("<ii", -1, label) + data


def unpacked(data: bytes) -> tuple[bytes, int | tuple[int, ...]]:
  """(what was stored, label)."""
  count = struct.unpack_from("<i", data)[0]
  if count < 0:
    return data[8:], struct.unpack_from("<i", data, 4)[0]
  return data[4 + 4 * count :], struct.unpack_from(f"<{count}i", data, 4)
