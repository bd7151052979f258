"""FLOP counts of functions, computed from their jaxprs.

A multiply-accumulate always counts as two FLOPs. "GFLOP per image" means the forward pass of one image. A train step
has a forward and a backward pass, which take three times as many FLOPs (`TRAINING`).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core

TRAINING = 3  # cost of a forward and a backward pass, in forward passes


def format_flops(forward: int) -> str:
  """Formats the FLOPs of a forward pass: "35.2 GFLOP per image (forward pass)"."""
  return f"{forward / 1e9:.3g} GFLOP per image (forward pass)"


def count_flops(function: Callable[..., object], *args: object, dtype: str | None = None) -> int:
  """Counts the FLOPs of the matrix products and convolutions of a function.

  The count is the arithmetic of the model, as required for MFU. XLA's own count differs: it counts the body of a loop
  once and includes recomputation.

  Args:
    function: function to trace. It is not executed.
    *args: its arguments, or their shapes.
    dtype: type of the operands of the products to count. None counts all products.

  Returns:
    The number of FLOPs, two for each multiply-accumulate. The body of a loop counts once per iteration.

  Example:
    import jax.numpy as jnp
    from vit_jax.models import flops

    flops.count_flops(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 4)))  # 48
  """
  return _count_jaxpr(jax.make_jaxpr(function)(*args).jaxpr, dtype)


def _count_jaxpr(jaxpr: Any, dtype: str | None) -> int:
  """Returns the FLOPs of a jaxpr and of all jaxprs that it calls, of products with operands of a type."""
  total = 0
  for equation in jaxpr.eqns:
    turns = equation.params["length"] if equation.primitive.name == "scan" else 1
    inner = [_count_jaxpr(part, dtype) for part in jax.extend.core.jaxprs_in_params(equation.params)]
    one_of = equation.primitive.name == "cond"  # conditionals, including the choice of a formulation by platform
    total += turns * (max(inner) if one_of else sum(inner))
    if dtype and equation.invars and getattr(equation.invars[0].aval, "dtype", None) != dtype:
      continue
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
