"""The names of a layout's rows as one pattern, and checks of tensors with this pattern."""

import re

from vit_jax.importers.formats.lazy_tensors import Tensors
from vit_jax.importers.layout import Layout, TensorRow, parse_groups
from vit_jax.schema import ConfigError, format_amount
from vit_jax.schema.errors import format_names


def compile_pattern(layout: Layout) -> re.Pattern[str]:
  """Returns the pattern of all names of a layout, with one group per row. Placeholders such as {l} match numbers."""
  rows = (re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(row.theirs)) for row in layout.rows)
  return re.compile("|".join(f"({row})" for row in rows))


def find_row(layout: Layout, pattern: re.Pattern[str], name: str) -> TensorRow | None:
  """Returns the row of a name in the pattern of `compile_pattern`, or None."""
  match = pattern.fullmatch(name)
  return layout.rows[match.lastindex - 1] if match and match.lastindex else None


def check_dimensions(layout: Layout, tensors: Tensors) -> None:
  """Checks the number of dimensions of all tensors that have a row. Their sizes are not checked.

  Args:
    layout: the layout.
    tensors: tensors by the names of the layout.

  Raises:
    ConfigError: for a tensor with more or fewer dimensions than its row.
  """
  named = compile_pattern(layout)
  for name, tensor in tensors.items():
    if row := find_row(layout, named, name):
      axes = parse_groups(row.pattern.split("->")[0])
      if len(axes) != len(tensor.shape):
        expected = ", ".join(" x ".join(group) for group in axes)
        raise ConfigError(
          f"tensor {format_names([name])} has the shape {tuple(tensor.shape)}; files of {layout.name} have "
          f"{format_amount(len(axes), 'dimension')} there: ({expected}). Reshape it, and save the file again"
        )
