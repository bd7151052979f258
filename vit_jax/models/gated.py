"""Gated attention (Qiu et al. 2025, "Gated Attention for Large Language Models", arXiv:2505.06708)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax.models.attention import AttentionParts
from vit_jax.models.intermediates import record
from vit_jax.models.layers import Linear, Norm
from vit_jax.models.parameters import Keys, Parameter, ShardingRules
from vit_jax.shapes import Array, Float, Tensor


@dataclasses.dataclass(frozen=True)
class Gate:
  """Contexts multiplied by a sigmoid gate: context * sigmoid(x W).

  The gate is computed from the input of the attention, for each channel of each head. This is the variant G1 of the
  paper, elementwise and specific to heads, which performed best there.

  Args:
    width: width of the tokens.
    heads: number of heads.
    norm: norm of the stream, which is not used.
    dtype: type of the computation.
  """

  width: int
  heads: int
  norm: Norm
  dtype: DTypeLike

  SHARDING: ClassVar[ShardingRules] = ((r".*attention/gate/kernel", ("fsdp", "tensor", None)),)

  def init(self, rngs: Keys) -> dict[str, nnx.Module | Parameter]:
    """Returns the projection of the gate, which has no bias.

    Args:
      rngs: source of keys.
    """
    size = self.width // self.heads
    return {"gate": Linear((self.width,), (self.heads, size), bias=False, dtype=self.dtype, rngs=rngs)}

  def __call__(
    self, attention: AttentionParts, context: Float[Tensor, "B M D"], x: Float[Tensor, "B M D"]
  ) -> Float[Array, "B M D"]:
    """Returns the gated contexts.

    Args:
      attention: the attention that owns the projection.
      context: contexts, (B, M, D).
      x: tokens of the queries, (B, M, D).
    """
    return jnp.asarray(context) * jax.nn.sigmoid(record("attention/gate", attention.gate.flat(x, bias=False)))
