"""A table of a model's parameters in about a dozen lines. Each line is a module, and similar layers share a line."""

import math
import re
from collections.abc import Callable, Mapping

import jax

from vit_jax.shapes import Shaped, Tensor

LINES = 12  # largest number of groups, unless even the coarsest grouping has more


Shapes = Mapping[str, Shaped[Tensor, "..."] | jax.ShapeDtypeStruct]  # {path: shape} of parameters


def format_table(shapes: Shapes) -> str:
  """Formats one line for each group of parameters: number of tensors, number of values and share of all values.

  Args:
    shapes: {path: shape} of the parameters.
  """
  for name_of in _NAMES:
    groups = group_sizes(shapes, name_of)
    if len(groups) <= LINES:
      break
  total = sum(size for group in groups.values() for size in group) or 1
  rows = [("parameters of", "tensors", "numbers", "share")]
  rows += [(name, f"{len(group):,}", f"{sum(group):,}", f"{sum(group) / total:.1%}") for name, group in groups.items()]
  first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
  return "\n".join(
    f"  {name:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    for name, *cells in rows
  )


def group_sizes(shapes: Shapes, name_of: Callable[[list[str]], str]) -> dict[str, list[int]]:
  """Returns {group: sizes of its tensors}. A group's name contains the range of its layers: blocks/0-11/mlp.

  Args:
    shapes: {path: shape} of the parameters.
    name_of: function from the components of a path to the name of its group, with # for numbers.
  """
  members: dict[str, list[str]] = {}
  for path in shapes:
    members.setdefault(name_of(path.split("/")), []).append(path)
  return {
    _insert_numbers(name, paths): [math.prod(shapes[path].shape) for path in paths] for name, paths in members.items()
  }


def _name_modules(deep: int) -> Callable[[list[str]], str]:
  """Returns a function from a path to the name of its group: the first `deep` modules, with # for layer numbers."""

  def name(parts: list[str]) -> str:
    merged = ["#" if part.isdigit() else part for part in (parts[:-1] or parts)]
    ends = [i for i, part in enumerate(merged) if part != "#"]
    return "/".join(merged[: ends[deep] if len(ends) > deep else None])

  return name


def _name_stage(parts: list[str]) -> str:
  """Returns the first module of a path, with its number if it has one."""
  return "/".join(parts[: 2 if len(parts) > 2 and parts[1].isdigit() else 1])


_NAMES = (_name_modules(3), _name_modules(2), _name_stage, _name_modules(1))  # from the finest to the coarsest


def _insert_numbers(name: str, paths: list[str]) -> str:
  """Replaces each # in a name by the range of numbers in the paths."""
  for i in [i for i, part in enumerate(name.split("/")) if part == "#"]:
    numbers = sorted({int(path.split("/")[i]) for path in paths})
    span = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    name = re.sub("#", span, name, count=1)
  return name
