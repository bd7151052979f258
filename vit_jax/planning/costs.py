"""Divides the time of a step by parts of the code and by kinds of operations."""

import collections
import re
from collections.abc import Callable, Iterable, Mapping

from vit_jax.planning import hlo
from vit_jax.tasks import step_parts

OPTIMIZER = "optimizer and average"
_KINDS = {"product": "matrix products", "copy": "copies", "other": "other"}
_SCOPE = re.compile(r"\b(attention|normalisation)\b")  # named scopes of the models


def divide_step(
  operations: Iterable[hlo.Operation],
  kernel_cycles: Mapping[str, float],
  clock: float,
  links: float,
  find: Callable[[hlo.Operation], str],
) -> dict[str, float]:
  """Returns the seconds of a step by the names that `find` gives to its operations, the largest first.

  Args:
    operations: operations of a program.
    kernel_cycles: cycles of one call of each Pallas kernel.
    clock: cycles per second.
    links: seconds of all collectives. The compiler gives no cycles for them.
    find: `find_part` or `find_kind`.
  """
  sums: dict[str, float] = collections.defaultdict(float)
  for operation in operations:
    in_kernel = operation.calls * kernel_cycles.get(operation.kernel, 0) if operation.kernel else 0
    sums[find(operation)] += (operation.cycles + in_kernel) / clock
  if links:
    sums["collectives"] += links
  return dict(sorted(sums.items(), key=lambda item: -item[1]))


def find_part(operation: hlo.Operation) -> str:
  """Returns the part of the code to which an operation belongs, as named by `step_parts.name_part`.

  A part contains the gradients of its operations. The compiler may fuse operations of two parts. A fusion counts
  towards the part in its name, see `hlo.Operation`. Operations whose names contain no part, such as copies, count as
  "other".
  """
  return step_parts.find_part(operation.name) or "other"


def find_kind(operation: hlo.Operation) -> str:
  """Returns the kind of an operation, forward or backward.

  Attention is the product of queries and keys, the softmax, and the average of the values. All operations of the
  optimizer and of the moving average are one kind. Outside of both, a fused operation that contains a matrix product
  counts as a matrix product, even if it also contains a normalisation or an activation. "other" contains activations,
  residual additions, losses and augmentations.
  """
  if step_parts.find_part(operation.name) == OPTIMIZER:
    return OPTIMIZER
  scopes = _SCOPE.findall(operation.name)
  if scopes and scopes[-1] == "attention":
    return "attention"
  if operation.kind == "product":
    return _KINDS["product"]
  return scopes[-1] if scopes else _KINDS[operation.kind]
