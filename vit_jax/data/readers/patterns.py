"""Shell patterns in paths: `*`, `?` and `[...]` within a component, and braces as WebDataset and Bash write them."""

import fnmatch
import functools
import re
from collections.abc import Callable, Iterator

from vit_jax import paths
from vit_jax.data import sources
from vit_jax.schema import ConfigError, show

ALTERNATIVES = 10**6  # of braces
ESCAPES = "For one of these characters itself, write it in brackets: [[], [*], [?] or [{]."
_SPECIAL = re.compile(r"[*?\[{]")
# A set of characters, in which braces are characters like others, or an innermost pair of braces.
_BRACES = re.compile(r"\[!?\]?[^\]/]*\]|\{([^{}]*)\}")
Entries = Callable[[str], list[tuple[str, bool]]]  # folder -> (name, whether it is a folder) of what is in it


def split(path: str, exists: Callable[[str], bool]) -> tuple[str, str]:
  """Splits a path before the first component that is a pattern.

  A component with special characters is taken literally if the file system has it under exactly this name.

  Args:
    path: a path on a disk or in a bucket; the name of a bucket is never a pattern.
    exists: whether a path exists.

  Returns:
    (the path above the pattern, the pattern); the pattern is "" if no component is a pattern.
  """
  words = path.split("/")
  start = 3 if path.startswith(paths.BUCKET) else 0
  for i in range(start, len(words)):
    if _SPECIAL.search(words[i]) and not exists("/".join(words[: i + 1])):
      above = "/".join(words[:i])
      return above or ("/" if i else "."), "/".join(words[i:])
  return path, ""


def alternatives(pattern: str) -> list[str]:
  """Returns all patterns that braces abbreviate: {a,b}, {0000..1023}. Raises ConfigError if there are too many."""
  match = next((match for match in _BRACES.finditer(pattern) if match[1] is not None), None)
  if not match:
    return [pattern]
  before, after = pattern[: match.start()], pattern[match.end() :]
  if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
    low, high = map(int, numbers.groups())
    if not 0 <= high - low < ALTERNATIVES:
      raise ConfigError(f"{show(match[0])} in a path is no range; allowed: {{0000..1023}}, up to a million", "path")
    words = [f"{number:0{len(numbers[1])}d}" for number in range(low, high + 1)]
  else:
    words = match[1].split(",")
  rests = alternatives(after)
  if len(words) * len(rests) > ALTERNATIVES:
    raise ConfigError(f"{show(pattern)} has more than a million alternatives. Use fewer braces", "path")
  return [before + word + rest for word in words for rest in rests]


def matches(pattern: str, entries: Entries) -> dict[str, bool]:
  """Returns the files and folders below a folder that match a pattern.

  As in a shell, a name that begins with a dot is matched only by a component that begins with a dot.

  Args:
    pattern: relative to the folder.
    entries: lists the folder "" and the folders below it.

  Returns:
    {name relative to the folder: whether it is a folder}.

  Raises:
    sources.AbsentError: an alternative in braces matches no file.
  """
  listed, result = functools.cache(lambda folder: dict(entries(folder))), {}
  all_of = alternatives(pattern)
  for one in all_of:
    found = dict(_below("", one.split("/"), listed))
    if not found and len(all_of) > 1:
      problem = f"no file matches {show(one)}, an alternative of {show(pattern)}. Restore it, or change the pattern"
      raise sources.AbsentError(problem, "path")
    result |= found
  return result


def _below(folder, words, entries) -> Iterator[tuple[str, bool]]:
  """(name, whether it is a folder) of what matches the components of a pattern, from a folder on."""
  word, *others = words
  names = entries(folder)
  if word in ("", ".", ".."):  # a second slash, this folder, the one above
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
      yield from _below(path, others, entries)
