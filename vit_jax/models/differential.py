"""Differential attention (Ye et al. 2024, arXiv:2410.05258): the difference of two attention maps in each head."""

import dataclasses

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models.attention import AttentionParts, Inputs, Softmax
from vit_jax.models.layers import RMSNorm
from vit_jax.models.parameters import Keys, Parameter
from vit_jax.schema import format_amount
from vit_jax.shapes import Array, Float, PRNGKey, Scalar, Tensor


@dataclasses.dataclass(frozen=True)
class Differential:
  """A kernel in which both halves of a head attend separately, and `Difference` combines their contexts.

  The attention owns the module `difference`, and needs the input `number`: the number of the block, starting at 0.

  Args:
    size: number of channels of a head, which must be even.
    dropout: dropout rate of the attention weights.
    dtype: type of the result.
  """

  size: int
  _: dataclasses.KW_ONLY
  dropout: float = 0.0
  dtype: DTypeLike

  def init(self, rngs: Keys) -> dict[str, nnx.Module | Parameter]:
    """Returns the module that combines the halves.

    Args:
      rngs: source of keys.
    """
    return {"difference": Difference(self.size, dtype=self.dtype, rngs=rngs)}

  def __call__(
    self,
    attention: AttentionParts,
    x: Float[Tensor, "B M D"],
    memory: Float[Tensor, "B N D"],
    key: PRNGKey | None,
    bias: Float[Tensor, "*#B #H #M #N"] | None,
    inputs: Inputs,
  ) -> Float[Array, "B M H K"]:
    """Computes the contexts. The arguments are those of `AttentionParts.compute`."""
    query, keys, values = attention.project(x, memory, key)
    query, keys = (rearrange(x, "b n h (two k) -> b n (h two) k", two=2) for x in (query, keys))
    values = jnp.repeat(values, 2, axis=2)
    context = Softmax(self.dropout).attend(attention, query, keys, values, key, bias, inputs)
    return attention.difference(context, inputs["number"])


class Difference(nnx.Module):
  """The combination of the contexts of both halves of each head: norm(first - lambda second) (1 - start).

  lambda = exp(q1 k1) - exp(q2 k2) + start with learned vectors q and k. In block l, counted from 0, start = 0.8 - 0.6
  exp(-0.3 l).

  Args:
    size: number of channels of a head, which must be even.
    dtype: type of the result.
    rngs: source of keys.
  """

  def __init__(self, size: int, *, dtype: DTypeLike, rngs: Keys) -> None:
    if size % 2:
      raise schema.ConfigError(
        f"model.attention: 'differential' halves heads, which have {format_amount(size, 'channel')}. "
        "Allowed: an even number of channels"
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
