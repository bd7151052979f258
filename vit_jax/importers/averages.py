"""Detection of averaged weights by their prefix, and comparison of an average with raw weights."""

import re
from collections.abc import Callable, Collection, Sequence

from vit_jax.importers import row_names
from vit_jax.importers.formats.lazy_tensors import Tensors
from vit_jax.importers.layout import Layout
from vit_jax.schema.errors import format_names

# Words that mark averaged weights in a prefix that is split at "_".
_WORDS = {"ema", "swa", "averaged", "average", "avg", "shadow", "polyak"}
_LISTED = 4  # maximum number of names in a message


def is_averaged(root: str, roots: Collection[str]) -> bool:
  """Returns true if a prefix marks averaged weights. `teacher` marks averaged weights if another prefix contains
  `student`.

  Args:
    root: the prefix.
    roots: all prefixes of the file.
  """
  words = [word for word in re.split(r"[./]", root) if word]
  if "teacher" in words and any("student" in re.split(r"[./]", other) for other in roots):
    return True
  return any(_WORDS & set(word.lower().split("_")) for word in words)


def find_difference(average: Tensors, raw: Tensors, known: Callable[[Tensors], Sequence[Layout]]) -> str | None:
  """Returns the reason why tensors cannot be the average of other tensors.

  An average has the same parameters with the same shapes. Only the head may be missing in one of them.

  Args:
    average: tensors by name without prefix.
    raw: tensors by name without prefix.
    known: function that returns the layouts that recognise a set of tensors.

  Returns:
    The reason in a few words, or None if the first tensors may be the average.
  """
  (ours, our_head), (theirs, their_head) = _collect_shapes(average, known(average)), _collect_shapes(raw, known(raw))
  reasons = [
    f"{verb} {format_names(sorted(names), _LISTED)}"
    for verb, names in (
      ("it lacks", theirs.keys() - ours.keys() - their_head),
      ("it also has", ours.keys() - theirs.keys() - our_head),
    )
    if names
  ]
  if reasons:
    return " and ".join(reasons)
  if other := next((name for name in ours if name in theirs and ours[name] != theirs[name]), None):
    return f"{format_names([other])} has the shape {ours[other]} instead of {theirs[other]}"
  return None


def _collect_shapes(tensors: Tensors, layouts: Sequence[Layout]) -> tuple[dict[str, tuple[int, ...]], set[str]]:
  """Returns ({name: shape} of the tensors that have a row, names of the head)."""
  try:
    named = layouts[0].canonical(tensors, {})
  except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError):  # incomplete tensors
    named = tensors
  result, head = {}, set()
  for layout in layouts:
    pattern = row_names.compile_pattern(layout)
    for name, tensor in named.items():
      if row := row_names.find_row(layout, pattern, name):
        result[name] = tuple(tensor.shape)
        if row.paths[0].partition("/")[0] in ("head", "head_distillation"):
          head.add(name)
  return result, head
