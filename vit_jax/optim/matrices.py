"""The Muon rule: orthogonalised momentum for the matrices of attention and MLPs, and Adam for all other parameters."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from vit_jax import trees
from vit_jax.schema import ConfigError, Count, Momentum, Positive
from vit_jax.shapes import Array, Float, Tensor

Params = dict[str, Any]

# Patterns of kernels that are matrices, with their numbers of input and output axes. Axes before those are layers.
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
) -> optax.GradientTransformation:
  """Returns the Muon rule (Jordan et al. 2024) for kernels of attention and MLPs, with Adam for other parameters.

  A matrix update is Nesterov momentum after `iterations` Newton-Schulz iterations. All heads of a layer form one
  matrix. The update is multiplied by 0.2 sqrt(max(inputs, outputs)), so that it has the size of Adam's updates and both
  rules can use the same learning rate (Liu et al. 2025).

  Args:
    momentum: decay rate of the momentum of matrices.
    iterations: number of Newton-Schulz iterations.
    b1: decay rate of Adam's first moment.
    b2: decay rate of Adam's second moment.
    eps: added to the root of Adam's second moment.
    mu_dtype: type in which the momentum and Adam's first moment are stored.
    dtype: type to which matrix updates are rounded, as in the original code. Devices exchange updates in this type.
  """

  def labels(params: Params) -> dict[str, str]:
    return trees.map_named(lambda path, _: "adam" if count_axes(path) is None else "matrix", params)

  matrix = optax.chain(optax.trace(momentum, True, mu_dtype), _orthogonalise(iterations, dtype))
  return optax.partition({"matrix": matrix, "adam": optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)}, labels)


def check_matrices(paths: Iterable[str]) -> None:
  """Checks that some of a model's parameters are matrices.

  Args:
    paths: all parameter paths of the model.

  Raises:
    ConfigError: if none of the paths is a matrix of attention or of an MLP.
  """
  if not any(map(count_axes, paths)):
    raise ConfigError("this model has no attention or MLP matrices, which 'muon' needs. Use 'adamw'", "name")


def count_axes(path: str) -> tuple[int, int] | None:
  """Returns the numbers of input axes and of output axes of a kernel, or None for a parameter that Adam updates.

  Args:
    path: whole path of the parameter.
  """
  first = trees.find_first_match([pattern for pattern, _ in MATRICES], path)
  return None if first is None else MATRICES[first][1]


def _apply_unsharded(function: Callable[..., jax.Array], stacks: Sequence[jax.Array]) -> jax.Array:
  return function(jnp.concatenate(stacks))


def _orthogonalise(iterations: int, dtype: str) -> optax.GradientTransformationExtraArgs:
  """Makes updates nearly orthogonal. Matrices of one shape form one stack.

  `shard_rows` divides the stack among the devices. The devices then share the work, and no matrix is sent during its
  iterations.
  """
  newton_schulz = contrib.scale_by_muon(
    ns_steps=iterations, beta=0.0, nesterov=False, weight_dimension_numbers=contrib.MuonDimensionNumbers(1, 2)
  )  # without momentum, which `muon` applies before

  def orthogonal(stack: Float[Tensor, "N R C"]) -> Float[Array, "N R C"]:
    result, _ = newton_schulz.update(stack, newton_schulz.init(stack))
    return (0.2 * math.sqrt(stack.shape[2]) * result).astype(dtype)  # the size of Adam's updates

  def update(
    updates: Params,
    state: optax.OptState,
    params: Params | None = None,
    *,
    shard_rows: Callable[[Callable[..., jax.Array], Sequence[jax.Array]], jax.Array] = _apply_unsharded,
    **_: object,
  ) -> tuple[Params, optax.OptState]:
    kernels: dict[str, jax.Array] = {}
    trees.map_named(kernels.setdefault, updates)
    stacks: dict[tuple[int, ...], dict[str, jax.Array]] = {}
    for path, kernel in kernels.items():
      matrices = _to_matrices(path, kernel)
      stacks.setdefault(matrices.shape[1:], {})[path] = matrices
    made = {}
    for parts in stacks.values():
      result, first = shard_rows(orthogonal, list(parts.values())), 0
      for path, matrices in parts.items():
        whole = _to_kernel(path, result[first : first + len(matrices)], kernels[path].shape)
        made[path] = whole.astype(kernels[path].dtype)
        first += len(matrices)
    return trees.map_named(lambda path, _: made[path], updates), state

  return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _to_matrices(path: str, kernel: Float[Array, "..."]) -> Float[Array, "N R C"]:
  """Returns a kernel, or a stack of kernels, as matrices that have at least as many columns as rows."""
  axes = count_axes(path)
  assert axes is not None, path
  inputs, outputs = axes
  first, middle = kernel.ndim - inputs - outputs, kernel.ndim - outputs
  flat = kernel.reshape(-1, math.prod(kernel.shape[first:middle]), math.prod(kernel.shape[middle:]))
  return flat if flat.shape[1] <= flat.shape[2] else flat.swapaxes(1, 2)


def _to_kernel(path: str, matrices: Float[Array, "N R C"], shape: tuple[int, ...]) -> Float[Array, "..."]:
  """Inverts `_to_matrices`."""
  axes = count_axes(path)
  assert axes is not None, path
  outputs = math.prod(shape[-axes[1] :])
  return (matrices if matrices.shape[2] == outputs else matrices.swapaxes(1, 2)).reshape(shape)
