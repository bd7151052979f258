"""Selects the cases of a campaign by the words of its command line."""

import argparse
from collections.abc import Iterable, Sequence


def choose(parser: argparse.ArgumentParser, names: Iterable[str], words: Sequence[str]) -> list[str]:
  """Returns the names that contain one of the words, or all names without words.

  Args:
    parser: if a word is not in any name, reports it with all names and exits with code 2.
    names: names of the cases, in order.
    words: words of the command line.
  """
  names = list(names)
  unknown = [word for word in words if not any(word in name for name in names)]
  if unknown:
    listed = "\n  ".join(names)
    parser.error(f"no case contains {', '.join(map(repr, unknown))}. Use words of these names:\n  {listed}")
  return [name for name in names if not words or any(word in name for word in words)]
