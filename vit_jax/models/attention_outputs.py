"""Parts of attention that change the contexts before the last projection, by name: the choices of `attention.output`.

An entry of `OUTPUTS` is created from (width, heads, norm, dtype) and the arguments of the choice. It implements
`attention.OutputPart`. If it has parameters that no other attention has, it also has a sharding table `SHARDING`.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models.attention import AttentionParts
from vit_jax.models.gated import Gate
from vit_jax.models.layers import Norm
from vit_jax.models.parameters import Keys, Parameter
from vit_jax.shapes import Array, Float, Tensor


@dataclasses.dataclass(frozen=True)
class PlainOutput:
  """The contexts without a change.

  Args:
    width: width of the tokens.
    heads: number of heads.
    norm: norm of the stream.
    dtype: type of the computation.
  """

  width: int
  heads: int
  norm: Norm
  dtype: DTypeLike

  def init(self, rngs: Keys) -> dict[str, nnx.Module | Parameter]:
    """Returns no parameters."""
    return {}

  def __call__(
    self, attention: AttentionParts, context: Float[Tensor, "B M D"], x: Float[Tensor, "B M D"]
  ) -> Float[Array, "B M D"]:
    """Returns the contexts."""
    return jnp.asarray(context)


@dataclasses.dataclass(frozen=True)
class NormedOutput(PlainOutput):
  """Normalised contexts, with a norm of the same type as the norms of the stream (Fang et al. 2023, EVA-02's CLIP)."""

  def init(self, rngs: Keys) -> dict[str, nnx.Module | Parameter]:
    """Returns the norm.

    Args:
      rngs: source of keys, which is not used.
    """
    return {"context_norm": self.norm(self.width)}

  def __call__(
    self, attention: AttentionParts, context: Float[Tensor, "B M D"], x: Float[Tensor, "B M D"]
  ) -> Float[Array, "B M D"]:
    """Returns the normalised contexts.

    Args:
      attention: the attention that owns the norm.
      context: contexts, (B, M, D).
      x: tokens of the queries, which are not used.
    """
    return attention.context_norm(context)


OUTPUTS = schema.Variants(plain=PlainOutput, normed=NormedOutput, gated=Gate)
SHARDING = tuple(rule for output in OUTPUTS.values() for rule in getattr(output, "SHARDING", ()))
