"""A model: an MLP that processes each patch separately, followed by the mean over all patches ("bag of patches")."""

import jax.numpy as jnp
from flax import nnx

from vit_jax import register
from vit_jax.models import layers
from vit_jax.models.output import Output, classify
from vit_jax.models.parameters import Keys
from vit_jax.models.sizes import Dtype, Width, grid
from vit_jax.schema import Count


class PatchMlp(nnx.Module):
  """A bag-of-patches classifier from images (B, H, W, C) to logits (B, V).

  Patches become tokens. An MLP processes each token. A linear head classifies the mean of the tokens.

  Args:
    embedding: converts images to tokens.
    mlp: processes each token.
    norm: normalizes the tokens.
    head: linear classifier, or None without classes.
  """

  def __init__(self, embedding, mlp, norm, head):
    self.embedding, self.mlp, self.norm, self.head = embedding, mlp, norm, head

  def outputs(self, images, key=None) -> Output:
    """Returns tokens (B, N, D), features (B, D) and logits (B, V).

    Args:
      images: normalised images (B, H, W, C).
      key: random key for the MLP.
    """
    tokens = self.embedding(images)
    tokens = tokens.reshape(tokens.shape[0], -1, tokens.shape[-1])
    tokens = self.norm(tokens + self.mlp(tokens, key=key))
    return classify(tokens, tokens.mean(axis=1), self.head)


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
  """Builds the model.

  Args:
    image_size: image size in pixels, one number or (height, width).
    channels: number of image channels.
    classes: number of classes. With 0 the model has no head.
    rngs: random keys of the parameters.
    patch: patch size in pixels.
    width: size of a token.
    dtype: type of the computation.

  Raises:
    ConfigError: the patch size does not divide the image size.
  """
  grid(image_size, patch)
  common = {"dtype": jnp.dtype(dtype), "rngs": rngs}
  return PatchMlp(
    layers.PatchEmbedding(channels, width, patch, kernel_init=layers.xavier, **common),
    layers.Mlp(width, 2 * width, gelu="tanh", **common),
    layers.LayerNorm(width, eps=1e-6, dtype=jnp.dtype(dtype)),
    layers.Linear((width,), (classes,), **common) if classes else None,
  )
