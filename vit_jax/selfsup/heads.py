"""Projection heads, which compare features with prototypes.

A head is an MLP, an L2 normalisation and a linear layer without bias (Caron et al. 2021, section 3.1). The rows of the
last layer are the prototypes.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vit_jax import models
from vit_jax.models import layers
from vit_jax.selfsup import vectors
from vit_jax.shapes import Array, Float, PRNGKey, Tensor

STDDEV = 0.02  # PyTorch truncates the distribution at 100 standard deviations, so it is a normal distribution
Params = Mapping[str, Float[Tensor, "..."]]
NewParams = dict[str, Float[Array, "..."]]
LastLayer = Literal["weight_norm", "fixed_norm", "plain"]


@dataclasses.dataclass(frozen=True)
class ProjectionHead:
  """A projection head with parameters in a flat dictionary.

  The paths below a prefix are `layer0/kernel` [D, hidden], `layer0/bias`, ..., `last/kernel` [bottleneck, K], and
  `last/scale` [K] for "weight_norm".

  Attributes:
    width: number D of features.
    prototypes: number K of logits.
    bottleneck: number of features before the last layer.
    hidden: number of features inside the MLP.
    layers: number of linear layers of the MLP, at least 1.
    last: form of the last layer with kernel v and trained scale g. "weight_norm" has the weights g_k v_k / |v_k| (DINO
      with norm_last_layer=False, iBOT, DINOv2), "fixed_norm" has v_k / |v_k| (DINO), and "plain" has v_k (DINOv3).
  """

  width: int
  prototypes: int = 65536
  bottleneck: int = 256
  hidden: int = 2048
  layers: int = 3
  last: LastLayer = "weight_norm"

  def __post_init__(self) -> None:
    if self.layers < 1:
      raise ValueError(f"layers: expected at least 1, got {self.layers}. Published heads have 3.")

  @classmethod
  def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]], width: int, mlp: str, last: str) -> "ProjectionHead":
    """Returns the head that has parameters of these shapes. A kernel without a scale is a "plain" last layer.

    Args:
      shapes: shapes of parameters by path.
      width: number of features.
      mlp: first part of the paths of the MLP.
      last: first part of the paths of the last layer.
    """
    hidden = shapes[f"{mlp}/layer0/kernel"][1]
    bottleneck, prototypes = shapes[f"{last}/last/kernel"]
    layers = sum(path.startswith(f"{mlp}/layer") and path.endswith("/kernel") for path in shapes)
    form: LastLayer = "weight_norm" if f"{last}/last/scale" in shapes else "plain"
    return cls(width, prototypes, bottleneck, hidden, layers, form)

  def init(self, key: PRNGKey, prefix: str) -> NewParams:
    """Returns initial parameters by path: the MLP and the last layer.

    Args:
      key: random key.
      prefix: first part of all paths, such as "task/head".
    """
    mlp, last = jax.random.split(key)
    return self.init_mlp(mlp, prefix) | self.init_last(last, prefix)

  def init_mlp(self, key: PRNGKey, prefix: str) -> NewParams:
    """Returns initial parameters of the MLP: normally distributed kernels and biases of zero.

    Args:
      key: random key.
      prefix: first part of all paths.
    """
    sizes = [self.width, *[self.hidden] * (self.layers - 1), self.bottleneck]
    params = {}
    for i, (own, inputs, outputs) in enumerate(
      zip(jax.random.split(key, self.layers), sizes[:-1], sizes[1:], strict=True)
    ):
      params[f"{prefix}/layer{i}/kernel"] = STDDEV * jax.random.normal(own, (inputs, outputs))
      params[f"{prefix}/layer{i}/bias"] = jnp.zeros(outputs)
    return params

  def init_last(self, key: PRNGKey, prefix: str) -> NewParams:
    """Returns initial parameters of the last layer.

    The kernels of "weight_norm" and "fixed_norm" are uniformly distributed, like those of PyTorch's `Linear`. The
    kernel of "plain" is normally distributed.

    Args:
      key: random key.
      prefix: first part of all paths.
    """
    shape = (self.bottleneck, self.prototypes)
    if self.last == "plain":
      return {f"{prefix}/last/kernel": STDDEV * jax.random.normal(key, shape)}
    bound = self.bottleneck**-0.5
    kernel = {f"{prefix}/last/kernel": jax.random.uniform(key, shape, minval=-bound, maxval=bound)}
    return kernel | ({f"{prefix}/last/scale": jnp.ones(self.prototypes)} if self.last == "weight_norm" else {})

  def apply(
    self, params: Params, prefix: str, x: Float[Tensor, "*B D"], dtype: DTypeLike = jnp.float32
  ) -> Float[Array, "*B K"]:
    """Returns the logits of features.

    Args:
      params: parameters by path. Other paths are ignored.
      prefix: first part of the head's paths.
      x: features (*B, D).
      dtype: type of the matrix products.

    Returns:
      Logits in float32. The products of the last layer are accumulated in float32 and are not rounded to `dtype`.
    """
    return self.apply_last(params, prefix, self.apply_mlp(params, prefix, x, dtype), dtype)

  def apply_mlp(
    self, params: Params, prefix: str, x: Float[Tensor, "*B D"], dtype: DTypeLike = jnp.float32
  ) -> Float[Array, "*B F"]:
    """Returns the output of the MLP, scaled to length 1, in float32. Several last layers may use it (iBOT).

    Args:
      params: parameters by path.
      prefix: first part of the paths of the MLP.
      x: features (*B, D).
      dtype: type of the matrix products.
    """
    x = jnp.asarray(x, dtype)
    for i in range(self.layers):
      kernel, bias = (params[f"{prefix}/layer{i}/{name}"].astype(dtype) for name in ("kernel", "bias"))
      x = x @ kernel + bias
      x = layers.gelu(x) if i < self.layers - 1 else x
    return vectors.scale_to_unit_length(x)

  def apply_last(
    self, params: Params, prefix: str, x: Float[Tensor, "*B F"], dtype: DTypeLike = jnp.float32
  ) -> Float[Array, "*B K"]:
    """Returns the logits of normalised features, in float32.

    Args:
      params: parameters by path.
      prefix: first part of the paths of the last layer.
      x: result of `apply_mlp`.
      dtype: type of the matrix product.
    """
    kernel = params[f"{prefix}/last/kernel"]
    logits = _multiply(x, kernel, dtype)
    if self.last == "plain":
      return logits
    # One number per logit costs less than a normalised copy of the kernel.
    scale = params[f"{prefix}/last/scale"] if self.last == "weight_norm" else 1.0
    return logits * (scale / jnp.sqrt(jnp.square(kernel).sum(0)))

  @staticmethod
  def sharding(prefix: str) -> models.ShardingRules:
    """Returns the rows of the sharding table for the head's parameters.

    Args:
      prefix: pattern for the first part of the paths. It may contain alternatives in a group.
    """
    return (
      (rf"{prefix}/layer\d+/kernel", ("fsdp", None)),
      (rf"{prefix}/layer\d+/bias", (None,)),
      (rf"{prefix}/last/kernel", (None, "fsdp")),
      (rf"{prefix}/last/scale", ("fsdp",)),
    )


# `preferred_element_type` alone would compute the backward pass in float32.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _multiply(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
  """Multiplies float32 matrices in `dtype`, with float32 sums and results, also in the backward pass."""
  return jnp.matmul(x.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)


def _multiply_forward(
  x: jax.Array, kernel: jax.Array, dtype: DTypeLike
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return _multiply(x, kernel, dtype), (x, kernel)


def _multiply_backward(
  dtype: DTypeLike, residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
  (x, kernel), cotangent = residuals, cotangent.astype(dtype)
  of_x = jnp.einsum("...k,fk->...f", cotangent, kernel.astype(dtype), preferred_element_type=jnp.float32)
  of_kernel = jnp.einsum("...f,...k->fk", x.astype(dtype), cotangent, preferred_element_type=jnp.float32)
  return of_x, of_kernel


_multiply.defvjp(_multiply_forward, _multiply_backward)
