"""The output type of all model families, and the features that can be computed from it."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx

from vit_jax.models.intermediates import record
from vit_jax.schema import ConfigError, format_amount, get_current_key
from vit_jax.schema.texts import format_flag
from vit_jax.shapes import Array, Float, Shaped, Tensor

Features = Literal["head", "cls", "patches", "cls_patches"]


class Output(NamedTuple):
  """The results of one forward pass, for all stages of training.

  Attributes:
    tokens: tokens after the last norm, prefix tokens first, or the last feature map, (B, N, D).
    features: inputs of the head, (B, D).
    logits: float32 logits, (B, V). Equal to the features if the model has no head.
    heads: {name: float32 logits of a head}, (B, V) each. `logits` is their mean.
  """

  tokens: Float[Array, "B N D"]
  features: Float[Array, "B D"]
  logits: Float[Array, "B V"]
  heads: dict[str, Float[Array, "B V"]]


def check_shape(images: Shaped[Tensor, "B ..."], *shapes: tuple[int, ...] | None) -> None:
  """Checks the shape of images.

  Args:
    images: images, (B, ...).
    *shapes: allowed shapes without the batch axis. The first one is shown in the message.

  Raises:
    ValueError: if the images have none of the shapes.
  """
  if images.shape[1:] not in shapes:
    raise ValueError(
      f"images have the shape {images.shape[1:]} (height, width, channels), but the model was built for {shapes[0]}"
    )


def check_patches(images: Shaped[Tensor, "B H W C"], patch: int, channels: int) -> None:
  """Checks that images consist of whole patches and have the right number of channels.

  Args:
    images: images, (B, H, W, C).
    patch: side of a patch in pixels.
    channels: required number of channels.

  Raises:
    ValueError: if a side is not a positive multiple of the patch, or if the number of channels differs.
  """
  if images.shape[1] % patch or images.shape[2] % patch or images.shape[3] != channels or 0 in images.shape:
    raise ValueError(
      f"images have the shape {images.shape[1:]} (height, width, channels). Allowed: multiples of {patch}, and "
      f"{format_amount(channels, 'channel')}"
    )


def classify(
  tokens: Float[Array, "B N D"] | Float[Array, "B H W D"], features: Float[Array, "B F"], head: nnx.Module | None
) -> Output:
  """Builds the output of a model that has at most one head.

  Args:
    tokens: tokens (B, N, D), or a feature map (B, H, W, D).
    features: inputs of the head, (B, F).
    head: module from features to logits, or None.
  """
  logits = record("logits", (features if head is None else head(features)).astype(jnp.float32))
  heads = {} if head is None else {"head": logits}
  return Output(tokens.reshape(tokens.shape[0], -1, tokens.shape[-1]), features, logits, heads)


def select_features(kind: Features, prefix: Mapping[str, int]) -> Callable[[Output], Float[Array, "B F"]]:
  """Returns the function from an output to the features of each image.

  The kinds are:

  - "head": the input of the head.
  - "cls": the class token.
  - "patches": the mean of the patches, or of the positions of a feature map.
  - "cls_patches": the class token and the mean of the patches, concatenated.

  The last three kinds are float32 and use the tokens after the last norm (DINO, Caron et al. 2021; DINOv2, Oquab et al.
  2023). If the last norm is applied after pooling, these kinds use the output of the blocks.

  Args:
    kind: kind of features.
    prefix: {name: number} of the tokens in front of the patches.

  Raises:
    ConfigError: if the kind needs a class token that the model does not have.
  """
  if "cls" in kind and "cls" not in prefix:
    key = get_current_key()
    fix = f"Use {format_flag(key.lstrip('-'), 'patches')}" if key.startswith(("config.", "--")) else "Use 'patches'"
    raise ConfigError(f"{kind!r} needs a class token, but the model does not have one. {fix} or 'head'")
  first = sum(prefix.values())

  def features(output: Output) -> Float[Array, "B F"]:
    if kind == "head":
      return output.features
    tokens = output.tokens.astype(jnp.float32)
    parts = {"cls": lambda: tokens[:, 0], "patches": lambda: tokens[:, first:].mean(1)}
    return jnp.concatenate([parts[part]() for part in kind.split("_")], axis=-1)

  return features
