"""Tables of positions: with a row for the tokens in front of the patches, or for the patches alone; the same model."""

from collections.abc import Mapping
from typing import Any

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


def with_resampling(
  description: Description, candidate: Any, hints: Mapping[str, Any], header: Description | None
) -> Description:
  """Returns the description with the publisher's rule for position tables, unless the file's header has one."""
  rule = hints.get("resampling")
  bound = description.arguments()
  with_registers = bound.get("registers") and bound["position"] != "learned_all"  # which has DeiT's token as a register
  if rule is None and not header and (rule := candidate.resampling) and with_registers:
    # DINOv2 with registers, by its authors and in Transformers.
    rule = {"dinov2": "bicubic_antialiased", "hf": "bicubic_antialiased"}.get(candidate.name, rule)
  if rule is None or bound.get("resampling", rule) == rule:
    return description
  args = {**description.model.args, "resampling": rule}
  return description.replaced(model=Choice(description.model.name, args))
