"""What a model computes of images, of any family."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx

from vit_jax.models.intermediates import record
from vit_jax.shapes import Array, Float, Shaped, Tensor


class Output(NamedTuple):
  """Everything that a stage of training may want of one forward pass."""

  tokens: Float[Array, "B N D"]  # after the last norm, prefix tokens in front; of a convolutional model its last map
  features: Float[Array, "B D"]  # that go into the head
  logits: Float[Array, "B V"]  # float32; the features where the model has no head
  heads: dict[str, Float[Array, "B V"]]  # float32, of each head by its name; `logits` are their mean


def check_shape(images: Shaped[Tensor, "B ..."], *shapes: tuple[int, ...] | None) -> None:
  """Raises ValueError for images that have, without the batch axis, none of the shapes."""
  if images.shape[1:] not in shapes:
    raise ValueError(f"images are {images.shape[1:]} (height, width, channels); the model was built for {shapes[0]}")


def check_patches(images: Shaped[Tensor, "B H W C"], patch: int, channels: int) -> None:
  """Raises ValueError for images that no whole patches fill, or of other channels."""
  if images.shape[1] % patch or images.shape[2] % patch or images.shape[3] != channels or 0 in images.shape:
    raise ValueError(
      f"images are {images.shape[1:]} (height, width, channels); allowed: multiples of {patch}, and {channels} channels"
    )


def classified(
  tokens: Float[Array, "B N D"] | Float[Array, "B H W D"], features: Float[Array, "B F"], head: nnx.Module | None
) -> Output:
  """The output of a model with at most one head, of tokens or of a map."""
  logits = record("logits", (features if head is None else head(features)).astype(jnp.float32))
  heads = {} if head is None else {"head": logits}
  return Output(tokens.reshape(tokens.shape[0], -1, tokens.shape[-1]), features, logits, heads)
