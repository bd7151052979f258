"""Names of classes: their Unicode form, their order, and detection of different names that look alike."""

import collections
import decimal
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from vit_jax.schema import format_amount
from vit_jax.schema.errors import format_names

NameOrder = Literal["numeric", "text"]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
SHOWN = 5  # number of groups of names in a note


def normalise_name(name: str) -> str:
  """Returns a name in Unicode form NFC, in which names are compared.

  macOS stores the letter é of a file name as two characters (NFD), other systems as one (NFC).
  """
  return name if name.isascii() else unicodedata.normalize("NFC", name)


def sort_names(names: Iterable[str], order: NameOrder = "numeric") -> tuple[str, ...]:
  """Returns names in normal form without repetitions, in the order in which readers number classes.

  Args:
    names: names in any form and order.
    order: "numeric" sorts numbers by value and other names by their characters, with numbers first. "text" sorts all
      names by their characters, so that "10" comes before "2".
  """
  return tuple(sorted(set(map(normalise_name, names)), key=_sort_key if order == "numeric" else str))


def _sort_key(name: str) -> tuple[bool, decimal.Decimal, str]:
  """Returns a sort key: numbers by value, followed by other names. Equal numbers are sorted by their characters."""
  number = _NUMBER.fullmatch(name)
  return not number, decimal.Decimal(name) if number else decimal.Decimal(0), name


def parse_class_number(name: str) -> int | None:
  """Returns the value of a name that is a whole number without a sign, or None for other names."""
  return int(name) if name.isascii() and name.isdigit() and len(name) < 19 else None


def find_alike(names: Iterable[str]) -> list[list[str]]:
  """Returns groups of different names that a person may mistake for one name.

  They differ in case, spaces, full-width or compatibility forms, characters without a width, or leading zeros.
  """
  groups = collections.defaultdict(list)
  for name in dict.fromkeys(names):
    groups[_skeleton(name)].append(name)
  return [group for group in groups.values() if len(group) > 1]


def _skeleton(name: str) -> str:
  """Returns a text that is equal for names that look alike."""
  if not name.isascii():
    name = unicodedata.normalize("NFKC", name)
    name = "".join(char for char in name if unicodedata.category(char) != "Cf" and not _has_no_width(char))
    name = unicodedata.normalize("NFKC", name.casefold())
  name = " ".join(name.casefold().split())
  return str(decimal.Decimal(name).normalize()) if _NUMBER.fullmatch(name) and len(name) < 20 else name


def _has_no_width(char: str) -> bool:
  """Returns whether a character is a joiner or a variation selector. These characters have no width."""
  return char == "\u034f" or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def find_differing(names: Collection[str], others: Collection[str]) -> list[str]:
  """Returns the sorted names, in normal form, that are in only one of two lists.

  Args:
    names: first list.
    others: second list.
  """
  return sorted(set(map(normalise_name, names)) ^ set(map(normalise_name, others)))


def describe_alike(names: Sequence[str]) -> str:
  """Returns a line about names that look alike, or "" if all names differ clearly."""
  groups = find_alike(names)
  if not groups:
    return ""
  shown = "; ".join(" and ".join(map(ascii, group[:SHOWN])) for group in groups[:SHOWN])
  verb = "has" if len(groups) == 1 else "have"
  return (
    f"{format_amount(len(groups), 'group')} of classes {verb} names that look alike but are different classes: {shown}"
    + ("; ..." * (len(groups) > SHOWN))
  )


def describe_moved(names: Sequence[str], others: Sequence[str]) -> str:
  """Returns a text about names with different positions in two lists, or "" if all positions are equal.

  Names that occur twice in a list are ignored.

  Args:
    names: names in the order of the first list.
    others: names in the order of the second list.
  """
  first, second = ({normalise_name(name): i for i, name in enumerate(each)} for each in (names, others))
  counts = [collections.Counter(map(normalise_name, each)) for each in (names, others)]
  twice = {name for each in counts for name, count in each.items() if count > 1}
  words = [
    f"{name!a} is number {first[name]} and {second[name]}"
    for name in first
    if name in second and name not in twice and first[name] != second[name]
  ]
  return format_names(words, 3) if words else ""
