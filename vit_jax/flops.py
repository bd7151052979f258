"""FLOPs of a function, counted in its jaxpr."""

import math

import jax
import jax.extend.core


def count(function, *args) -> int:
  """FLOPs of the matrix products and convolutions of a function, from its jaxpr; loops count each turn.

  XLA's own count takes a loop's body once, and counts recomputation: this is the model's arithmetic, for MFU.
  """
  return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr):
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
