"""Tensors of a file that do not affect any output of the model. They are ignored, and a note lists them."""

import re
from collections.abc import Mapping, Sequence

from vit_jax.schema.errors import format_names

TRAINING = "used only in training"
# Mask token, which replaces hidden patches during training in MAE, SimMIM, BEiT, DINOv2, DINOv3 and iBOT.
_MASKED = r"(.*[./])?(mask_token|masked_embed)"
_LISTED = 12  # maximum number of names in a note


def find_unused(names: Sequence[str], untaken: str, more: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
  """Returns the names of tensors to ignore, by reason.

  Args:
    names: names of the tensors in a file.
    untaken: pattern of the layout for names that are used only in training, in addition to mask tokens.
    more: other names to ignore, by reason.
  """
  pattern = re.compile(f"{_MASKED}|{untaken}")
  found = {TRAINING: list(filter(pattern.fullmatch, names)), **{reason: list(group) for reason, group in more.items()}}
  return {reason: group for reason, group in found.items() if group}


def describe_unused(found: Mapping[str, Sequence[str]]) -> list[str]:
  """Returns one note for each reason that `find_unused` returned."""
  return [
    f"{'' if reason == TRAINING else 'left out, '}{reason}: {format_names(names, _LISTED)}"
    for reason, names in found.items()
  ]
