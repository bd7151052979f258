"""Pytrees addressed by path: names such as `blocks/0/mlp/up/kernel`, patterns, counts and readable differences."""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

_ABSENT = object()


# Names.


def join_path(path: Sequence[object]) -> str:
  """Returns the name of a leaf: the keys of its path, joined with slashes.

  List indices become numbers. Flax variables are nodes that store their array in the attribute `value`. The key `value`
  is omitted, so that the state of a module and a plain dict of its arrays have equal names.

  Args:
    path: key path of the leaf, as `jax.tree_util` returns it.
  """
  if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value":
    path = path[:-1]
  return "/".join(_format_entry(entry) for entry in path)


def flatten(tree: object) -> dict[str, Any]:
  """Returns {name: leaf} of a pytree, sorted by name.

  Numbers in a path are sorted by value, so `blocks/2` precedes `blocks/10`.
  """
  pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
  leaves = {join_path(path): leaf for path, leaf in pairs}
  assert len(leaves) == len(pairs), "two leaves have the same name"
  return {key: leaves[key] for key in sorted(leaves, key=_make_sort_key)}


def unflatten(tree: object, leaves: Mapping[str, object]) -> Any:
  """Returns the tree with every leaf replaced by the value of the same name.

  Args:
    tree: pytree that defines the structure.
    leaves: {name: value} with exactly the names of the tree.

  Raises:
    ValueError: if names are missing or unknown.
  """
  names = flatten(tree).keys()
  if names != leaves.keys():
    missing, extra = (sorted(names, key=_make_sort_key) for names in (names - leaves.keys(), leaves.keys() - names))
    raise ValueError(
      f"leaves do not match the tree: {len(missing)} missing {missing[:5]}, {len(extra)} extra {extra[:5]}"
    )
  return map_named(lambda path, _: leaves[path], tree)


def map_named(function: Callable[..., object], tree: object, *rest: object) -> Any:
  """Maps a function over a pytree and passes it the name of each leaf.

  Args:
    function: called as `function(name, leaf, *leaves of rest)`.
    tree: pytree that defines the structure.
    *rest: pytrees of the same structure.

  Returns:
    The tree of the results.
  """
  return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(join_path(path), *leaves), tree, *rest)


def _format_entry(entry: object) -> str:
  for attribute in ("key", "idx", "name"):  # keys of dicts and flattened nodes, of sequences, of attributes
    if hasattr(entry, attribute):
      return str(getattr(entry, attribute))
  raise TypeError(f"a path entry of unknown kind {type(entry).__name__}: {entry!r}")


def _make_sort_key(text: str) -> list[tuple[int, int, str]]:
  return [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in text.split("/")]


# Patterns.


def find_first_match(patterns: Iterable[str], path: str) -> int | None:
  """Returns the index of the first pattern that matches a whole path, or None.

  Args:
    patterns: regular expressions.
    path: name of a leaf.
  """
  return next((i for i, pattern in enumerate(patterns) if re.fullmatch(pattern, path)), None)


def find_nearest(pattern: str, paths: Iterable[str], count: int = 5) -> list[str]:
  """Returns the paths with the most similar spelling to a pattern, for suggestions in error messages.

  Args:
    pattern: regular expression that matches no path.
    paths: names of all leaves.
    count: largest number of results.
  """
  # Operators of regular expressions are removed, because they would count as spelling differences.
  plain = re.sub(r"\\.|[.*+?^$|()\[\]{}]", "", pattern)
  paths = list(paths)
  ratio = {path: difflib.SequenceMatcher(None, plain, path).ratio() for path in paths}
  return sorted(paths, key=lambda path: (-ratio[path], _make_sort_key(path)))[:count]


# Counts.


def count_values(tree: object) -> int:
  """Returns the total number of values in all arrays or shapes of a pytree."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


# Differences.


def list_differences(old: object, new: object) -> list[str]:
  """Returns a line such as `optim.lr: 0.001 -> 0.01` for each value that differs between two nested dicts.

  Args:
    old: nested dict of the first values.
    new: nested dict of the second values.
  """
  return [
    f"{path}: {_format_value(before)} -> {_format_value(after)}" for path, before, after in _find_changes(old, new, "")
  ]


def iterate_leaves(tree: Mapping[str, object], path: str = "") -> Iterator[tuple[str, Any]]:
  """Yields pairs such as ("optim.lr", 0.01) for the leaves of nested dicts.

  Args:
    tree: nested dicts. Every other value is a leaf.
    path: prefix of all names.
  """
  for key, value in tree.items():
    inside = f"{path}.{key}" if path else str(key)
    yield from iterate_leaves(value, inside) if isinstance(value, Mapping) else [(inside, value)]


def _find_changes(old: object, new: object, path: str) -> Iterator[tuple[str, Any, Any]]:
  if isinstance(old, Mapping) and isinstance(new, Mapping):
    keys = [*old, *(key for key in new if key not in old)]
    for key in keys:
      yield from _find_changes(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else str(key))
  elif _differ(old, new):
    yield path, old, new


def _differ(old: object, new: object) -> bool:
  # Python considers 1, 1.0 and True equal. In a config, 1 and True differ, while 1 and 1.0 are equal.
  return old != new or isinstance(old, bool) != isinstance(new, bool)


def _format_value(value: object) -> str:
  return "(absent)" if value is _ABSENT else repr(value)
