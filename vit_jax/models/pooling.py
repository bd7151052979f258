"""Pooling of tokens to one vector per image by attention."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax.models.attention import Attention
from vit_jax.models.intermediates import record, scope
from vit_jax.models.layers import Gelu, LayerNorm, Linear, Mlp, xavier
from vit_jax.models.parameters import Keys
from vit_jax.shapes import Array, Float, Tensor


class Map(nnx.Module):
  """Multi-head attention pooling: a learned probe attends to all tokens, then x + mlp(norm(x)) (Zhai et al. 2022).

  Args:
    width: width of the tokens.
    heads: number of attention heads.
    hidden: hidden width of the MLP.
    eps: epsilon of the norm.
    gelu: formulation of GELU, see `layers.Mlp`.
    bias_init: initialiser of the MLP's biases.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    width: int,
    heads: int,
    hidden: int,
    *,
    eps: float,
    gelu: Gelu,
    bias_init: nnx.Initializer,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.probe = nnx.Param(xavier(rngs.params(), (1, width), jnp.float32)[0])
    self.attention = Attention(width, heads, dtype=dtype, rngs=rngs)
    self.norm = LayerNorm(width, eps=eps, dtype=dtype)
    self.mlp = Mlp(width, hidden, gelu=gelu, bias_init=bias_init, dtype=dtype, rngs=rngs)

  def __call__(self, x: Float[Tensor, "B N D"]) -> Float[Array, "B D"]:
    probe = jnp.broadcast_to(self.probe[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
    with scope("pool/"):
      x = self.attention(probe, x)
      return (x + self.mlp(self.norm(x)))[:, 0]


class SeqPool(nnx.Module):
  """Sequence pooling: the mean of the tokens, weighted by a softmax of a linear score (Hassani et al. 2021).

  Args:
    width: width of the tokens.
    kernel_init: initialiser of the score's kernel.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(self, width: int, *, kernel_init: nnx.Initializer, dtype: DTypeLike, rngs: Keys) -> None:
    self.score = Linear((width,), (1,), softmax=True, kernel_init=kernel_init, dtype=dtype, rngs=rngs)

  def __call__(self, x: Float[Tensor, "B N D"]) -> Float[Array, "B D"]:
    weights = record("pool/weights", jax.nn.softmax(self.score(x)[..., 0], axis=-1))
    return jnp.einsum("bn,bnd->bd", weights, x)
