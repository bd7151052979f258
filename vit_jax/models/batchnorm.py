"""Batch normalisation, the one layer here whose forward pass in training leaves something behind."""

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.shapes import Array, Float, PRNGKey, Tensor


class BatchNorm(nnx.Module):
  """(x - mean) / sqrt(var + eps) * scale + bias (Ioffe & Szegedy 2015), computed in float32.

  With a key, in training, mean and biased variance are those of x over all axes but the last: of the global batch,
  however it is split over devices. The running ones become (1 - momentum) old + momentum new, as in PyTorch, the new
  variance unbiased. Without a key the running ones normalise, and stay.
  """

  def __init__(self, width, *, eps, momentum, dtype):
    self.eps, self.momentum, self.dtype = eps, momentum, dtype
    self.scale = nnx.Param(jnp.ones(width, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
    self.mean = nnx.BatchStat(jnp.zeros(width, jnp.float32))
    self.var = nnx.BatchStat(jnp.ones(width, jnp.float32))

  def __call__(self, x: Float[Tensor, "*B D"], key: PRNGKey | None = None) -> Float[Array, "*B D"]:
    x = x.astype(jnp.float32)
    mean, var = (self.mean[...], self.var[...]) if key is None else self._measure(x)
    x = (x - mean) * (jax.lax.rsqrt(var + self.eps) * self.scale[...]) + self.bias[...]
    return x.astype(self.dtype)

  def _measure(self, x):
    """Mean and biased variance of the batch, which also move the running ones."""
    axes, count = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean = x.mean(axes)
    # Of the differences, in a second pass: E[x^2] - E[x]^2 loses the digits of a channel far from zero.
    var = jnp.square(x - mean).mean(axes)
    for running, new in ((self.mean, mean), (self.var, var * (count / max(count - 1, 1)))):
      running.set_value((1 - self.momentum) * running[...] + self.momentum * new)
    return mean, var
