"""FLOPs of a function, counted in its jaxpr.

One definition holds everywhere: a multiply-accumulate is two FLOPs, and "GFLOP an image" is the forward pass of one
image. Other quantities are named: a train step has forward and backward pass, three times as much (`TRAINING`).
"""

import math
from collections.abc import Callable

import jax
import jax.extend.core

TRAINING = 3  # forward and backward pass, in forward passes


def in_words(forward: int) -> str:
  """Returns the FLOPs of a forward pass as text: "35.2 GFLOP an image (forward pass)"."""
  return f"{forward / 1e9:.3g} GFLOP an image (forward pass)"


def count(function: Callable, *args: object) -> int:
  """Counts the FLOPs of the matrix products and convolutions of a function.

  XLA's own count takes the body of a loop once, and counts recomputation. This is the model's arithmetic, for MFU.

  Args:
    function: traced, not computed.
    *args: its arguments, or their shapes.

  Returns:
    FLOPs, two for each multiply-accumulate. Loops count each turn.
  """
  return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr):
  """Returns the FLOPs of a jaxpr and of all that it calls."""
  total = 0
  for equation in jaxpr.eqns:
    turns = equation.params["length"] if equation.primitive.name == "scan" else 1
    inner = [_count(part) for part in jax.extend.core.jaxprs_in_params(equation.params)]
    one_of = equation.primitive.name == "cond"  # also what chooses a formulation by platform
    total += turns * (max(inner) if one_of else sum(inner))
    match equation.primitive.name:
      case "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
      case "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
        per_output = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
        total += 2 * math.prod(equation.outvars[0].aval.shape) * per_output
  return total
