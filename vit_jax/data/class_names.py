"""Names of classes: one Unicode form, one order, and names that only look different."""

import collections
import decimal
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

from vit_jax.schema import amount
from vit_jax.schema.errors import some

Order = Literal["numeric", "text"]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
SHOWN = 5  # groups of names in a note


def normal(name: str) -> str:
  """Returns a name in Unicode's form NFC, in which names are compared.

  macOS writes the letter é of a folder's name as two characters (NFD), other systems as one (NFC).
  """
  return name if name.isascii() else unicodedata.normalize("NFC", name)


def ordered(names: Iterable[str], order: Order = "numeric") -> tuple[str, ...]:
  """Returns names in normal form, each once, in the order in which readers number classes.

  Args:
    names: in any form and order.
    order: "numeric": names that are numbers come first, by value, and the others by their characters. "text": all by
      their characters, so that "10" comes before "2".
  """
  return tuple(sorted(set(map(normal, names)), key=_value if order == "numeric" else str))


def _value(name):
  """Sorts numbers in front, by value; equal numbers ("1", "01") and other names by their characters."""
  number = _NUMBER.fullmatch(name)
  return not number, decimal.Decimal(name) if number else decimal.Decimal(0), name


def number(name: str) -> int | None:
  """Returns the value of a name that is a whole number without a sign; None for any other name."""
  return int(name) if name.isascii() and name.isdigit() and len(name) < 19 else None


def alike(names: Iterable[str]) -> list[list[str]]:
  """Returns groups of different names that a person may mistake for one name.

  They differ in case, blanks, full-width or compatibility forms, characters without a width, or leading zeros.
  """
  groups = collections.defaultdict(list)
  for name in dict.fromkeys(names):
    groups[_skeleton(name)].append(name)
  return [group for group in groups.values() if len(group) > 1]


def _skeleton(name):
  """Returns a text that is equal for names that look alike."""
  if not name.isascii():
    name = unicodedata.normalize("NFKC", name)
    name = "".join(char for char in name if unicodedata.category(char) != "Cf" and not _selects(char))
    name = unicodedata.normalize("NFKC", name.casefold())
  name = " ".join(name.casefold().split())
  return str(decimal.Decimal(name).normalize()) if _NUMBER.fullmatch(name) and len(name) < 20 else name


def _selects(char):
  """Returns whether a character has no width: a joiner or a variation selector."""
  return char == "\u034f" or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def differing(names: Sequence[str], others: Sequence[str]) -> list[str]:
  """Returns the names, in normal form, that are in only one of two lists."""
  return sorted(set(map(normal, names)) ^ set(map(normal, others)))


def note(names: Sequence[str]) -> str:
  """Returns a line about names that look alike; "" if there are none."""
  groups = alike(names)
  if not groups:
    return ""
  shown = "; ".join(" and ".join(map(ascii, group[:SHOWN])) for group in groups[:SHOWN])
  verb = "has" if len(groups) == 1 else "have"
  return f"{amount(len(groups), 'group')} of classes {verb} names that look alike and stay apart: {shown}" + (
    "; ..." * (len(groups) > SHOWN)
  )


def moved(names: Sequence[str], others: Sequence[str]) -> str:
  """Returns a text about names that have different positions in two lists; "" if there are none.

  Names that occur twice in a list are ignored.
  """
  first, second = ({normal(name): i for i, name in enumerate(each)} for each in (names, others))
  counts = [collections.Counter(map(normal, each)) for each in (names, others)]
  twice = {name for each in counts for name, count in each.items() if count > 1}
  words = [
    f"{name!a} is number {first[name]} and {second[name]}"
    for name in first
    if name in second and name not in twice and first[name] != second[name]
  ]
  return some(words, 3) if words else ""
