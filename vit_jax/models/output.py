"""What a model computes of images, of any family."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx

from vit_jax.models.intermediates import record
from vit_jax.schema import ConfigError, amount
from vit_jax.shapes import Array, Float, Shaped, Tensor

Features = Literal["head", "cls", "patches", "cls_patches"]


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
      f"images are {images.shape[1:]} (height, width, channels); allowed: multiples of {patch}, and "
      f"{amount(channels, 'channel')}"
    )


def classified(
  tokens: Float[Array, "B N D"] | Float[Array, "B H W D"], features: Float[Array, "B F"], head: nnx.Module | None
) -> Output:
  """The output of a model with at most one head, of tokens or of a map."""
  logits = record("logits", (features if head is None else head(features)).astype(jnp.float32))
  heads = {} if head is None else {"head": logits}
  return Output(tokens.reshape(tokens.shape[0], -1, tokens.shape[-1]), features, logits, heads)


def features_of(kind: Features, prefix: Mapping[str, int]) -> Callable[[Output], Float[Array, "B F"]]:
  """What is taken of an image: the function from an output to it.

  "head" is what goes into the head. The others are of the tokens after the last norm, float32: "cls" the class token,
  "patches" the mean of the patches, or of the places of a map, "cls_patches" both, one behind the other (DINO, Caron et
  al. 2021; DINOv2, Oquab et al. 2023). Where the last norm is of what is pooled, tokens are as the blocks leave them.

  Args:
    kind: of features.
    prefix: how many tokens of which name are in front of the patches.

  ConfigError for a class token that the model does not have.
  """
  if "cls" in kind and "cls" not in prefix:
    raise ConfigError(f"{kind!r} has a class token, and the model has none; allowed: 'head', 'patches'")
  first = sum(prefix.values())

  def features(output):
    if kind == "head":
      return output.features
    tokens = output.tokens.astype(jnp.float32)
    parts = {"cls": lambda: tokens[:, 0], "patches": lambda: tokens[:, first:].mean(1)}
    return jnp.concatenate([parts[part]() for part in kind.split("_")], axis=-1)

  return features
