"""Functions for tasks that hide patches: a check of the model, images as patches, and random choices of patches."""

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import models
from vit_jax.models.sizes import sides
from vit_jax.schema import ConfigError
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Tensor


def require_patch(model: models.Model) -> int:
  """Returns the side of the model's patches in pixels.

  Args:
    model: the model.

  Raises:
    ConfigError: if the tokens of the model are not patches of the image.
  """
  if model.patch is None:
    name = model.description.model.name
    raise ConfigError(f"the tokens of {name} are not patches of the image. Use a ViT such as ViT-B/16 or vit_2_4_32")
  return model.patch


def cut_patches(images: Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"], patch: int) -> Float[Tensor, "B N P P C"]:
  """Returns the patches of images, row by row.

  Args:
    images: whole images (B, H, W, C), or images already cut into patches (B, N, P*P*C).
    patch: side of the patches in pixels.
  """
  if images.ndim == 3:
    return rearrange(images, "b n (i j c) -> b n i j c", i=patch, j=patch)
  return rearrange(images, "b (y i) (x j) c -> b (y x) i j c", i=patch, j=patch)


def draw_orders(key: PRNGKey, batch: int, patches: int) -> Integer[Array, "B N"]:
  """Returns a random permutation of the patch numbers for each image.

  Args:
    key: random key.
    batch: number of images.
    patches: number of patches of an image.
  """
  return jnp.argsort(jax.random.uniform(key, (batch, patches)), axis=1)


def derive_mask_key(key: PRNGKey) -> PRNGKey:
  """Derives the random key of the masks from the augmentation key of the step."""
  return jax.random.fold_in(key, 0x6D61736B)  # any number that the augmentation does not fold in


def repeat_order(order: Integer[Tensor, " N"], batch: int) -> Integer[Array, "B N"]:
  """Returns the same order for all images, so that evaluation results do not depend on the batch.

  Args:
    order: patch numbers (N,).
    batch: number of images.
  """
  return jnp.broadcast_to(order, (batch, len(order)))


def count_patches(model: models.Model) -> int:
  """Returns the number of patches of an image."""
  height, width = sides(model.description.image_size)
  return height * width // require_patch(model) ** 2


def token_width(model: models.Model) -> int:
  """Returns the number of features of each token of the model."""
  size, channels = sides(model.description.image_size), model.description.channels
  images = jax.ShapeDtypeStruct((1, *size, channels), model.description.model.args["dtype"])
  return jax.eval_shape(lambda *given: model.outputs(*given)[0].tokens, model.shapes(), images).shape[-1]
