"""Multi-head attention, with a faster backward pass of its softmax."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax import schema
from vit_jax.models import activations
from vit_jax.models.differential import Difference
from vit_jax.models.intermediates import record
from vit_jax.models.layers import Linear, RMSNorm, Scale, dropout, xavier
from vit_jax.models.rotary import turn
from vit_jax.shapes import Array, Float, PRNGKey, Scalar, Tensor

Formulation = Literal["xla", "fused"]
Bias = Literal["all", "query_value", "none"]  # projections that have a bias


class Attention(nnx.Module):
  """Multi-head attention, out(softmax(q k^T / sqrt(K)) v), of x to a memory, or to x itself by default.

  Relative positions, normalisation, rotation and `difference` support self-attention only. In contrast to "xla", the
  formulation "fused" records no logits and no weights, because the kernel does not store them.

  Args:
    width: width of the tokens.
    heads: number of heads.
    dropout: dropout rate of the attention weights.
    bias: projections that have a bias: "all", "query_value" or "none".
    kernel_init: initialiser of the projections.
    relative: number of tokens N. Adds q r^T / sqrt(K) to the logits (Shaw et al. 2018). All heads share r, which has a
      learned vector for each offset. Row j belongs to the offset p_q - p_k = N - 1 - j. None disables relative
      positions.
    query_norm: norm of the queries over the K channels of each head (Dehghani et al. 2023), or None.
    key_norm: norm of the keys, or None.
    context_norm: norm of the input of the last projection (Fang et al. 2023), or None.
    difference: combines the two halves of each head, which attend separately. None disables differential attention.
    out_bias: whether the last projection has a bias.
    rotary: a value of `rotary.ROTARY`. Queries and keys of patches are rotated after their norms. None disables
      rotation.
    leading: number of tokens before the registers. These tokens are not rotated. The patches are the last tokens.
    formulation: "xla", or "fused" for the TPU kernel of `fused_attention`. The kernel supports self-attention without
      relative positions, bias, dropout and `difference`.
    dtype: type of the computation.
    rngs: source of keys.

  Raises:
    ConfigError: if "fused" does not support the other arguments.
  """

  def __init__(
    self,
    width,
    heads,
    *,
    dropout=0.0,
    bias: Bias = "all",
    kernel_init=xavier,
    relative: int | None = None,
    query_norm: nnx.Module | None = None,
    key_norm: nnx.Module | None = None,
    context_norm: nnx.Module | None = None,
    difference: Difference | None = None,
    out_bias: bool = True,
    rotary=None,
    leading: int = 0,
    formulation: Formulation = "xla",
    dtype,
    rngs,
  ):
    if formulation == "fused" and (dropout or relative):
      raise schema.ConfigError(
        f"model: attention 'fused' supports neither attention_dropout nor relative positions, which are "
        f"{dropout} and {'on' if relative else 'off'}. Disable both, or use attention='xla'"
      )
    if formulation == "fused" and difference:
      raise schema.ConfigError("model: attention 'fused' does not support differential=true. Use 'xla'")
    size = width // heads
    linear = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
    softmax = key_norm is None and rotary is None  # the keys' bias reaches the softmax unchanged
    self.query = Linear((width,), (heads, size), bias=bias != "none", **linear)
    self.key = Linear((width,), (heads, size), bias=bias == "all", softmax=softmax, **linear)
    self.value = Linear((width,), (heads, size), bias=bias != "none", **linear)
    self.out = Linear((heads, size), (width,), bias=out_bias, **linear)
    size = size // 2 if difference else size  # size of a head, or of half a head
    draw = nnx.initializers.normal(0.02)
    self.offsets = nnx.Param(draw(rngs.params(), (2 * relative - 1, size), jnp.float32)) if relative else None
    frequencies = None if rotary is None else rotary.init(rngs.params())
    self.frequencies = None if frequencies is None else nnx.Param(frequencies)
    self.query_norm, self.key_norm, self.context_norm = query_norm, key_norm, context_norm
    self.difference = difference
    self.rotary, self.leading = rotary, leading
    self.dropout, self.scale, self.formulation = dropout, size**-0.5, formulation

  def __call__(
    self,
    x: Float[Tensor, "B M D"],
    memory: Float[Tensor, "B N D"] | None = None,
    key: PRNGKey | None = None,
    bias: Float[Tensor, "*#B #H #M #N"] | None = None,
    coordinates: Float[Tensor, "*#B P 2"] | None = None,
    scale: Scale = None,
    number: Scalar | None = None,
  ) -> Float[Array, "B M D"]:
    """Computes attention.

    Args:
      x: tokens of the queries, (B, M, D).
      memory: tokens of keys and values, (B, N, D). None means x.
      key: random key of dropout. None disables dropout.
      bias: added to the logits. It must broadcast to (B, H, M, N).
      coordinates: positions of the patches for `rotary`, (*B, P, 2).
      scale: factors of the result, (D,), or None.
      number: number of the block, required by `difference`.

    Returns:
      Attended tokens, (B, M, D).
    """
    if self.formulation == "fused":
      assert memory is None and bias is None
      out = self.out.flat(self._normed(record("attention/context", self._fused(x, coordinates))), scale=scale)
    else:
      context = self._plain(x, memory, key, bias, coordinates)
      context = context if self.difference is None else self.difference(context, number)
      context = record("attention/context", context)
      out = self.out(self._normed(context.reshape(*x.shape[:2], -1)).reshape(context.shape), scale)
    return record("attention/out", out)

  def _normed(self, context: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
    return context if self.context_norm is None else self.context_norm(context)

  def _placed(self, query, keys, coordinates):
    """Returns normalised and rotated queries and keys, [B, N, H, K]."""
    if self.query_norm is not None:
      query, keys = self.query_norm(query), self.key_norm(keys)
    if self.rotary is None:
      return query, keys
    angles = self._angles(query.shape[1], coordinates)
    return turn(query, angles), turn(keys, angles)

  def _angles(self, tokens: int, coordinates: Float[Tensor, "*B P 2"]) -> Float[Tensor, "*B N #H K2"]:
    """Returns the rotation angles of all tokens, including the tokens in front of the patches."""
    angles = self.rotary.angles(coordinates, None if self.frequencies is None else self.frequencies[...])
    registers = self.rotary.of_registers(tokens - angles.shape[-3] - self.leading)
    prefix = np.concatenate([np.zeros((self.leading, 1, self.rotary.size // 2), np.float32), registers])
    xp = np if isinstance(angles, np.ndarray) else jnp  # constant angles stay constants
    return xp.concatenate(
      [xp.broadcast_to(prefix, (*angles.shape[:-3], len(prefix), *angles.shape[-2:])), angles], axis=-3
    )

  def _plain(self, x, memory, key, bias, coordinates):
    memory = x if memory is None else memory
    query = record("attention/query", self.query(x))
    keys = record("attention/key", self.key(memory))
    values = record("attention/value", self.value(memory))
    if self.difference is not None:
      query, keys = (rearrange(x, "b n h (two k) -> b n (h two) k", two=2) for x in (query, keys))
      values = jnp.repeat(values, 2, axis=2)
    query, keys = self._placed(query, keys, coordinates)
    query = query * self.scale
    logits = jnp.einsum("bqhk,bnhk->bhqn", query, keys)
    if self.offsets is not None:
      logits = logits + relative_logits(query, self.offsets[...].astype(query.dtype))
    if bias is not None:
      logits = logits + bias.astype(logits.dtype)
    logits = record("attention/logits", logits)
    weights = record("attention/weights", jax.nn.softmax(logits, axis=-1))
    if key is None or not self.dropout:
      return averaged(logits, values)
    context = jnp.einsum("bhqn,bnhk->bqhk", dropout(weights, self.dropout, key), values)
    return checkpoint_name(context, "attention/averaged")

  def _fused(self, x, coordinates):
    """Computes contexts with the kernel: [B, N, D] -> [B, N, H * K]. The kernel adds the biases of query and value.

    The bias of the key has no effect unless keys are normalised or rotated. In these cases it is added before the
    kernel. The kernel normalises and rotates if possible. It supports neither angles that are computed in the program
    nor norms with means.
    """
    from vit_jax.models.kernels import fused_attention, placing  # imported here, because it loads Pallas

    heads, size = self.query.kernel.shape[-2:]
    turned, normed = self.rotary is not None, self.query_norm is not None
    angles = self._angles(x.shape[1], coordinates) if turned else None
    inside = placing.fits(size) and isinstance(angles, np.ndarray | None)
    inside = inside and (not normed or isinstance(self.query_norm, RMSNorm))
    outside = (turned or normed) and not inside
    added = {"query": outside, "key": turned or normed, "value": False}  # biases that are added before the kernel
    query, keys, values = (
      record(f"attention/{name}", linear.flat(x, bias=added[name] and linear.bias is not None))
      for name, linear in (("query", self.query), ("key", self.key), ("value", self.value))
    )
    options = {}
    if outside:
      apart = (rearrange(flat, "b n (h k) -> b n h k", h=heads) for flat in (query, keys))
      query, keys = (rearrange(x, "b n h k -> b n (h k)") for x in self._placed(*apart, coordinates))
    elif turned:
      options["angles"] = angles[:, 0]
    given = {"query": None if outside else self.query.bias, "value": self.value.bias}
    given = {name: bias[...].reshape(-1) for name, bias in given.items() if bias is not None}
    if normed and not outside:
      options["eps"] = self.query_norm.eps
      norms = {"gain of query": self.query_norm, "gain of key": self.key_norm}
      given |= {name: jnp.tile(norm.scale[...], heads) for name, norm in norms.items()}

    def kernel(query, key, value, *arrays):
      # Arrays of one device, which may contain only some of the heads.
      named = dict(zip(given, arrays, strict=True))
      gains = tuple(named[name] for name in named if name.startswith("gain")) or None
      biases = named.get("query"), named.get("value")
      return fused_attention.fused_attention(query, key, value, *biases, query.shape[-1] // size, gains, **options)

    return activations.per_device(kernel)(query, keys, values, *given.values())


@jax.custom_vjp
def averaged(logits: Float[Tensor, "B H M N"], values: Float[Tensor, "B N H K"]) -> Float[Array, "B M H K"]:
  """Computes softmax(logits) times values, with a custom backward pass.

  The gradient of the softmax is p (dp - sum_n p dp). The sum is computed from the result c, because sum_n p dp = sum_k
  c dc. The right side has K terms instead of N, and needs no array of size N x N. According to the TPU compiler, this
  saves 2.4 % of a ViT-B/16's step.

  Args:
    logits: logits, (B, H, M, N).
    values: values, (B, N, H, K).

  Returns:
    Contexts, (B, M, H, K).
  """
  return _averaged_forward(logits, values)[0]


def _averaged_forward(logits, values):
  weights = jax.nn.softmax(logits, axis=-1)
  # The name is required here. Rematerialisation sees the residuals of this function, but not names given later.
  context = checkpoint_name(jnp.einsum("bhqn,bnhk->bqhk", weights, values), "attention/averaged")
  return context, (weights, values, context)


def _averaged_backward(saved, gradient):
  weights, values, context = saved
  through = jnp.einsum("bqhk,bnhk->bhqn", gradient, values)
  shared = jnp.einsum("bqhk,bqhk->bhq", gradient.astype(jnp.float32), context.astype(jnp.float32))
  logits = weights * (through - shared[..., None].astype(through.dtype))
  return logits, jnp.einsum("bhqn,bqhk->bnhk", weights, gradient)


averaged.defvjp(_averaged_forward, _averaged_backward)


def relative_logits(query: Float[Tensor, "B N H K"], offsets: Float[Tensor, "2*N-1 K"]) -> Float[Array, "B H N N"]:
  """Computes the product of each query p with the vector of its offset to each key n. The vector is row N - 1 - p + n.

  Args:
    query: queries, (B, N, H, K).
    offsets: vectors of the offsets, (2 N - 1, K).

  Returns:
    Logits, (B, H, N, N).
  """
  n = query.shape[1]
  scores = jnp.einsum("bqhk,ok->bhqo", query, offsets)
  # Row p must be shifted left by p. Padding by one column and reshaping to rows with one column less does this.
  flat = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*scores.shape[:2], 2 * n * n)
  return flat[..., : n * (2 * n - 1)].reshape(*scores.shape[:2], n, 2 * n - 1)[..., n - 1 :]
