"""Names of the rows of a layout as one pattern, and checks by it."""

import re

from vit_jax.importers.layout import Layout, groups
from vit_jax.importers.tensors import Tensors
from vit_jax.schema import ConfigError, amount
from vit_jax.schema.errors import some


def pattern(layout: Layout) -> re.Pattern:
  """The pattern of all names of a layout, with a group for each row; placeholders such as {l} match numbers."""
  rows = (re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(row.theirs)) for row in layout.rows)
  return re.compile("|".join(f"({row})" for row in rows))


def check_dimensions(layout: Layout, tensors: Tensors) -> None:
  """Checks the number of dimensions of every tensor that has a row, before sizes are looked at.

  Raises:
    ConfigError: for a tensor with more or fewer dimensions than its row.
  """
  named = pattern(layout)
  for name, tensor in tensors.items():
    if match := named.fullmatch(name):
      axes = groups(layout.rows[match.lastindex - 1].pattern.split("->")[0])
      if len(axes) != len(tensor.shape):
        expected = ", ".join(" x ".join(group) for group in axes)
        raise ConfigError(
          f"tensor {some([name])} has the shape {tuple(tensor.shape)}; files of {layout.name} have "
          f"{amount(len(axes), 'dimension')} there: ({expected}). Reshape it, and save the file again"
        )
