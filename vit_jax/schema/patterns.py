"""Regular expressions of users: which of them Python matches within bounds, whatever the text.

Python's engine tries one way of matching after the other, and `(a+)+b` has 2 ** n of them. So the ways are counted
before: what may be repeated, and has several ways itself, multiplies them. RE2, which needs no such bound, has no
`(?!head).*`.
"""

import math
import re
from re import _constants as codes
from re import _parser as parser

from vit_jax.schema.errors import ConfigError, show

LENGTH = 64  # characters of the longest path that is matched; those of models have up to 50
WAYS = 10**6  # three times `.*`, or about a millisecond
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


def check(pattern: str) -> None:
  """ConfigError for what is no regular expression, or one that could take longer than `WAYS` tries of a path."""
  if len(pattern) > 1000:
    raise ConfigError(f"{show(pattern)} is too long for a pattern; allowed: 1,000 characters")
  try:
    re.compile(pattern)
    count = _ways(parser.parse(pattern))
  except (re.error, OverflowError, RecursionError) as error:
    raise ConfigError(f"{show(pattern)} is not a regular expression: {error}") from None
  if count > WAYS:
    raise ConfigError(
      f"{show(pattern)} could match in {count:.0e} ways; allowed: {WAYS:,}. Repeat no group that repeats or chooses "
      "inside, as (a+)+ and (a|bc)* do, take `.*` three times at most, or write several patterns"
    )


def _ways(items) -> float:
  """An upper bound of the ways in which a parsed sequence can match at one place."""
  return math.prod(map(_ways_of, items), start=1.0)


def _ways_of(item) -> float:
  code, value = item
  if code not in _REPEATS:
    parts = map(_ways, _sequences(value))
    return sum(parts) if code is codes.BRANCH else math.prod(parts, start=1.0)
  low, high, body = value
  inside, times = _ways(body), min(high, LENGTH)
  if high <= 1:
    return high - low + inside
  if not body.getwidth()[0]:  # what may be empty can be repeated without getting on
    return math.inf
  if inside == 1:
    return times - min(low, times) + 1
  return math.inf if inside > WAYS or times > 20 else 2 * inside**times


def _sequences(value):
  """The sequences inside a parsed item, of whatever kind: a branch has them in a list, a group in a tuple."""
  if isinstance(value, parser.SubPattern):
    return [value]
  return [part for one in value for part in _sequences(one)] if isinstance(value, list | tuple) else []
