"""Selection of the published size that is nearest to the size of a file."""

from collections.abc import Mapping
from typing import Any


def find_nearest_size(
  sizes: Mapping[Any, tuple[object, ...]], values: tuple[Any, ...], names: tuple[str, ...]
) -> tuple[Any, dict[str, Any]]:
  """Returns the published size that equals the values, or else the nearest published size.

  Args:
    sizes: published sizes by their names, such as (width, depth, heads, hidden).
    values: the values of a file, in the same order.
    names: names of the values.

  Returns:
    The name of the size, and the values {name: value} that differ from this size.
  """
  distance = {key: sum(a != b for a, b in zip(row, values, strict=True)) for key, row in sizes.items()}
  key = min(sizes, key=lambda k: (distance[k], abs(sizes[k][0] - values[0])))
  return key, {name: b for name, a, b in zip(names, sizes[key], values, strict=True) if a != b}
