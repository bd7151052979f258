"""Conversion of position tables between two forms of the same model.

A table has rows for the tokens in front of the patches, or rows for the patches only.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.importers.hints import Hints
from vit_jax.models import Description

TABLE = "position/table"

Stored = TypeVar("Stored", bound=np.ndarray | Tensor)


def convert_position(
  arrays: Mapping[str, Stored], description: Description, position: str | None
) -> tuple[Mapping[str, Stored | np.ndarray], Description]:
  """Returns a model with its position table in another form, without changing its outputs.

  The form "learned" has rows for class token, distillation token and patches. The form "learned_patches" has rows for
  patches only. If a token loses its row, the row is added to the value of the token, so that the blocks receive the
  same input.

  Args:
    arrays: parameters by path.
    description: the model of the parameters.
    position: "learned" or "learned_patches". None keeps the form.

  Returns:
    The parameters and the description. Both are unchanged if the model has neither form.
  """
  changed = replace_position(description, position)
  if changed == description or TABLE not in arrays:
    return arrays, description
  tokens = [token for token in description.published.order.positioned if token in arrays]
  table = np.asarray(arrays[TABLE])
  if position == "learned":
    return {**arrays, TABLE: np.pad(table, ((len(tokens), 0), (0, 0)))}, changed
  folded = {
    token: np.asarray(arrays[token]) + row if np.any(row) else arrays[token]
    for token, row in zip(tokens, table, strict=False)
  }
  return {**arrays, **folded, TABLE: table[len(tokens) :]}, changed


def replace_position(description: Description, position: str | None) -> Description:
  """Returns the description of the model that `convert_position` returns.

  Args:
    description: the model.
    position: "learned" or "learned_patches". None keeps the form.
  """
  other = {"learned": "learned_patches", "learned_patches": "learned"}.get(position or "")
  if other is None or description.settings().get("position") != other:
    return description
  return description.change({"position": position})


def add_resampling(description: Description, candidate: Any, hints: Hints, header: Description | None) -> Description:
  """Returns a description with the publisher's rule for resampling position tables.

  Args:
    description: the model.
    candidate: the layout of the file.
    hints: the hints of the file. If "resampling" is present, this rule is used.
    header: the model in the header of the file, or None. If there is a header, its rule is kept.
  """
  rule = hints.get("resampling")
  bound = description.settings()
  with_registers = bound.get("registers") and bound["position"] != "learned_all"  # it counts DeiT's token as a register
  if rule is None and not header and (rule := candidate.resampling) and with_registers:
    # the rule of DINOv2 with registers, both in the authors' code and in Transformers
    rule = {"dinov2": "bicubic_antialiased", "hf": "bicubic_antialiased"}.get(candidate.name, rule)
  if rule is None or bound.get("resampling", rule) == rule:
    return description
  return description.change({"resampling": rule})
