"""Shell patterns in paths: `*`, `?` and `[...]` within a component, and braces like in WebDataset and Bash."""

import fnmatch
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import AbsentError
from vit_jax.storage import paths

ALTERNATIVES = 10**6  # largest number of alternatives of braces
ESCAPES = "To match one of these characters literally, put it in brackets: [[], [*], [?] or [{]."
_SPECIAL = re.compile(r"[*?\[{]")
# A set of characters, in which braces have no special meaning, or an innermost pair of braces.
_BRACES = re.compile(r"\[!?\]?[^\]/]*\]|\{([^{}]*)\}")
ListEntries = Callable[[str], list[tuple[str, bool]]]  # directory -> (name, whether it is a directory) of each entry


def split_pattern(path: str, exists: Callable[[str], bool]) -> tuple[str, str]:
  """Splits a path before the first component that is a pattern.

  A component with special characters is taken literally if a file or directory with exactly this name exists.

  Args:
    path: a path on a disk or in a bucket. The name of a bucket is never a pattern.
    exists: function that returns whether a path exists.

  Returns:
    (path above the pattern, pattern). The pattern is "" if no component is a pattern.
  """
  words = path.split("/")
  start = 3 if path.startswith(paths.BUCKET) else 0
  for i in range(start, len(words)):
    if _SPECIAL.search(words[i]) and not exists("/".join(words[: i + 1])):
      above = "/".join(words[:i])
      return above or ("/" if i else "."), "/".join(words[i:])
  return path, ""


def expand_braces(pattern: str) -> list[str]:
  """Returns all patterns that braces such as {a,b} and {0000..1023} abbreviate.

  Raises:
    ConfigError: if a range is invalid, or if there are more than a million alternatives.
  """
  match = next((match for match in _BRACES.finditer(pattern) if match[1] is not None), None)
  if not match:
    return [pattern]
  before, after = pattern[: match.start()], pattern[match.end() :]
  if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
    low, high = map(int, numbers.groups())
    if not 0 <= high - low < ALTERNATIVES:
      raise ConfigError(f"{show(match[0])} in a path is not a range. Allowed: {{0000..1023}}, up to a million", "path")
    words = [f"{number:0{len(numbers[1])}d}" for number in range(low, high + 1)]
  else:
    words = match[1].split(",")
  rests = expand_braces(after)
  if len(words) * len(rests) > ALTERNATIVES:
    raise ConfigError(f"{show(pattern)} has more than a million alternatives. Use fewer braces", "path")
  return [before + word + rest for word in words for rest in rests]


def find_matches(pattern: str, entries: ListEntries) -> dict[str, bool]:
  """Returns the files and directories below a directory that match a pattern.

  As in a shell, a name that starts with a dot only matches a component that starts with a dot.

  Args:
    pattern: pattern relative to the directory.
    entries: function that lists the directory "" and the directories below it.

  Returns:
    {name relative to the directory: whether it is a directory}.

  Raises:
    AbsentError: if an alternative in braces matches no file.
  """
  listed, result = functools.cache(lambda folder: dict(entries(folder))), {}
  all_of = expand_braces(pattern)
  for one in all_of:
    found = dict(_match_below("", one.split("/"), listed))
    if not found and len(all_of) > 1:
      problem = f"no file matches {show(one)}, an alternative of {show(pattern)}. Restore it, or change the pattern"
      raise AbsentError(problem, "path")
    result |= found
  return result


def _match_below(folder: str, words: Sequence[str], entries: Callable[[str], Any]) -> Iterator[tuple[str, bool]]:
  """Matches the components of a pattern, starting at a directory.

  Yields (name, whether it is a directory) of each match.
  """
  word, *others = words
  names = entries(folder)
  if word in ("", ".", ".."):  # a second slash, this directory, its parent
    fitting = [(word, True)]
  elif _SPECIAL.search(word):
    hidden = word.startswith(".")
    visible = [name for name in names if hidden or not name.startswith(".")]
    fitting = [(name, names[name]) for name in fnmatch.filter(visible, word.replace("[^", "[!"))]
  else:
    fitting = [(word, names[word])] if word in names else []
  for name, is_folder in fitting:
    path = f"{folder}/{name}" if folder else name
    if not others:
      yield path, is_folder
    elif is_folder:
      yield from _match_below(path, others, entries)
