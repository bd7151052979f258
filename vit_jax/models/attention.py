"""Attention, and what its softmax costs in the backward pass."""

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
Bias = Literal["all", "query_value", "none"]  # of the projections of query, key and value


class Attention(nnx.Module):
  """Multi-head attention of x to the memory, by default to itself.

  out(softmax((q k^T + q r^T) / sqrt(K)) v). With `relative` = N the r are learned vectors of the offsets between
  query and key (Shaw et al. 2018), one set for all heads; row j is the offset p_q - p_k = N - 1 - j. A `bias` that
  broadcasts to [B, H, M, N] is added to what goes into the softmax.

  Queries and keys are normalised over the K channels of each head by `query_norm` and `key_norm` (Dehghani et al.
  2023), then turned by `rotary`, a value of `rotary.ROTARY`, for the patches at the `coordinates`, which are the last
  tokens; between them and the first `leading` ones are registers. `context_norm` normalises what goes into the last
  projection (Fang et al. 2023). With a `difference` each head has two halves, which attend apart. These are of
  self-attention only.

  `formulation` "fused" is the TPU kernel of `fused_attention`: of a token sequence to itself, without offsets and bias
  and without dropout. It announces no logits and weights, for it never has them.
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
        f"model: attention 'fused' has no attention_dropout and no relative positions; they are {dropout} and "
        f"{'on' if relative else 'off'}. Set both to none, or attention='xla'"
      )
    if formulation == "fused" and difference:
      raise schema.ConfigError("model: attention 'fused' has no halves of heads, as differential=true; take 'xla'")
    size = width // heads
    linear = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
    softmax = key_norm is None and rotary is None  # nothing comes between the keys' bias and the softmax
    self.query = Linear((width,), (heads, size), bias=bias != "none", **linear)
    self.key = Linear((width,), (heads, size), bias=bias == "all", softmax=softmax, **linear)
    self.value = Linear((width,), (heads, size), bias=bias != "none", **linear)
    self.out = Linear((heads, size), (width,), bias=out_bias, **linear)
    size = size // 2 if difference else size  # of what attends for itself
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
    """With `scale` [D] the result is scaled. `number` is that of the block, where a difference wants it."""
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
    """Query and keys [B, N, H, K], normalised and turned."""
    if self.query_norm is not None:
      query, keys = self.query_norm(query), self.key_norm(keys)
    if self.rotary is None:
      return query, keys
    angles = self._angles(query.shape[1], coordinates)
    return turn(query, angles), turn(keys, angles)

  def _angles(self, tokens: int, coordinates: Float[Tensor, "*B P 2"]) -> Float[Tensor, "*B N #H K2"]:
    """By which each token is turned: those in front of the patches too."""
    angles = self.rotary.angles(coordinates, None if self.frequencies is None else self.frequencies[...])
    registers = self.rotary.of_registers(tokens - angles.shape[-3] - self.leading)
    prefix = np.concatenate([np.zeros((self.leading, 1, self.rotary.size // 2), np.float32), registers])
    xp = np if isinstance(angles, np.ndarray) else jnp  # known before the program is, or not
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
    """[B, N, D] -> [B, N, H * K]. The kernel adds the biases of query and value.

    That of the key changes nothing, unless keys are normalised or turned: then it is added before. The kernel does both
    where it can: not with angles that are computed in the program, and not with means.
    """
    from vit_jax.models.kernels import fused_attention, placing  # loads Pallas, which nothing else needs

    heads, size = self.query.kernel.shape[-2:]
    turned, normed = self.rotary is not None, self.query_norm is not None
    angles = self._angles(x.shape[1], coordinates) if turned else None
    inside = placing.fits(size) and isinstance(angles, np.ndarray | None)
    inside = inside and (not normed or isinstance(self.query_norm, RMSNorm))
    outside = (turned or normed) and not inside
    added = {"query": outside, "key": turned or normed, "value": False}  # biases that the kernel does not add
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
      # One device's part, which may have some of the heads only.
      named = dict(zip(given, arrays, strict=True))
      gains = tuple(named[name] for name in named if name.startswith("gain")) or None
      biases = named.get("query"), named.get("value")
      return fused_attention.fused_attention(query, key, value, *biases, query.shape[-1] // size, gains, **options)

    return activations.per_device(kernel)(query, keys, values, *given.values())


@jax.custom_vjp
def averaged(logits: Float[Tensor, "B H M N"], values: Float[Tensor, "B N H K"]) -> Float[Array, "B M H K"]:
  """softmax(logits) times values.

  The gradient of the softmax, p (dp - sum_n p dp), takes its sum from the result: sum_n p dp = sum_k c dc. That is K
  numbers instead of N, and nothing of size N x N is read for it: 2.4 % of a ViT-B/16's step by the TPU's compiler.
  """
  return _averaged_forward(logits, values)[0]


def _averaged_forward(logits, values):
  weights = jax.nn.softmax(logits, axis=-1)
  # Rematerialisation sees what this function keeps for the backward pass, and not the name that its result gets later.
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
  """Query p times the vector of its offset to key n, row N - 1 - p + n."""
  n = query.shape[1]
  scores = jnp.einsum("bqhk,ok->bhqo", query, offsets)
  # Row p must move left by p. One column of padding, read with one column less per row, does just that.
  flat = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*scores.shape[:2], 2 * n * n)
  return flat[..., : n * (2 * n - 1)].reshape(*scores.shape[:2], n, 2 * n - 1)[..., n - 1 :]
