"""What stages that hide patches share: which models have them, images as patches, and the draw of those that count."""

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import models
from vit_jax.models.sizes import sides
from vit_jax.schema import ConfigError
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Tensor


def check(model: models.Model) -> None:
  """ConfigError unless the model's tokens are patches of the image."""
  if model.patch is None:
    name = model.description.model.name
    raise ConfigError(f"the tokens of {name} are no patches of the image; take a ViT such as ViT-B/16 or vit_2_4_32")


def patches(images: Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"], patch: int) -> Float[Tensor, "B N P P C"]:
  """Images, or such that are cut already, as patches row by row."""
  if images.ndim == 3:
    return rearrange(images, "b n (i j c) -> b n i j c", i=patch, j=patch)
  return rearrange(images, "b (y i) (x j) c -> b (y x) i j c", i=patch, j=patch)


def orders(key: PRNGKey, batch: int, patches: int) -> Integer[Array, "B N"]:
  """A permutation of the numbers of patches for each image."""
  return jnp.argsort(jax.random.uniform(key, (batch, patches)), axis=1)


def drawn(key: PRNGKey) -> PRNGKey:
  """The key of the masks, of that of a step's augmentation."""
  return jax.random.fold_in(key, 0x6D61736B)  # any number that no augmentation folds in


def same(order: Integer[Tensor, " N"], batch: int) -> Integer[Array, "B N"]:
  """One order for all images: what is measured so depends on no batch."""
  return jnp.broadcast_to(order, (batch, len(order)))


def count(model: models.Model) -> int:
  """Patches of an image."""
  height, width = sides(model.description.image_size)
  return height * width // model.patch**2


def width(model: models.Model) -> int:
  """Returns the number of features of each of the model's tokens."""
  size, channels = sides(model.description.image_size), model.description.channels
  images = jax.ShapeDtypeStruct((1, *size, channels), model.description.model.args["dtype"])
  return jax.eval_shape(lambda *given: model.outputs(*given)[0].tokens, model.shapes(), images).shape[-1]
