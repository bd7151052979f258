"""The parameters of a model in a dozen lines: by module, layers that are alike on one line."""

import math
import re
from collections.abc import Callable, Mapping

import jax

from vit_jax.shapes import Shaped, Tensor

LINES = 12  # of modules, at most; but a model may have more of them side by side


def table(shapes: Mapping[str, Shaped[Tensor, "..."] | jax.ShapeDtypeStruct]) -> str:
  """A line for each group of parameters, {path: shape}: how many tensors and numbers it has, and its share of all."""
  for name_of in _NAMES:
    groups = sizes(shapes, name_of)
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


def sizes(shapes: Mapping[str, jax.ShapeDtypeStruct], name_of: Callable) -> dict[str, list[int]]:
  """{group: sizes of its tensors}, with the numbers of its layers, as blocks/0-11/mlp; `name_of` names a path's."""
  members: dict[str, list[str]] = {}
  for path in shapes:
    members.setdefault(name_of(path.split("/")), []).append(path)
  return {_numbered(name, paths): [math.prod(shapes[path].shape) for path in paths] for name, paths in members.items()}


def _modules(deep):
  """What names the group of a path: its first so many modules, every layer alike."""

  def name(parts):
    merged = ["#" if part.isdigit() else part for part in (parts[:-1] or parts)]
    ends = [i for i, part in enumerate(merged) if part != "#"]
    return "/".join(merged[: ends[deep] if len(ends) > deep else None])

  return name


def _stages(parts):
  """The first module and its number, if it has one."""
  return "/".join(parts[: 2 if len(parts) > 2 and parts[1].isdigit() else 1])


_NAMES = (_modules(3), _modules(2), _stages, _modules(1))  # from the finest to the coarsest


def _numbered(name, paths):
  """The name with the numbers that its paths have, for each #."""
  for i in [i for i, part in enumerate(name.split("/")) if part == "#"]:
    numbers = sorted({int(path.split("/")[i]) for path in paths})
    span = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    name = re.sub("#", span, name, count=1)
  return name
