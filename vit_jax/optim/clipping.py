"""Clipping of gradients by the norm of each tensor or of each module, as PyTorch computes it."""

from collections.abc import Collection
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from vit_jax import trees

EPS = 1e-6  # PyTorch adds it to the norm


def clip_norms(limit: float, of: Literal["tensor", "module"], stacked: Collection[str]) -> optax.GradientTransformation:
  """Returns a transformation that multiplies gradients by min(1, limit / (norm + 1e-6)).

  Args:
    limit: largest norm.
    of: arrays that share a norm. "tensor" clips each parameter (DINO, iBOT). The code of DINO and iBOT stores queries,
      keys and values in one tensor. Here each of these three is clipped separately. "module" clips the model and each
      module of the task (DINOv2).
    stacked: paths of parameters with one layer per row. Each layer is a tensor.
  """
  group = {"tensor": lambda path: path, "module": find_module}[of]

  def sum_squares(path: str, gradient: jax.Array) -> jax.Array:
    first = 1 if of == "tensor" and path in stacked else 0
    axes = tuple(range(first, gradient.ndim))
    return jnp.square(gradient.astype(jnp.float32)).sum(axes, keepdims=of == "tensor")

  def clip(gradients: optax.Updates, _: object) -> optax.Updates:
    squares: dict[str, jax.Array] = {}
    for path, gradient in trees.flatten(gradients).items():
      own = sum_squares(path, gradient)
      squares[group(path)] = squares[group(path)] + own if group(path) in squares else own
    factors = {name: jnp.minimum(1, limit / (jnp.sqrt(square) + EPS)) for name, square in squares.items()}
    return trees.map_named(lambda path, gradient: gradient * factors[group(path)].astype(gradient.dtype), gradients)

  return optax.stateless(clip)


def find_module(path: str) -> str:
  """Returns the module of a parameter: "task/NAME" for the parameters below it, otherwise "model".

  Single parameters of a task, such as `task/mask_token`, belong to the model, as in DINOv2.

  Args:
    path: path of the parameter.
  """
  parts = path.split("/")
  return "/".join(parts[:2]) if parts[0] == "task" and len(parts) > 2 else "model"
