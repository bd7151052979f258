"""The train step of a plain ViT as in big_vision, for comparison: Flax Linen, with only the batch sharded.

The code is written from a description of big_vision. It has pre-norm blocks with LayerNorm in float32 (epsilon 1e-6)
and tanh GELU, patches by a convolution of float32 images, and average pooling. The loss is softmax cross-entropy on
soft labels. The optimizer is AdamW with a bfloat16 first moment and decay that is independent of the rate. Matrix
products use bfloat16. Mixing, clipping and weight averaging are omitted.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SIZES = {
  "B/16": (768, 12, 12, 16),
  "L/16": (1024, 24, 16, 16),
  "H/14": (1280, 32, 16, 14),
}  # width, depth, heads, patch
CLASSES, SIDE = 1000, 224
LINEAR = {"kernel_init": nn.initializers.xavier_uniform(), "dtype": jnp.bfloat16}


class Block(nn.Module):
  """A pre-norm block from tokens (B, N, D) to tokens (B, N, D)."""

  heads: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies attention, then the MLP."""
    width = x.shape[-1]
    x += nn.MultiHeadDotProductAttention(self.heads, deterministic=True, **LINEAR)(nn.LayerNorm()(x))
    bias = nn.initializers.normal(1e-6)
    hidden = nn.gelu(nn.Dense(4 * width, bias_init=bias, **LINEAR)(nn.LayerNorm()(x)))
    return x + nn.Dense(width, bias_init=bias, **LINEAR)(hidden)


class ViT(nn.Module):
  """A ViT from images (B, H, W, C) to logits (B, V)."""

  width: int
  depth: int
  heads: int
  patch: int

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Applies patches, learned positions, blocks, norm, mean pooling and the head."""
    patch = (self.patch, self.patch)
    x = nn.Conv(self.width, patch, strides=patch, padding="VALID", dtype=jnp.bfloat16)(images.astype(jnp.bfloat16))
    x = x.reshape(len(x), -1, self.width)
    x += self.param("position", nn.initializers.normal(self.width**-0.5), (1, *x.shape[1:]), x.dtype)
    for _ in range(self.depth):
      x = Block(self.heads)(x)
    return nn.Dense(CLASSES, kernel_init=nn.initializers.zeros)(nn.LayerNorm()(x).mean(1))


def compile_step(name: str, devices: list[jax.Device], images: int) -> Any:
  """Compiles the step of a model.

  Args:
    name: a key of `SIZES`.
    devices: devices to compile for.
    images: number of images per device.
  """
  model = ViT(*SIZES[name])
  batch = jax.ShapeDtypeStruct((images * len(devices), SIDE, SIDE, 3), jnp.float32)
  params = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  kernels = jax.tree.map(lambda leaf: leaf.ndim > 1, params)
  optimizer = optax.chain(
    optax.scale_by_adam(mu_dtype=jnp.bfloat16),
    optax.scale(1e-3),
    optax.add_decayed_weights(1e-4, mask=kernels),
    optax.scale_by_schedule(lambda step: -jnp.minimum(1.0, step / 10_000)),
  )

  def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, dict[str, Any]]:
    def loss(params: Any) -> jax.Array:
      logits = jnp.asarray(model.apply({"params": params}, images))
      return -(jax.nn.log_softmax(logits) * labels).sum(-1).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients)))
    return optax.apply_updates(params, updates), state, {"loss": value, "l2_grads": norm}

  mesh = Mesh(np.array(devices), ("data",))
  whole, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))

  def shapes(tree: object, sharding: jax.sharding.Sharding) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)

  labels = jax.ShapeDtypeStruct((batch.shape[0], CLASSES), jnp.float32)
  jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(whole, whole, whole))
  state = jax.eval_shape(optimizer.init, params)
  return jitted.lower(shapes(params, whole), shapes(state, whole), *shapes((batch, labels), split)).compile()
