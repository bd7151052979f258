"""Tables of positions: with a row for the tokens in front of the patches, or for the patches alone; the same model."""

import numpy as np

from vit_jax.importers.tensors import Tensors
from vit_jax.models import Description
from vit_jax.schema import Choice

TABLE = "position/table"


def placed(arrays: Tensors, description: Description, position: str | None) -> tuple[Tensors, Description]:
  """The same model with its table of positions for class and distillation token and patches ("learned"), or for patches
  alone ("learned_patches"), where it has the other of these; None leaves it.

  A token that loses its row has it added, which gives the blocks the same input.
  """
  changed = with_position(description, position)
  if changed == description or TABLE not in arrays:
    return arrays, description
  tokens = [token for token in description.published.order.positioned if token in arrays]
  table = arrays[TABLE]
  if position == "learned":
    return {**arrays, TABLE: np.pad(table, ((len(tokens), 0), (0, 0)))}, changed
  folded = {
    token: arrays[token] + row if np.any(row) else arrays[token] for token, row in zip(tokens, table, strict=False)
  }
  return {**arrays, **folded, TABLE: table[len(tokens) :]}, changed


def with_position(description: Description, position: str | None) -> Description:
  """The description of what `placed` gives."""
  other = {"learned": "learned_patches", "learned_patches": "learned"}.get(position)
  if other is None or description.arguments().get("position") != other:
    return description
  return description.replaced(model=Choice(description.model.name, {**description.model.args, "position": position}))
