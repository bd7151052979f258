"""Names of the parts of a step, such as the student and the teacher. `plan` reports the time of each part."""

import re
from contextlib import AbstractContextManager

import jax

_PART = re.compile(r"\bpart_(\w+)")


def name_part(name: str) -> AbstractContextManager[None]:
  """Names the operations inside a `with` block. `plan` reports the time of each named part.

  The gradients of these operations have the same name. In nested blocks, the name of the inner block is used.

  Args:
    name: name of the part, as in "optimizer and average".

  Returns:
    A context manager.

  Raises:
    ValueError: if the name contains other characters than small letters, digits and spaces.

  Example:
    from vit_jax.tasks import step_parts

    with step_parts.name_part("teacher"):
      pass  # outputs of the teacher
  """
  if not re.fullmatch("[a-z0-9 ]+", name):
    raise ValueError(f"name_part: expected small letters, digits and spaces, got {name!r}. Use a name like 'decoder 1'")
  return jax.named_scope("part_" + name.replace(" ", "_"))


def find_part(operation: str) -> str | None:
  """Returns the name of the part of a step to which an operation belongs, or None.

  Args:
    operation: name of an operation in a compiled program, such as "jit(step)/transpose(jvp(part_student))/add".
  """
  found = _PART.findall(operation)
  return found[-1].replace("_", " ") if found else None
