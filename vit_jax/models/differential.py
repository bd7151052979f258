"""Differential attention (Ye et al. 2024, arXiv:2410.05258): the difference of two attention maps in each head."""

import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from vit_jax import schema
from vit_jax.models.layers import RMSNorm
from vit_jax.schema import format_amount
from vit_jax.shapes import Array, Float, Scalar, Tensor


class Difference(nnx.Module):
  """The combination of the contexts of both halves of each head: norm(first - lambda second) (1 - start).

  lambda = exp(q1 k1) - exp(q2 k2) + start with learned vectors q and k. In block l, counted from 0, start = 0.8 - 0.6
  exp(-0.3 l).

  Args:
    size: number of channels of a head, which must be even.
    dtype: type of the result.
    rngs: source of keys.
  """

  def __init__(self, size, *, dtype, rngs):
    if size % 2:
      raise schema.ConfigError(
        f"model.differential: heads have {format_amount(size, 'channel')}. Allowed: an even number of channels"
      )
    draw = nnx.initializers.normal(0.1)
    self.query1, self.key1, self.query2, self.key2 = (
      nnx.Param(draw(rngs.params(), (size // 2,), jnp.float32)) for _ in range(4)
    )
    self.norm = RMSNorm(size, eps=1e-5, dtype=dtype)

  def __call__(self, context: Float[Tensor, "B M HH K"], number: Scalar) -> Float[Array, "B M HH//2 K"]:
    """Combines the contexts of both halves of each head.

    Args:
      context: contexts (B, M, 2 H, K). The two halves of a head follow each other.
      number: number of the block, starting at 0.

    Returns:
      Contexts of the heads, (B, M, H, K).
    """
    start = 0.8 - 0.6 * jnp.exp(-0.3 * jnp.asarray(number, jnp.float32))
    first, second = (
      jnp.exp(jnp.sum(query[...] * key[...])) for query, key in ((self.query1, self.key1), (self.query2, self.key2))
    )
    one, other = rearrange(context, "b m (h two) k -> two b m h k", two=2)
    rest = one - (first - second + start).astype(one.dtype) * other
    return self.norm(rest) * (1 - start).astype(rest.dtype)
