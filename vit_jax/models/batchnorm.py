"""Batch normalisation, the only layer that updates its state in the forward pass."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax.shapes import Array, Float, PRNGKey, Tensor


class BatchNorm(nnx.Module):
  """Batch normalisation: (x - mean) / sqrt(var + eps) * scale + bias (Ioffe & Szegedy 2015), computed in float32.

  With a key (training), mean and biased variance are computed over all axes of x except the last. They cover the global
  batch, regardless of its distribution over devices. The running averages become (1 - momentum) old + momentum new.
  They use the unbiased variance, as in PyTorch. Without a key (evaluation), the running averages are used and not
  updated.

  Args:
    width: size of the last axis.
    eps: added to the variance.
    momentum: weight of the new statistics in the running averages.
    dtype: type of the result.
  """

  def __init__(self, width: int, *, eps: float, momentum: float, dtype: DTypeLike) -> None:
    self.eps, self.momentum, self.dtype = eps, momentum, dtype
    self.scale = nnx.Param(jnp.ones(width, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
    self.mean = nnx.BatchStat(jnp.zeros(width, jnp.float32))
    self.var = nnx.BatchStat(jnp.ones(width, jnp.float32))

  @jax.named_scope("normalisation")
  def __call__(self, x: Float[Tensor, "*B D"], key: PRNGKey | None = None) -> Float[Array, "*B D"]:
    x = jnp.asarray(x, jnp.float32)
    mean, var = (self.mean[...], self.var[...]) if key is None else self._measure(x)
    x = (x - mean) * (jax.lax.rsqrt(var + self.eps) * self.scale[...]) + self.bias[...]
    return x.astype(self.dtype)

  def _measure(self, x: Float[Array, "*B D"]) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """Returns mean and biased variance of the batch, and updates the running averages."""
    axes, count = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean = x.mean(axes)
    # A second pass over the differences is required. E[x^2] - E[x]^2 is inaccurate for channels far from zero.
    var = jnp.square(x - mean).mean(axes)
    for running, new in ((self.mean, mean), (self.var, var * (count / max(count - 1, 1)))):
      running.set_value((1 - self.momentum) * running[...] + self.momentum * new)
    return mean, var
