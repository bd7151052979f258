"""Resizing of patch features to another grid, for the teacher of Gram anchoring."""

import jax.numpy as jnp
from einops import rearrange

from vit_jax.models import interpolation
from vit_jax.shapes import Array, Float, Tensor


def resize_patches(x: Float[Tensor, "*B N D"], old: tuple[int, int], new: tuple[int, int]) -> Float[Array, "*B M D"]:
  """Resizes patch features as PyTorch's `interpolate(mode="bicubic")`: a = -0.75, without antialiasing.

  `jax.image.resize` has a = -0.5, and antialiasing if the grid shrinks.

  Args:
    x: patch features (*B, N, D), row by row.
    old: (rows, columns) of `x`.
    new: (rows, columns) of the result.

  Returns:
    Features in float32, (*B, M, D).
  """
  grid = rearrange(jnp.asarray(x, jnp.float32), "... (h w) d -> ... h w d", h=old[0], w=old[1])
  if old != new:
    down, right = (
      jnp.asarray(interpolation.compute_weights(a, b, "bicubic"), jnp.float32) for a, b in zip(old, new, strict=True)
    )
    grid = jnp.einsum("ra,...abd->...rbd", down, grid, precision="highest")
    grid = jnp.einsum("sb,...rbd->...rsd", right, grid, precision="highest")
  return rearrange(grid, "... h w d -> ... (h w) d")
