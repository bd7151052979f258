"""Pytrees by path: names such as `blocks/0/mlp/up/kernel`, patterns, counts, and differences that print well."""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

_ABSENT = object()


# Names.


def name(path: Sequence) -> str:
  """The path of a leaf, as `jax.tree_util` gives it, with slashes; list indices are numbers.

  Flax's variables are nodes of their own, and their array is the attribute `value`: that last step is left out, so a
  module's state and the plain dict made of it have the same names.
  """
  if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value":
    path = path[:-1]
  return "/".join(_word(entry) for entry in path)


def flatten(tree) -> dict[str, Any]:
  """Leaf by name, sorted: numbers in a path count as numbers, so `blocks/2` stands before `blocks/10`."""
  pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
  leaves = {name(path): leaf for path, leaf in pairs}
  assert len(leaves) == len(pairs), "two leaves have the same name"
  return {key: leaves[key] for key in sorted(leaves, key=_order)}


def unflatten(tree, leaves: Mapping[str, Any]):
  """The tree with its leaves replaced by those of the same name; both must have the same names."""
  names = flatten(tree).keys()
  if names != leaves.keys():
    missing, extra = (sorted(names, key=_order) for names in (names - leaves.keys(), leaves.keys() - names))
    raise ValueError(
      f"leaves do not fit the tree: {len(missing)} missing {missing[:5]}, {len(extra)} extra {extra[:5]}"
    )
  return map_named(lambda path, _: leaves[path], tree)


def map_named(function: Callable, tree, *rest):
  """A tree of `function(name, leaf, *leaves of rest)`."""
  return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(name(path), *leaves), tree, *rest)


def _word(entry):
  for attribute in ("key", "idx", "name"):  # dict and flattened, sequence, attribute
    if hasattr(entry, attribute):
      return str(getattr(entry, attribute))
  raise TypeError(f"a path entry of unknown kind {type(entry).__name__}: {entry!r}")


def _order(text):
  return [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in text.split("/")]


# Patterns.


def first_match(patterns: Iterable[str], path: str) -> int | None:
  """Index of the first pattern that matches the whole path."""
  return next((i for i, pattern in enumerate(patterns) if re.fullmatch(pattern, path)), None)


def nearest(pattern: str, paths: Iterable[str], count: int = 5) -> list[str]:
  """The paths that are spelled most like the pattern: what its author may have meant."""
  # Without the operators of regular expressions, which would count as wrong letters.
  plain = re.sub(r"\\.|[.*+?^$|()\[\]{}]", "", pattern)
  paths = list(paths)
  ratio = {path: difflib.SequenceMatcher(None, plain, path).ratio() for path in paths}
  return sorted(paths, key=lambda path: (-ratio[path], _order(path)))[:count]


# Counts.


def count(tree) -> int:
  """Number of values in all arrays (or shapes) of the tree."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


# Differences.


def diff(old, new) -> list[str]:
  """Lines such as `optim.lr: 0.001 -> 0.01`, one for each value that differs between two nested dicts."""
  return [f"{path}: {_show(before)} -> {_show(after)}" for path, before, after in _changes(old, new, "")]


def leaves(tree: Mapping, path: str = "") -> Iterator[tuple[str, Any]]:
  """Pairs such as ("optim.lr", 0.01) of nested dicts; what is no dict is a leaf."""
  for key, value in tree.items():
    inside = f"{path}.{key}" if path else str(key)
    yield from leaves(value, inside) if isinstance(value, Mapping) else [(inside, value)]


def _changes(old, new, path):
  if isinstance(old, Mapping) and isinstance(new, Mapping):
    keys = [*old, *(key for key in new if key not in old)]
    for key in keys:
      yield from _changes(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else str(key))
  elif _differ(old, new):
    yield path, old, new


def _differ(old, new):
  # 1 and True are equal in Python, and 1 and 1.0; in a config the first pair is not.
  return old != new or isinstance(old, bool) != isinstance(new, bool)


def _show(value):
  return "(absent)" if value is _ABSENT else repr(value)
