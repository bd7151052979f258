"""Check of users' regular expressions: Python must match them in bounded time for any text.

Python's engine tries all ways of matching one after another, and `(a+)+b` has 2 ** n ways. The ways are therefore
counted in advance. The count of a repeated part is multiplied for each repetition. RE2 needs no such limit, but it does
not support `(?!head).*`.
"""

import math
import re
from re import _constants as codes  # type: ignore[attr-defined]  # typeshed omits both modules
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from vit_jax.schema.errors import ConfigError, show

LENGTH = 64  # characters of the longest path that is matched; paths of models have up to 50
WAYS = 10**6  # three times `.*`, or about a millisecond
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


def check_pattern(pattern: str) -> None:
  """Checks that a pattern is a regular expression that needs at most `WAYS` attempts to match a path.

  Args:
    pattern: the regular expression.

  Raises:
    ConfigError: the pattern is invalid, too long or too slow.
  """
  if len(pattern) > 1000:
    raise ConfigError(f"{show(pattern)} is too long for a pattern. Allowed: 1,000 characters")
  try:
    re.compile(pattern)
    count = _count_ways(parser.parse(pattern))
  except (re.error, OverflowError, RecursionError) as error:
    raise ConfigError(f"{show(pattern)} is not a regular expression: {error}") from None
  if count > WAYS:
    raise ConfigError(
      f"{show(pattern)} could match in {count:.0e} ways. Allowed: {WAYS:,}. Do not repeat groups that contain "
      "repetitions or alternatives, such as (a+)+ and (a|bc)*. Use `.*` at most three times, or write several patterns"
    )


def _count_ways(items: Any) -> float:
  """Returns an upper bound of the number of ways in which a parsed sequence can match at one position."""
  return math.prod(map(_count_item_ways, items), start=1.0)


def _count_item_ways(item: Any) -> float:
  code, value = item
  if code not in _REPEATS:
    parts = map(_count_ways, _find_sequences(value))
    return sum(parts) if code is codes.BRANCH else math.prod(parts, start=1.0)
  low, high, body = value
  inside, times = _count_ways(body), min(high, LENGTH)
  if high <= 1:
    return high - low + inside
  if not body.getwidth()[0]:  # a body that may match the empty text can be repeated without progress
    return math.inf
  if inside == 1:
    return times - min(low, times) + 1
  return math.inf if inside > WAYS or times > 20 else 2 * inside**times


def _find_sequences(value: object) -> list[Any]:
  """Returns the sequences inside a parsed item. They are in a list for a branch, and in a tuple for a group."""
  if isinstance(value, parser.SubPattern):
    return [value]
  return [part for one in value for part in _find_sequences(one)] if isinstance(value, list | tuple) else []
