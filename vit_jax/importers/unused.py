"""Tensors of a file on which no output of the model depends: they are left out, and a note lists them."""

import re
from collections.abc import Mapping, Sequence

from vit_jax.schema.errors import some

TRAINING = "used only in training"
# Stands for hidden patches while a model is trained: in MAE, SimMIM, BEiT, DINOv2, DINOv3 and iBOT.
_MASKED = r"(.*[./])?(mask_token|masked_embed)"
_LISTED = 12  # names that a note has


def find(names: Sequence[str], untaken: str, more: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
  """Returns the names of tensors to leave out, by reason.

  Args:
    names: of the tensors in a file.
    untaken: pattern of a layout for names that are used only in training, in addition to those of mask tokens.
    more: other names to leave out, by reason.
  """
  pattern = re.compile(f"{_MASKED}|{untaken}")
  found = {TRAINING: list(filter(pattern.fullmatch, names)), **{reason: list(group) for reason, group in more.items()}}
  return {reason: group for reason, group in found.items() if group}


def notes(found: Mapping[str, Sequence[str]]) -> list[str]:
  """Returns a line for each reason of `find`."""
  return [f"left out, {reason}: {some(names, _LISTED)}" for reason, names in found.items()]
