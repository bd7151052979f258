"""Operations on vectors along the last axis of an array."""

import jax.numpy as jnp

from vit_jax.shapes import Array, Float, Tensor


def scale_to_unit_length(x: Float[Tensor, "*B D"], eps: float = 1e-12) -> Float[Array, "*B D"]:
  """Divides each vector by its length, or by `eps` if the vector is shorter, as `normalize` of PyTorch.

  Args:
    x: vectors (*B, D).
    eps: smallest divisor. Its square must be a normal float32 number.

  Returns:
    Vectors in float32. A vector of zeros stays zero and has a finite gradient.
  """
  x = jnp.asarray(x, jnp.float32)
  return x / jnp.sqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), eps**2))
