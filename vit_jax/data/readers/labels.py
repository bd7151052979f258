"""Labels of records: collection during a scan of files, in a compact form, and conversion to class numbers.

All readers use the same rules. A label is a number or a text. Numbers are integers in JSON or Parquet, and digits in a
`.cls` or `.txt` of a tar. Directory names that are used as labels are texts. An image has one or several labels.

Without a list of classes, numbers are positions, and the classes are 0 to the largest number that occurs. Texts are
names, and the classes are the names that occur. Names that are numbers are sorted by value.

With a list of classes, a text is a name of the list. If no name of the list is a number, a text can also be a position.
A number is a position, or a name if it is too large for a position. A number that is a position and also the name of a
class at another position is an error.
"""

import array
import dataclasses
import errno
import functools
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NoReturn

import numpy as np

from vit_jax.data.class_names import NameOrder, normalise_name, parse_class_number, sort_names
from vit_jax.data.dataset_row import Label
from vit_jax.schema import ConfigError, Range, enter_key, format_amount, show, suggest_nearest
from vit_jax.storage import files, paths

MaxLabels = Annotated[int, Range(1, 4096)]  # largest number of labels of one image
NAMES = 2**20  # largest number of different labels of a dataset; more are probably captions


class LabelCollector:
  """The labels of the records of one file, collected during a scan."""

  def __init__(self) -> None:
    self._numbers, self._counts, self._names = array.array("i"), array.array("H"), {}

  def add(self, value: object) -> None:
    """Adds the label of the next record.

    Args:
      value: a number, a name, or a list of either.

    Raises:
      ValueError: if the value is not a valid label, or if numbers and names are mixed.
    """
    several = value if isinstance(value, list) else [value]
    if len(several) >= 2**16:
      raise ValueError(f"{len(several):,} labels of one image")
    for each in several:
      self._numbers.append(self._number(each))
    self._counts.append(len(several))

  def _number(self, value: object) -> int:
    if isinstance(value, str) and value and (self._names or not self._numbers):
      if len(self._names) >= NAMES:
        raise ValueError(
          f"label {show(value)} is one of more than {NAMES:,} different labels. Check whether the labels are captions"
        )
      return self._names.setdefault(value, len(self._names))
    if isinstance(value, int) and not isinstance(value, bool) and not self._names:
      if not 0 <= value < 2**31:
        raise ValueError(f"label {show(value)} is out of range. Allowed: 0 and above")
      return value
    kind = (
      "a number or a name"
      if not self._numbers
      else "a name, like other labels"
      if self._names
      else "a number, like other labels"
    )
    raise ValueError(f"label {show(value)} is not {kind}")

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns all labels as arrays.

    Returns:
      `numbers`: int32, of all labels in order. They are indices into `names`, or the labels themselves.
      `counts`: uint16, number of labels of each record. Empty if each record has one label.
      `names`: uint8, the escaped names. Empty if labels are numbers.
    """
    counts = np.frombuffer(self._counts, np.uint16) if self._counts else np.zeros(0, np.uint16)
    numbers = np.frombuffer(self._numbers, np.int32) if self._numbers else np.zeros(0, np.int32)
    names = "\n".join(name.replace("\\", "\\\\").replace("\n", "\\n") for name in self._names)
    named = np.frombuffer(names.encode("utf-8", "surrogatepass"), np.uint8)
    return {"numbers": numbers, "counts": counts[:0] if (counts == 1).all() else counts, "names": named}


@dataclasses.dataclass(frozen=True)
class RecordLabels:
  """Labels by record number: class numbers, or tuples of class numbers.

  Attributes:
    numbers: class numbers of all records in order, int32.
    ends: start of the labels of each record, followed by the total, int64 (records + 1,). None if each record has one
      label.
    listed: whether labels are tuples.
  """

  numbers: np.ndarray
  ends: np.ndarray | None
  listed: bool

  def __getitem__(self, record: int) -> Label:
    if self.ends is None:
      label = int(self.numbers[record])
      return (label,) if self.listed else label
    return tuple(self.numbers[self.ends[record] : self.ends[record + 1]].tolist())


DescribePlace = Callable[[int, int], str]  # (file, record) -> description


def resolve(
  files: Sequence[Mapping[str, np.ndarray]],
  classes: Sequence[str] | None,
  most: int,
  where: DescribePlace,
  order: NameOrder = "numeric",
  positions: bool = False,
) -> tuple[tuple[str, ...], list[RecordLabels]]:
  """Converts the labels of files to positions in one list of classes. See the rules of the module.

  Args:
    files: results of `LabelCollector.arrays`, one per file.
    classes: names of the classes in order. None: the names that occur, in `order`, or the numbers from 0 to the largest
      that occurs.
    most: largest number of labels of an image. If it is more than one, all labels are tuples.
    where: function (file, record) that describes a record, for errors.
    order: order of used names, see `class_names.sort_names`.
    positions: whether the format defines numbers as positions in `classes`, even if names are numbers.

  Returns:
    (the classes, the labels of each file's records).

  Raises:
    ConfigError: if a label has no class, or may refer to two different classes.
  """
  names = [[normalise_name(name) for name in list_names(file)] for file in files]
  numbered = [i for i, file in enumerate(files) if len(file["numbers"]) and not names[i]]
  if any(names) and numbered:
    named = next(i for i, some in enumerate(names) if some)
    raise ConfigError(
      f"labels are names at {where(named, 0)} and numbers at {where(numbered[0], 0)}. Use only one of the two"
    )
  if classes is None:
    largest = max((int(file["numbers"].max()) for file in files if len(file["numbers"])), default=-1)
    if largest >= NAMES:
      i = next(i for i in numbered if files[i]["numbers"].max() >= NAMES)
      record = _find_record(files[i], int(np.argmax(files[i]["numbers"] >= NAMES)))
      raise ConfigError(f"{where(i, record)}: label {largest:,}. Allowed: below {NAMES:,}. Is it an id?")
    classes = sort_names(set().union(*names), order) if any(names) else list(map(str, range(largest + 1)))
  known = tuple(map(normalise_name, classes))
  if not known:
    raise ConfigError("the data have no label, so the classes are unknown")
  meaning = _ClassPositions(known, positions)
  return known, [
    _resolve_file(file, names[i], meaning, most, functools.partial(where, i)) for i, file in enumerate(files)
  ]


class _ClassPositions:
  """The positions that numbers and texts have in a list of classes."""

  def __init__(self, classes: Sequence[str], positions: bool) -> None:
    self.classes = classes
    self._index = {name: position for position, name in enumerate(classes)}
    numbers = {value: i for i, name in enumerate(classes) if (value := parse_class_number(name)) is not None}
    self._numbers = {} if positions else numbers
    # (number, position) of the first class with a name that is the position of another class
    self.ambiguous = next(((n, i) for n, i in self._numbers.items() if n < len(classes) and n != i), None)

  def find_name(self, name: str) -> int | None:
    """Returns the position of a text, or None without a position."""
    if name in self._index:
      return self._index[name]
    value = None if self._numbers else parse_class_number(name)
    return value if value is not None and value < len(self.classes) else None

  def find_numbers(self, numbers: np.ndarray) -> np.ndarray:
    """Returns the positions of numbers. The position of an unknown number is -1."""
    result = numbers.copy()
    far = numbers >= len(self.classes)
    values, inverse = np.unique(numbers[far], return_inverse=True)
    result[far] = np.array([self._numbers.get(int(value), -1) for value in values], np.int32)[inverse]
    return result


def _resolve_file(
  file: Mapping[str, np.ndarray],
  names: Sequence[str],
  meaning: _ClassPositions,
  most: int,
  where: Callable[[int], str],
) -> RecordLabels:
  numbers, counts = file["numbers"], file["counts"]
  ends = _find_starts(file)

  def refuse(at: int, reason: str) -> NoReturn:
    raise ConfigError(f"{where(_find_record(file, at))}: {reason}")

  if names:
    found = [meaning.find_name(name) for name in names]
    if None in found:
      unknown = found.index(None)
      at, name = int(np.flatnonzero(numbers == unknown)[0]), names[unknown]
      refuse(at, f"label {show(name)} is not one of the classes.{suggest_nearest(name, list(meaning.classes[:1000]))}")
    numbers = np.array(found, np.int32)[numbers]
  elif len(numbers):
    if meaning.ambiguous:
      value, position = meaning.ambiguous
      raise ConfigError(
        f"labels are numbers, as {numbers[0]} at {where(_find_record(file, 0))}, and so are names of classes: "
        f"{value} may "
        f"mean {show(meaning.classes[position])}, number {position} of the list, or the class at position {value}, "
        f"{show(meaning.classes[value])}. If labels are positions, give the classes other names, such as "
        f"'class {value}'. If labels are names, write them as texts in JSON or Parquet, or leave out `classes`",
        "classes",
      )
    known = meaning.find_numbers(numbers)
    if known.min() < 0:
      at, count = int(np.argmin(known)), len(meaning.classes)
      refuse(at, f"label {numbers[at]} is out of range. Allowed: 0 to {count - 1}, the number of classes less one")
    numbers = known
  if ends is not None:
    if most == 1:
      record = int(np.argmax(counts != 1))
      raise ConfigError(
        f"{where(record)}: {format_amount(counts[record], 'label')}. Set labels to 2 or more to allow several labels",
        "labels",
      )
    if counts.max() > most:
      record = int(counts.argmax())
      raise ConfigError(
        f"{where(record)}: {format_amount(counts[record], 'label')}. Allowed: {most}, which `labels` sets", "labels"
      )
  return RecordLabels(numbers, ends, most > 1)


def _find_starts(file: Mapping[str, np.ndarray]) -> np.ndarray | None:
  """Returns the start of the labels of each record, int64 (records + 1,), or None if each record has one label."""
  counts = file["counts"]
  return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) if len(counts) else None


def _find_record(file: Mapping[str, np.ndarray], at: int) -> int:
  """Returns the record that a label belongs to."""
  ends = _find_starts(file)
  return at if ends is None else int(np.searchsorted(ends, at, "right")) - 1


def list_names(file: Mapping[str, np.ndarray]) -> list[str]:
  """Returns the names of the labels of a file as written, or an empty list if the labels are numbers."""
  text = bytes(file["names"]).decode("utf-8", "surrogatepass")
  if not text:
    return []
  pieces = [name.split("\\\\") for name in text.split("\n")]
  return ["\\".join(part.replace("\\n", "\n") for part in parts) for parts in pieces]


def parse_class_names(text: str | int | None) -> tuple[str, ...] | None:
  r"""Returns the classes that the config key `classes` specifies, or None for None.

  Args:
    text: the number of classes, or the path of a text file in UTF-8 with one name per line. Lines end at \n or \r\n
      only. Spaces and tabs around a name, and empty lines at the end, are ignored.

  Raises:
    ConfigError: if the file cannot be read, if a line is empty, or if a name occurs twice.
  """
  if text is None:
    return None
  text = str(text)
  with enter_key("classes"):
    if text.isascii() and text.isdigit():
      if not 0 < int(text) <= NAMES:
        raise ConfigError(f"{text} classes. Allowed: 1 to {NAMES:,}")
      return tuple(map(str, range(int(text))))
    try:
      content = files.read_if_exists(file := paths.resolve_path(text).expanduser())
      if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
      lines = content.decode("utf-8-sig").split("\n")
    except (OSError, UnicodeError) as error:
      raise ConfigError(
        f"class names cannot be read from {show(text)}: {error}. Alternatively, set the number of classes"
      ) from error
    # `str.splitlines` would end lines at ten more characters, which names may contain.
    names = [normalise_name(line.removesuffix("\r").strip(" \t")) for line in lines]
    while names and not names[-1]:
      names.pop()
    if not names or "" in names:
      line = names.index("") + 1 if names else 1
      raise ConfigError(f"{text}, line {line}, has no name. Write one class per line")
    if broken := next((name for name in names if "\r" in name), None):
      raise ConfigError(f"{text} has {show(broken)} with \\r inside a line. End lines with \\n or \\r\\n")
    if again := find_repeated(names):
      raise ConfigError(f"{text} has {show(again)} twice. Write each class once")
    return tuple(names)


def find_repeated(names: Sequence[str]) -> str | None:
  """Returns the first name that occurs twice, possibly in two Unicode forms, or None if all names differ."""
  seen: set[str] = set()
  for name in names:
    if (normal := normalise_name(name)) in seen:
      return name
    seen.add(normal)
  return None


def describe_forms(files: Sequence[Mapping[str, np.ndarray]]) -> str:
  """Returns a line about class names that occur in several Unicode forms, or "" if all names have one form.

  Args:
    files: results of `LabelCollector.arrays`, one per file.
  """
  forms = {}
  for file in files:
    for name in list_names(file):
      forms.setdefault(normalise_name(name), set()).add(name)
  several = [sorted(group) for group in forms.values() if len(group) > 1]
  shown = "; ".join(" and ".join(map(ascii, group)) for group in several[:5])
  if not several:
    return ""
  verb = "is" if len(several) == 1 else "are"
  count = format_amount(len(several), "name")
  return f"{count} of classes {verb} written in several Unicode forms, which count as one class: {shown}"


# The label precedes the stored bytes, because `Runs.parse` gets only the bytes of a record.


def pack_label(label: Label, data: bytes) -> bytes:
  """Returns a label followed by data, as bytes.

  Args:
    label: number of a class, or numbers of several classes.
    data: stored bytes of a record.
  """
  if isinstance(label, tuple):
    return struct.pack(f"<i{len(label)}i", len(label), *label) + data
  return struct.pack("<ii", -1, label) + data


def unpack_label(data: bytes) -> tuple[bytes, Label]:
  """Returns (data, label) for the result of `pack_label`."""
  count = struct.unpack_from("<i", data)[0]
  if count < 0:
    return data[8:], struct.unpack_from("<i", data, 4)[0]
  return data[4 + 4 * count :], struct.unpack_from(f"<{count}i", data, 4)
