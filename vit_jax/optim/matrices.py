"""Muon: momentum whose matrices are made nearly orthogonal; everything that is no matrix of a block goes by Adam."""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from vit_jax import trees
from vit_jax.schema import ConfigError, Count, Momentum, Positive
from vit_jax.shapes import Array, Float, Tensor

# Kernels that are matrices, and how many of their last axes are inputs and outputs: axes before are stacked layers.
MATRICES = (
  (r".*attention/(query|key|value)/kernel", (1, 2)),  # [D, H, K]
  (r".*attention/out/kernel", (2, 1)),  # [H, K, D]
  (r".*(mlp|tokens)/(gate|up|down)/kernel", (1, 1)),  # [D, F], [F, D]
)


def muon(
  *,
  momentum: Momentum = 0.95,
  iterations: Count = 5,
  b1: Momentum = 0.9,
  b2: Momentum = 0.999,
  eps: Positive = 1e-8,
  mu_dtype: Literal["float32", "bfloat16"] = "float32",
  dtype: Literal["float32", "bfloat16"] = "bfloat16",
):
  """Muon (Jordan et al. 2024) for the kernels of attention and MLPs; `b1`, `b2` and `eps` are Adam's for all others.

  A matrix is Nesterov's momentum after `iterations` of Newton-Schulz, all heads together and each layer by itself,
  times 0.2 sqrt(max(inputs, outputs)): the size of Adam's updates, so that one lr serves both (Liu et al. 2025). It is
  rounded to `dtype`, as the original's is, in which devices send it to each other.
  """

  def labels(params):
    return trees.map_named(lambda path, _: "adam" if axes(path) is None else "matrix", params)

  matrix = optax.chain(optax.trace(momentum, True, mu_dtype), _orthogonal(iterations, dtype))
  return optax.partition({"matrix": matrix, "adam": optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)}, labels)


def check(paths: Iterable[str]) -> None:
  """ConfigError unless some of a model's parameters are matrices."""
  if not any(map(axes, paths)):
    raise ConfigError("this model has no matrices of attention or of MLPs, which 'muon' is for; take 'adamw'", "name")


def axes(path: str) -> tuple[int, int] | None:
  """How many axes of the kernel of this path are inputs and outputs; None where it is no matrix and goes by Adam."""
  first = trees.first_match([pattern for pattern, _ in MATRICES], path)
  return None if first is None else MATRICES[first][1]


def _alone(function, stacks):
  return function(jnp.concatenate(stacks))


def _orthogonal(iterations, dtype):
  """Updates made nearly orthogonal. Matrices of one shape are one stack, of which each device has a part by `spread`.

  So no matrix is sent while it is iterated on, and the devices share the work.
  """
  newton_schulz = contrib.scale_by_muon(
    ns_steps=iterations, beta=0.0, nesterov=False, weight_dimension_numbers=contrib.MuonDimensionNumbers(1, 2)
  )  # without momentum, of which the caller has taken care

  def orthogonal(stack: Float[Tensor, "N R C"]) -> Float[Array, "N R C"]:
    result, _ = newton_schulz.update(stack, newton_schulz.init(stack))
    return (0.2 * math.sqrt(stack.shape[2]) * result).astype(dtype)  # as large as Adam's updates

  def update(updates, state, params=None, *, spread: Callable = _alone, **_):
    kernels: dict[str, jax.Array] = {}
    trees.map_named(kernels.setdefault, updates)
    stacks: dict[tuple[int, int], dict[str, jax.Array]] = {}
    for path, kernel in kernels.items():
      matrices = _matrices(path, kernel)
      stacks.setdefault(matrices.shape[1:], {})[path] = matrices
    made = {}
    for parts in stacks.values():
      result, first = spread(orthogonal, list(parts.values())), 0
      for path, matrices in parts.items():
        whole = _kernel(path, result[first : first + len(matrices)], kernels[path].shape)
        made[path] = whole.astype(kernels[path].dtype)
        first += len(matrices)
    return trees.map_named(lambda path, _: made[path], updates), state

  return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _matrices(path, kernel) -> Float[Array, "N R C"]:
  """A kernel, or a stack of such, as matrices that are no higher than wide."""
  inputs, outputs = axes(path)
  first, middle = kernel.ndim - inputs - outputs, kernel.ndim - outputs
  flat = kernel.reshape(-1, math.prod(kernel.shape[first:middle]), math.prod(kernel.shape[middle:]))
  return flat if flat.shape[1] <= flat.shape[2] else flat.swapaxes(1, 2)


def _kernel(path, matrices: Float[Tensor, "N R C"], shape) -> Float[Array, "..."]:
  """The inverse of `_matrices`."""
  outputs = math.prod(shape[-axes(path)[1] :])
  return (matrices if matrices.shape[2] == outputs else matrices.swapaxes(1, 2)).reshape(shape)
