"""Building blocks of all Vision Transformers: functions without parameters, then modules.

Parameters are float32, and `dtype` is the type of the computation. A random key of None selects evaluation, without
dropout.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from vit_jax.models import int8
from vit_jax.models.convolution import conv
from vit_jax.models.intermediates import record
from vit_jax.models.parameters import Keys, Parameter
from vit_jax.shapes import Array, Float, PRNGKey, Scalar, Tensor

Scale = Float[Tensor, " D"] | None
xavier = nnx.initializers.xavier_uniform()
zeros = nnx.initializers.zeros_init()


@jax.custom_jvp
def gelu(x: Float[Tensor, "*x"]) -> Float[Array, "*x"]:
  """Computes the exact GELU, x times the normal distribution function of x, with erf. Uses float32 for every dtype.

  Args:
    x: array of any shape.
  """
  wide = jnp.asarray(x, jnp.float32)
  return (wide * _normal_distribution(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  # The backward pass stores the slope instead of x, so that erf and the exponential are computed only once.
  (x,), (tangent,) = primals, tangents
  wide = x.astype(jnp.float32)
  below = _normal_distribution(wide)
  slope = below + wide * jnp.exp(-0.5 * wide * wide) * (2 * math.pi) ** -0.5
  return (wide * below).astype(x.dtype), tangent * slope.astype(x.dtype)


def _normal_distribution(x: Float[Array, "*x"]) -> Float[Array, "*x"]:
  return 0.5 * (1 + jax.lax.erf(x * 2**-0.5))


Gelu = Literal["tanh", "erf"]
GELU: dict[Gelu, Callable[[Array], Array]] = {"tanh": jax.nn.gelu, "erf": gelu}


def dropout(x: Float[Tensor, "*x"], rate: float, key: PRNGKey | None) -> Float[Array, "*x"]:
  """Zeroes each element with probability `rate`, and scales the others so that the mean is unchanged.

  Args:
    x: array of any shape.
    rate: probability, rounded to a multiple of 1/65536.
    key: random key. None disables dropout.
  """
  keep = max(round((1 - rate) * 65536), 1)
  if key is None or keep == 65536:
    return jnp.asarray(x)
  # Drawing bits dominates the cost of dropout. Each element takes 16 bits, so a word serves two neighbours on the last
  # axis. Batches then stay sharded.
  words = jax.random.bits(key, (*x.shape[:-1], (x.shape[-1] + 1) // 2), jnp.uint32)
  bits = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
  return jnp.where(checkpoint_name(bits < keep, "dropout/mask"), x * (65536 / keep), 0)


def drop_path(x: Float[Tensor, " B *x"], rate: Scalar, key: PRNGKey | None) -> Float[Array, " B *x"]:
  """Applies stochastic depth (Huang et al. 2016): dropout of whole examples.

  Args:
    x: output of a branch, (B, ...).
    rate: probability, which may be traced.
    key: random key. None disables dropout.
  """
  if key is None or (not isinstance(rate, jax.Array) and rate == 0):
    return jnp.asarray(x)
  keep = 1 - rate
  mask = jax.random.bernoulli(key, keep, (x.shape[0],) + (1,) * (x.ndim - 1))
  return jnp.asarray(x) * (mask / keep).astype(x.dtype)


def add_residual(
  x: Float[Tensor, " B *x"],
  branch: Float[Tensor, " B *x"],
  rate: float,
  path_rate: Scalar,
  key: PRNGKey | None,
  number: int,
) -> Float[Array, " B *x"]:
  """Adds a branch to the stream, with dropout of its elements and stochastic depth.

  Args:
    x: the stream, (B, ...).
    branch: output of the branch, (B, ...).
    rate: probability of dropping an element. It uses the key `number`.
    path_rate: probability of dropping an example. It uses the key `number` + 1.
    key: random key from which both keys are derived. None disables dropout.
    number: number of the first key.
  """
  return jnp.asarray(x) + drop_path(dropout(branch, rate, fold_key(key, number)), path_rate, fold_key(key, number + 1))


def fold_key(key: PRNGKey | None, number: int) -> PRNGKey | None:
  """Derives a key by number. A key of None stays None.

  Args:
    key: random key.
    number: number of the derived key.
  """
  return None if key is None else jax.random.fold_in(key, number)


class Linear(nnx.Module):
  """A linear map between several axes: [..., *inputs] -> [..., *outputs].

  Args:
    inputs: sizes of the input axes.
    outputs: sizes of the output axes.
    bias: whether a bias is added.
    softmax: whether the output is the input of a softmax, and the bias adds one constant to all its values. The bias
      then has no effect, and its gradient is stopped. Otherwise its gradient would be rounding noise, which Adam scales
      up to full steps.
    kernel_init: initialiser of the kernel, which is called with the shape of a matrix.
    bias_init: initialiser of the bias.
    matmul: "int8" computes products with a random key by `int8.multiply`.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    *,
    bias: bool = True,
    softmax: bool = False,
    kernel_init: nnx.Initializer = xavier,
    bias_init: nnx.Initializer = zeros,
    matmul: int8.Matmul = "default",
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.dtype, self.rank, self.softmax, self.matmul = dtype, len(inputs), softmax, matmul
    kernel = kernel_init(rngs.params(), (math.prod(inputs), math.prod(outputs)), jnp.float32)
    self.kernel = nnx.Param(kernel.reshape(*inputs, *outputs))
    self.bias = nnx.Param(bias_init(rngs.params(), tuple(outputs), jnp.float32)) if bias else None

  def __call__(self, x: Float[Tensor, "..."], scale: Scale = None, key: PRNGKey | None = None) -> Float[Array, "..."]:
    """Applies the map. A `scale` [D] multiplies the outputs along their last axis.

    The scale is multiplied into kernel and bias, because a separate pass over the outputs would cost more. `key` is the
    random key of int8 products. None selects evaluation, which computes in `dtype`.
    """
    x, kernel = x.astype(self.dtype), self._scaled(self.kernel, scale)
    if self.matmul == "int8" and key is not None:
      y = int8.multiply(x, kernel, key, self.rank)
    else:
      y = jnp.tensordot(x, kernel, self.rank)
    if self.bias is None:
      return y
    bias = self._scaled(self.bias, scale)
    return y + (jax.lax.stop_gradient(bias) if self.softmax else bias)

  def flat(
    self, x: Float[Tensor, "*B I"], bias: bool = True, scale: Scale = None, key: PRNGKey | None = None
  ) -> Float[Array, "*B O"]:
    """Applies the map with all input axes merged into one axis, and all output axes merged into one axis.

    Args:
      x: inputs, (*B, I).
      bias: whether to add the bias.
      scale: factors of the outputs, or None.
      key: random key of int8 products. None selects evaluation.

    Returns:
      Outputs, (*B, O).
    """
    x, kernel = x.astype(self.dtype), _matrix(self._scaled(self.kernel, scale), self.rank)
    if self.matmul == "int8" and key is not None:
      y = int8.multiply(x, kernel.T if self.rank == 1 else kernel, key, 1)
    else:
      y = jnp.einsum("...i,oi->...o" if self.rank == 1 else "...i,io->...o", x, kernel)
    if not bias:
      return y
    assert self.bias is not None
    return y + self._scaled(self.bias, scale).reshape(-1)

  def _scaled(self, values: Parameter, scale: Scale) -> Array:
    return jnp.asarray(values[...] if scale is None else values[...] * scale, self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _matrix(kernel: Array, rank: int) -> Array:
  """Reshapes a kernel to [H K, D], from [D, H, K] (one input axis D) or from [H, K, D] (two input axes).

  XLA stores both in this layout in a TPU's memory. The gradient is reshaped to the kernel's shape immediately.
  Otherwise XLA would start the optimizer's update with matrices, and convert to three dimensions at its end. This
  conversion takes 7 ms of a ViT-L/16's step.
  """
  matrix = kernel.reshape(math.prod(kernel.shape[:rank]), -1)
  return matrix.T if rank == 1 else matrix


def _matrix_forward(kernel: Array, rank: int) -> tuple[Array, tuple[int, ...]]:
  return _matrix(kernel, rank), kernel.shape


def _matrix_backward(rank: int, shape: tuple[int, ...], gradient: Array) -> tuple[Array]:
  return (jax.lax.optimization_barrier((gradient.T if rank == 1 else gradient).reshape(shape)),)


_matrix.defvjp(_matrix_forward, _matrix_backward)


class PatchEmbedding(nnx.Module):
  """A linear map of every patch. The input is images, or patches that are already cut.

  Patches are ordered row by row. The values of a patch are ordered by row, column and channel. On a TPU, patches should
  be cut on the host. Otherwise the image is first copied into another layout, which takes 1.5 % of a ViT-B/16's step.

  Args:
    channels: number of image channels.
    width: width of the tokens.
    patch: side of a patch in pixels.
    kernel_init: initialiser of the kernel.
    bias_init: initialiser of the bias.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    channels: int,
    width: int,
    patch: int,
    *,
    kernel_init: nnx.Initializer,
    bias_init: nnx.Initializer = zeros,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.patch, self.dtype = patch, dtype
    self.kernel = nnx.Param(kernel_init(rngs.params(), (patch, patch, channels, width), jnp.float32))
    self.bias = nnx.Param(bias_init(rngs.params(), (width,), jnp.float32))

  def __call__(self, x: Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"]) -> Float[Array, "B N D"]:
    x, kernel = jnp.asarray(x, self.dtype), self.kernel[...].astype(self.dtype)
    if x.ndim == 3:
      y = x @ rearrange(kernel, "i j c d -> (i j c) d")
    else:
      y = rearrange(conv(x, kernel, self.patch, 0), "b h w d -> b (h w) d")
    return y + self.bias[...].astype(self.dtype)


class LayerNorm(nnx.Module):
  """Layer normalisation of the last axis with the biased variance. Statistics are float32 for every `dtype`.

  Args:
    width: size of the last axis.
    eps: added to the variance.
    dtype: type of the result.
  """

  def __init__(self, width: int, *, eps: float, dtype: DTypeLike) -> None:
    self.eps, self.dtype = eps, dtype
    self.scale = nnx.Param(jnp.ones(width, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

  @jax.named_scope("normalisation")
  def __call__(self, x: Float[Tensor, "*B D"]) -> Float[Array, "*B D"]:
    exact = x.dtype == jnp.float32
    x = jnp.asarray(x, jnp.float32)
    mean = x.mean(-1, keepdims=True)
    if exact:
      variance = jnp.square(x - mean).mean(-1, keepdims=True)
    else:
      # Computing both moments in one pass over x saves 2 % of a step. The cancellation error is below the error of
      # rounding x to eight bits.
      variance = jnp.maximum(jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean), 0)
    x = (x - mean) * jax.lax.rsqrt(variance + self.eps)
    return (x * self.scale[...] + self.bias[...]).astype(self.dtype)


class RMSNorm(nnx.Module):
  """Division of the last axis by its root mean square (Zhang and Sennrich 2019). Statistics are float32.

  Args:
    width: size of the last axis.
    eps: added to the mean square.
    dtype: type of the result.
  """

  def __init__(self, width: int, *, eps: float, dtype: DTypeLike) -> None:
    self.eps, self.dtype = eps, dtype
    self.scale = nnx.Param(jnp.ones(width, jnp.float32))

  @jax.named_scope("normalisation")
  def __call__(self, x: Float[Tensor, "*B D"]) -> Float[Array, "*B D"]:
    x = jnp.asarray(x, jnp.float32)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.eps)
    return (x * self.scale[...]).astype(self.dtype)


NormKind = Literal["layer", "rms"]
NORMS: dict[NormKind, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


@dataclasses.dataclass(frozen=True)
class Norm:
  """The norm of a model, which is created for each width.

  Args:
    kind: a key of `NORMS`.
    eps: epsilon.
    dtype: type of the results.
  """

  kind: NormKind
  eps: float
  dtype: DTypeLike

  def __call__(self, width: int) -> LayerNorm | RMSNorm:
    """Returns a norm.

    Args:
      width: size of the last axis.
    """
    return NORMS[self.kind](width, eps=self.eps, dtype=self.dtype)


def create_layer_scale(width: int, value: float | None) -> tuple[Parameter, Parameter] | None:
  """Returns the factors of both branches of a block (LayerScale), or None.

  Args:
    width: number of channels.
    value: initial value of all factors. None disables LayerScale.
  """
  if value is None:
    return None
  first, second = (nnx.Param(jnp.full(width, value, jnp.float32)) for _ in range(2))
  return first, second


class Mlp(nnx.Module):
  """A multilayer perceptron: two linear maps with GELU between them.

  Args:
    width: width of inputs and outputs.
    hidden: hidden width.
    dropout: dropout rate of the hidden layer.
    gelu: "tanh" for the approximation, "erf" for the exact function.
    kernel_init: initialiser of the kernels.
    bias_init: initialiser of the biases.
    matmul: see `Linear`.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    width: int,
    hidden: int,
    *,
    dropout: float = 0.0,
    gelu: Gelu,
    kernel_init: nnx.Initializer = xavier,
    bias_init: nnx.Initializer = zeros,
    matmul: int8.Matmul = "default",
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    linear = functools.partial(
      Linear, kernel_init=kernel_init, bias_init=bias_init, matmul=matmul, dtype=dtype, rngs=rngs
    )
    self.up = linear((width,), (hidden,))
    self.down = linear((hidden,), (width,))
    self.gelu, self.dropout = gelu, dropout

  def __call__(self, x: Float[Tensor, "*B D"], key: PRNGKey | None = None, scale: Scale = None) -> Float[Array, "*B D"]:
    """Applies the MLP. A `scale` [D] multiplies the outputs."""
    x = GELU[self.gelu](record("mlp/hidden", self.up(x, key=fold_key(key, 1))))
    return record("mlp/out", self.down(dropout(x, self.dropout, key), scale, fold_key(key, 2)))


class SwiGLU(nnx.Module):
  """The gated MLP down(silu(gate(x)) * up(x)) (Shazeer 2020).

  Args:
    width: width of inputs and outputs.
    hidden: hidden width.
    norm: norm of the hidden layer, or None.
    dropout: dropout rate of the hidden layer.
    kernel_init: initialiser of the kernels.
    bias_init: initialiser of the biases.
    matmul: see `Linear`.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    width: int,
    hidden: int,
    *,
    norm: nnx.Module | None = None,
    dropout: float = 0.0,
    kernel_init: nnx.Initializer = xavier,
    bias_init: nnx.Initializer = zeros,
    matmul: int8.Matmul = "default",
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    linear = functools.partial(
      Linear, kernel_init=kernel_init, bias_init=bias_init, matmul=matmul, dtype=dtype, rngs=rngs
    )
    self.gate = linear((width,), (hidden,))
    self.up = linear((width,), (hidden,))
    self.down = linear((hidden,), (width,))
    self.norm, self.dropout = norm, dropout

  def __call__(self, x: Float[Tensor, "*B D"], key: PRNGKey | None = None, scale: Scale = None) -> Float[Array, "*B D"]:
    """Applies the MLP. A `scale` [D] multiplies the outputs."""
    gate = record("mlp/gate", self.gate(x, key=fold_key(key, 0)))
    x = jax.nn.silu(gate) * record("mlp/hidden", self.up(x, key=fold_key(key, 1)))
    x = x if self.norm is None else self.norm(x)
    return record("mlp/out", self.down(dropout(x, self.dropout, key), scale, fold_key(key, 2)))
