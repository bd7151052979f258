"""A model: an MLP that sees each patch by itself, and the mean over all patches ("bag of patches")."""

import jax.numpy as jnp
from flax import nnx

from vit_jax import register
from vit_jax.models import layers
from vit_jax.models.output import Output, classified
from vit_jax.models.parameters import Keys
from vit_jax.models.sizes import Dtype, Width, grid
from vit_jax.schema import Count


class PatchMlp(nnx.Module):
  """[B, H, W, C] -> [B, V]: patches to tokens, an MLP for each token, their mean, a linear head."""

  def __init__(self, embedding, mlp, norm, head):
    self.embedding, self.mlp, self.norm, self.head = embedding, mlp, norm, head

  def outputs(self, images, key=None) -> Output:
    """Returns tokens [B, N, D], features [B, D] and logits [B, V] of normalised images."""
    tokens = self.embedding(images)
    tokens = tokens.reshape(tokens.shape[0], -1, tokens.shape[-1])
    tokens = self.norm(tokens + self.mlp(tokens, key=key))
    return classified(tokens, tokens.mean(axis=1), self.head)


@register.model("patch_mlp", image_size=32, classes=10, sharding=((r"embedding/kernel", (None, None, None, "fsdp")),
                                                                  (r"embedding/bias", (None,))))  # fmt: skip
def patch_mlp(
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: Keys,
  *,
  patch: Count = 8,
  width: Width = 64,
  dtype: Dtype = "float32",
) -> PatchMlp:
  """Builds the model; ConfigError if the patch does not divide the image."""
  grid(image_size, patch)
  common = {"dtype": jnp.dtype(dtype), "rngs": rngs}
  return PatchMlp(
    layers.PatchEmbedding(channels, width, patch, kernel_init=layers.xavier, **common),
    layers.Mlp(width, 2 * width, gelu="tanh", **common),
    layers.LayerNorm(width, eps=1e-6, dtype=jnp.dtype(dtype)),
    layers.Linear((width,), (classes,), **common) if classes else None,
  )
