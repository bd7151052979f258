"""Products of int8 numbers for training: the choice `matmul="int8"` of a model.

The scheme is that of SwitchBack (Wortsman et al. 2023, arXiv:2304.13013). The product of the forward pass and the
gradient of its input multiply int8 numbers and add the results in int32. The gradient of the weights has the type of
the computation. It is a sum over all tokens of a batch, and quantization noise grows with the number of terms. Each
token and each output channel has its own scale, which is computed from the largest magnitude. The paper calls this
variant SwitchBackQ.

SwitchBack rounds gradients to the nearest number. The third default config of AQT, Google's library for quantized
training on TPUs, rounds them stochastically. This module does the same, so that the rounding adds no bias to the
gradient of the input.

Qwix 0.1.8 and AQT 0.9.0 contain similar products. This module does not use them for three reasons:

- Qwix replaces functions of JAX while a whole Flax model is traced, and identifies weights by their parameters. The
  layers here scale, reshape and convert weights before the product. Qwix would also quantize the gradient of the
  weights, or else quantize the weights twice.
- AQT is made for Flax Linen, and its arguments are a graph of mutable objects.
- AQT draws a random number for every element, which is slow. Qwix shares one number among all elements of an image, so
  that their errors add up. See `draw_noise` for a solution without both disadvantages.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.shapes import Array, Float, Int8, PRNGKey, Tensor

Matmul = Literal["default", "int8"]
LARGEST = 127  # -128 is not used, so that the range is symmetric


def quantize(
  x: Float[Tensor, "*x"], axes: tuple[int, ...], noise: Float[Tensor, "*x"] | None = None
) -> tuple[Int8[Array, "*x"], Float[Array, "..."]]:
  """Rounds numbers to integers between -127 and 127, with one scale for all numbers along some axes.

  Args:
    x: numbers of any type.
    axes: axes that share a scale.
    noise: uniform numbers in [0, 1) for stochastic rounding. None rounds to the nearest integer.

  Returns:
    The integers, and the scales in float32 with axes of size 1. Their product approximates x.
  """
  wide = x.astype(jnp.float32)
  largest = jnp.abs(wide).max(axes, keepdims=True)
  # Zeros have the scale 1. An infinity or NaN makes the scale, and hence the result, infinite or NaN.
  largest = jnp.where(largest == 0, LARGEST, largest)
  scaled = wide * (LARGEST / largest)
  rounded = jnp.round(scaled) if noise is None else jnp.floor(scaled + noise)
  return jnp.clip(rounded, -LARGEST, LARGEST).astype(jnp.int8), largest / LARGEST


def draw_noise(key: PRNGKey, tokens: tuple[int, ...], channels: tuple[int, ...]) -> Float[Array, "..."]:
  """Draws uniform numbers in [0, 1) for stochastic rounding, which are pairwise independent.

  Every number is the sum of two random numbers modulo 1, one of its token and one of its channel. Any two sums are
  independent. The variance of a product with the rounded numbers is therefore the same as with independent numbers.
  Drawing a number for every element would be slow, see `layers.dropout`.

  Args:
    key: random key.
    tokens: sizes of the axes of tokens.
    channels: sizes of the axes of channels.

  Returns:
    The numbers, (*tokens, *channels).
  """
  of_token = jax.random.bits(jax.random.fold_in(key, 0), (*tokens, *(1,) * len(channels)), jnp.uint32)
  of_channel = jax.random.bits(jax.random.fold_in(key, 1), channels, jnp.uint32)
  # The highest 24 bits are exact in float32.
  return ((of_token + of_channel) >> 8).astype(jnp.int32).astype(jnp.float32) * np.float32(2**-24)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def multiply(x: Float[Tensor, "..."], kernel: Float[Tensor, "..."], key: PRNGKey, rank: int) -> Float[Array, "..."]:
  """Computes `jnp.tensordot(x, kernel, rank)` with int8 numbers.

  Args:
    x: inputs, (*tokens, *inputs).
    kernel: weights, (*inputs, *outputs), of the type of x.
    key: random key of the rounding of gradients.
    rank: number of input axes.

  Returns:
    Outputs of the type of x, (*tokens, *outputs).
  """
  return _multiply_forward(x, kernel, key, rank)[0]


Saved = tuple[Array, Int8[Array, "..."], Float[Array, "..."], PRNGKey]


def _multiply_forward(x: Tensor, kernel: Tensor, key: PRNGKey, rank: int) -> tuple[Array, Saved]:
  x = jnp.asarray(x)
  integers, of_token = quantize(x, tuple(range(-rank, 0)))
  weights, of_channel = quantize(kernel, tuple(range(rank)))
  of_token = of_token.reshape(*x.shape[:-rank], *(1,) * (kernel.ndim - rank))
  of_channel = of_channel.reshape(kernel.shape[rank:])
  inputs = tuple(range(x.ndim - rank, x.ndim)), tuple(range(rank))
  y = _contract(integers, weights, inputs) * (of_token * of_channel)
  return y.astype(x.dtype), (x, weights, of_channel, key)


def _multiply_backward(rank: int, saved: Saved, gradient: Array) -> tuple[Array, Array, None]:
  x, weights, of_channel, key = saved
  tokens, outputs = tuple(range(x.ndim - rank)), tuple(range(-of_channel.ndim, 0))
  of_kernel = jnp.tensordot(x, gradient, (tokens, tokens))
  # The integers of the weights have scales of output channels, by which the gradient is multiplied before rounding.
  scaled = gradient.astype(jnp.float32) * of_channel
  noise = draw_noise(key, gradient.shape[: len(tokens)], of_channel.shape)
  integers, of_token = quantize(scaled, outputs, noise)
  of_token = of_token.reshape(*gradient.shape[: len(tokens)], *(1,) * rank)
  axes = tuple(range(len(tokens), gradient.ndim)), tuple(range(rank, weights.ndim))
  return (_contract(integers, weights, axes) * of_token).astype(x.dtype), of_kernel, None


multiply.defvjp(_multiply_forward, _multiply_backward)


def _contract(
  x: Int8[Array, "..."], weights: Int8[Array, "..."], axes: tuple[tuple[int, ...], tuple[int, ...]]
) -> Float[Array, "..."]:
  """Returns the exact sum of products along some axes of both, as float32."""
  return jax.lax.dot_general(x, weights, (axes, ((), ())), preferred_element_type=jnp.int32).astype(jnp.float32)
