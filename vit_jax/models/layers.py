"""Parts that every Vision Transformer is made of: functions without parameters, then modules.

Parameters are float32; `dtype` is what is computed in. A random key of None means evaluation: nothing is dropped.
"""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from vit_jax.models.convolution import conv
from vit_jax.models.intermediates import record
from vit_jax.shapes import Float, PRNGKey, Scalar, Tensor

Scale = Float[Tensor, " D"] | None
xavier = nnx.initializers.xavier_uniform()
zeros = nnx.initializers.zeros_init()


@jax.custom_jvp
def gelu(x: Float[Tensor, "*x"]) -> Float[Tensor, "*x"]:
  """x times the normal distribution function of x, by erf and in float32 whatever the dtype."""
  wide = x.astype(jnp.float32)
  return (wide * _normal_distribution(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals, tangents):
  # The slope is kept for the backward pass in place of x: erf and the exponential are computed once.
  (x,), (tangent,) = primals, tangents
  wide = x.astype(jnp.float32)
  below = _normal_distribution(wide)
  slope = below + wide * jnp.exp(-0.5 * wide * wide) * (2 * math.pi) ** -0.5
  return (wide * below).astype(x.dtype), tangent * slope.astype(x.dtype)


def _normal_distribution(x):
  return 0.5 * (1 + jax.lax.erf(x * 2**-0.5))


GELU = {"tanh": jax.nn.gelu, "erf": gelu}


def dropout(x: Float[Tensor, "*x"], rate: float, key: PRNGKey | None) -> Float[Tensor, "*x"]:
  """Zeroes each element with probability `rate`, to 1/65536, and scales the others to keep the mean."""
  keep = max(round((1 - rate) * 65536), 1)
  if key is None or keep == 65536:
    return x
  # Drawing is what dropout costs: 16 bits an element, two from each word, last axis first so that batches stay split.
  words = jax.random.bits(key, (*x.shape[:-1], (x.shape[-1] + 1) // 2), jnp.uint32)
  bits = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
  return jnp.where(bits < keep, x * (65536 / keep), 0)


def drop_path(x: Float[Tensor, " B *x"], rate: Scalar, key: PRNGKey | None) -> Float[Tensor, " B *x"]:
  """Stochastic depth: as `dropout`, but whole examples; `rate` may be traced (Huang et al. 2016)."""
  if key is None or (not isinstance(rate, jax.Array) and rate == 0):
    return x
  keep = 1 - rate
  mask = jax.random.bernoulli(key, keep, (x.shape[0],) + (1,) * (x.ndim - 1))
  return x * (mask / keep).astype(x.dtype)


def residual(
  x: Float[Tensor, " B *x"],
  branch: Float[Tensor, " B *x"],
  rate: float,
  path_rate: Scalar,
  key: PRNGKey | None,
  number: int,
) -> Float[Tensor, " B *x"]:
  """x + branch, which is dropped by elements at `rate` with key `number`, by examples at `path_rate` with the next."""
  return x + drop_path(dropout(branch, rate, fold(key, number)), path_rate, fold(key, number + 1))


def fold(key: PRNGKey | None, number: int) -> PRNGKey | None:
  """Key number `number` derived from `key`; None stays None."""
  return None if key is None else jax.random.fold_in(key, number)


class Linear(nnx.Module):
  """[..., *inputs] -> [..., *outputs]; the initialiser sees the kernel as a matrix.

  `softmax` says that the output feeds a softmax which a bias shifts as a whole. The bias then changes nothing, and the
  rounding noise that would be its gradient, which Adam scales up to full steps, is cut off.
  """

  def __init__(self, inputs, outputs, *, bias=True, softmax=False, kernel_init=xavier, bias_init=zeros, dtype, rngs):
    self.dtype, self.rank, self.softmax = dtype, len(inputs), softmax
    kernel = kernel_init(rngs.params(), (math.prod(inputs), math.prod(outputs)), jnp.float32)
    self.kernel = nnx.Param(kernel.reshape(*inputs, *outputs))
    self.bias = nnx.Param(bias_init(rngs.params(), tuple(outputs), jnp.float32)) if bias else None

  def __call__(self, x: Float[Tensor, "..."], scale: Scale = None) -> Float[Tensor, "..."]:
    """`scale` [D], of the last axis, is taken into kernel and bias: a pass over what they give would cost more."""
    y = jnp.tensordot(x.astype(self.dtype), self._scaled(self.kernel, scale), self.rank)
    if self.bias is None:
      return y
    bias = self._scaled(self.bias, scale)
    return y + (jax.lax.stop_gradient(bias) if self.softmax else bias)

  def flat(self, x: Float[Tensor, "*B I"], bias: bool = True, scale: Scale = None) -> Float[Tensor, "*B O"]:
    """The same with inputs as one axis and outputs as one. For kernels that want it so."""
    kernel = _matrix(self._scaled(self.kernel, scale), self.rank)
    y = jnp.einsum("...i,oi->...o" if self.rank == 1 else "...i,io->...o", x.astype(self.dtype), kernel)
    return y + self._scaled(self.bias, scale).reshape(-1) if bias else y

  def _scaled(self, values, scale):
    return (values[...] if scale is None else values[...] * scale).astype(self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _matrix(kernel, rank):
  """[D, H, K] -> [H K, D] (rank 1: D is the input), [H, K, D] -> [H K, D] (rank 2), as XLA has both in a TPU's memory.

  The gradient has the kernel's shape before anything else is done with it. Otherwise XLA would begin the optimizer's
  update with matrices and end it with the three dimensions of the state, by way of memory: 7 ms of a ViT-L/16's step.
  """
  matrix = kernel.reshape(math.prod(kernel.shape[:rank]), -1)
  return matrix.T if rank == 1 else matrix


def _matrix_forward(kernel, rank):
  return _matrix(kernel, rank), kernel.shape


def _matrix_backward(rank, shape, gradient):
  return (jax.lax.optimization_barrier((gradient.T if rank == 1 else gradient).reshape(shape)),)


_matrix.defvjp(_matrix_forward, _matrix_backward)


class PatchEmbedding(nnx.Module):
  """One linear map of every patch, of images or of patches that are cut already.

  Patches stand row by row, and in a patch row, column, channel. On a TPU it pays to have the host cut them: otherwise
  the image is copied into another layout first, 1.5 % of a ViT-B/16's step.
  """

  def __init__(self, channels, width, patch, *, kernel_init, bias_init=zeros, dtype, rngs):
    self.patch, self.dtype = patch, dtype
    self.kernel = nnx.Param(kernel_init(rngs.params(), (patch, patch, channels, width), jnp.float32))
    self.bias = nnx.Param(bias_init(rngs.params(), (width,), jnp.float32))

  def __call__(self, x: Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"]) -> Float[Tensor, "B N D"]:
    x, kernel = x.astype(self.dtype), self.kernel[...].astype(self.dtype)
    if x.ndim == 3:
      y = x @ rearrange(kernel, "i j c d -> (i j c) d")
    else:
      y = rearrange(conv(x, kernel, self.patch, 0), "b h w d -> b (h w) d")
    return y + self.bias[...].astype(self.dtype)


class LayerNorm(nnx.Module):
  """Normalises the last axis with the biased variance; statistics in float32 whatever `dtype` is."""

  def __init__(self, width, *, eps, dtype):
    self.eps, self.dtype = eps, dtype
    self.scale = nnx.Param(jnp.ones(width, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

  def __call__(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    exact = x.dtype == jnp.float32
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    if exact:
      variance = jnp.square(x - mean).mean(-1, keepdims=True)
    else:
      # Both moments in one pass over x, which costs 2 % less of a step. What cancels here is below what x has lost when
      # it was rounded to eight bits.
      variance = jnp.maximum(jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean), 0)
    x = (x - mean) * jax.lax.rsqrt(variance + self.eps)
    return (x * self.scale[...] + self.bias[...]).astype(self.dtype)


class RMSNorm(nnx.Module):
  """Divides the last axis by its root mean square (Zhang and Sennrich 2019); statistics in float32."""

  def __init__(self, width, *, eps, dtype):
    self.eps, self.dtype = eps, dtype
    self.scale = nnx.Param(jnp.ones(width, jnp.float32))

  def __call__(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.eps)
    return (x * self.scale[...]).astype(self.dtype)


NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def layer_scale(width: int, value: float | None) -> tuple[nnx.Param, nnx.Param] | None:
  """Initial factors of both branches of a block; None for None."""
  return None if value is None else tuple(nnx.Param(jnp.full(width, value, jnp.float32)) for _ in range(2))


class Mlp(nnx.Module):
  """Two linear maps, with GELU of a hidden width between them."""

  def __init__(
    self, width, hidden, *, dropout=0.0, gelu: Literal["tanh", "erf"], kernel_init=xavier, bias_init=zeros, dtype, rngs
  ):
    linear = {"kernel_init": kernel_init, "bias_init": bias_init, "dtype": dtype, "rngs": rngs}
    self.up = Linear((width,), (hidden,), **linear)
    self.down = Linear((hidden,), (width,), **linear)
    self.gelu, self.dropout = gelu, dropout

  def __call__(
    self, x: Float[Tensor, "*B D"], key: PRNGKey | None = None, scale: Scale = None
  ) -> Float[Tensor, "*B D"]:
    """With `scale` the result is scaled."""
    x = GELU[self.gelu](record("mlp/hidden", self.up(x)))
    return record("mlp/out", self.down(dropout(x, self.dropout, key), scale))


class SwiGLU(nnx.Module):
  """down(silu(gate(x)) * up(x)), of a hidden width (Shazeer 2020), normalised before it goes down if so."""

  def __init__(
    self,
    width,
    hidden,
    *,
    norm: nnx.Module | None = None,
    dropout=0.0,
    kernel_init=xavier,
    bias_init=zeros,
    dtype,
    rngs,
  ):
    linear = {"kernel_init": kernel_init, "bias_init": bias_init, "dtype": dtype, "rngs": rngs}
    self.gate = Linear((width,), (hidden,), **linear)
    self.up = Linear((width,), (hidden,), **linear)
    self.down = Linear((hidden,), (width,), **linear)
    self.norm, self.dropout = norm, dropout

  def __call__(
    self, x: Float[Tensor, "*B D"], key: PRNGKey | None = None, scale: Scale = None
  ) -> Float[Tensor, "*B D"]:
    """With `scale` the result is scaled."""
    x = jax.nn.silu(record("mlp/gate", self.gate(x))) * record("mlp/hidden", self.up(x))
    x = x if self.norm is None else self.norm(x)
    return record("mlp/out", self.down(dropout(x, self.dropout, key), scale))
