"""Measures how often texts contain constructions that are hard to read, per 10,000 words.

Each limit is about three times the rate in the docstrings of Optax, Kauldron and big_vision, measured in November 2026.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Construction(NamedTuple):
  """A construction to avoid.

  Attributes:
    name: its description in the report.
    pattern: a regular expression that finds it.
    limit: allowed occurrences per 10,000 words.
  """

  name: str
  pattern: re.Pattern[str]
  limit: float


def _construction(name: str, pattern: str, limit: float) -> Construction:
  return Construction(name, re.compile(pattern, re.MULTILINE), limit)


_DETERMINERS = "it|there|they|none|nothing|one|this|that|these|those|no|a|an|the"
CONSTRUCTIONS = (
  _construction("sentence that starts with 'What'", r"(?:^|[.;]\s+)(?:What|Whatever|Whose)\b(?![^.]*\?)", 5),
  _construction("'where' instead of 'if'", rf"\bwhere (?:{_DETERMINERS}) \b", 10),
  _construction("'say' or 'tell'", r"\b(?:says?|said|saying|told|tells?)\b", 4),
  _construction("'nobody', 'nothing' or 'none'", r"\b(?:nobody|nothing|none)\b(?!-)", 12),
  _construction("'whose'", r"\bwhose\b", 6),
  _construction("'stand'", r"\b(?:stands?|stood)\b(?!-| for\b|alone)", 3),
  _construction("'of which'", r"\bof (?:which|whom|whose)\b", 3),
  _construction("sentence that starts with 'Of'", r"(?:^|[.:;]\s+)Of (?!course)", 2),
  _construction("'is no' instead of 'is not a'", r"\b(?:is|are|was|were) no\b", 4),
  _construction("'beside'", r"\bbesides?\b", 3),
  _construction("'mend', 'begun' or 'whatever'", r"\b(?:mend\w*|begun|wherever|whatever)\b", 3),
  _construction(
    "'such' or 'theirs' as a pronoun", r"\b(?:of ours|theirs|one of such|such (?:of|that|as are|in|with)\b)", 2
  ),
)
SMALLEST = 300  # words; a rate over fewer words has no meaning


def count_words(texts: Iterable[str]) -> int:
  """Returns the number of words in some texts."""
  return sum(len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) for text in texts)


def rates(texts: list[str]) -> dict[str, float]:
  """Returns the occurrences of each construction per 10,000 words."""
  words = max(count_words(texts), 1)
  return {each.name: 1e4 * sum(len(each.pattern.findall(text)) for text in texts) / words for each in CONSTRUCTIONS}


def excesses(texts: dict[str, str]) -> list[str]:
  """Returns a report of the constructions that are too frequent in some texts.

  Args:
    texts: place -> text.

  Returns:
    For each construction above its limit, a line with the rate and the limit, followed by the places and texts that
    contain it. Empty if all rates are below their limits or if the texts have fewer than `SMALLEST` words.
  """
  if count_words(texts.values()) < SMALLEST:
    return []
  found = rates(list(texts.values()))
  lines = []
  for each in CONSTRUCTIONS:
    if found[each.name] > each.limit:
      lines.append(f"{each.name}: {found[each.name]:.1f} per 10,000 words, limit {each.limit:g}")
      lines += [f"  {place}: {text!r}" for place, text in texts.items() if each.pattern.search(text)]
  return lines
