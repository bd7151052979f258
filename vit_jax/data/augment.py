"""Augmentation on the device: converts uint8 images and targets to normalised floats and soft targets.

The functions in the tables of `warping`, `mixing` and `erasing` take values of the run and the arguments of the
config. They return the functions that run in the step. Changes of a single image (warps, erasing) depend on the run's
seed and on the `draw` of the example, but not on its batch. Mixing of images depends on the key of the step. Both are
independent of the distribution of the batch over devices.

Images are (B, H, W, 3). With `patch` P, images are divided into patches (B, N, P * P * 3), row by row. The values of a
patch have the order (row, column, channel).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import rng
from vit_jax.data.erasing import ERASINGS
from vit_jax.data.mixup import MIXINGS
from vit_jax.data.warping import WARPS
from vit_jax.schema import Choice, Duration, Positive, enter_key, make, texts
from vit_jax.shapes import Array, Count, Float, Integer, Num, PRNGKey, Tensor, UInt8

# Largest difference between equal means or standard deviations. Publishers round them to three digits. The error
# is at most about an eighth of 1 / 255, the difference between two neighbouring values of a pixel.
TOLERANCE = 5e-4

Channels = tuple[float, float, float]
Scales = tuple[Positive, Positive, Positive]
# (key, images, targets, draws, step) -> (images, targets)
Augmentation = Callable[[PRNGKey, Tensor, Tensor, Tensor, Count], tuple[Array, Tensor]]


def build(
  dtype: np.dtype | type | str,
  seed: Count,
  patch: int | None,
  count_steps: Callable[[Duration], int],
  *,
  mean: Channels = (0.5, 0.5, 0.5),
  std: Scales = (0.5, 0.5, 0.5),
  warp: Annotated[Choice, WARPS] = Choice("none"),
  mixing: Annotated[Choice, MIXINGS] = Choice("none"),
  erasing: Annotated[Choice, ERASINGS] = Choice("none"),
) -> Augmentation:
  """Returns the training augmentation: a function (key, images, targets, draws, step) that returns (images, targets).

  The function warps, mixes, normalises, and then erases. Images are mixed before they are normalised, so that devices
  exchange bytes instead of floats. The opposite order would give the same result up to rounding.

  Args:
    dtype: type of the augmented images.
    seed: seed of the run.
    patch: side of a patch in pixels if images are divided into patches. None: images are not divided.
    count_steps: function that converts a duration to a number of steps.
    mean: mean of each channel, for pixels from 0 to 1.
    std: standard deviation of each channel, for pixels from 0 to 1.
    warp: geometric change of each image, see `warping`.
    mixing: mixing of images and targets, see `mixing`.
    erasing: erasing of boxes, see `erasing`.

  Raises:
    ConfigError: if an argument of a choice is invalid.
  """
  assert patch is None or warp.name == "none", "a warp needs whole images"
  with enter_key("warp"):
    bend = make(warp, WARPS)
  with enter_key("mixing"):
    mix = make(mixing, MIXINGS, patch, count_steps)
  with enter_key("erasing"):
    erase = make(erasing, ERASINGS, patch)

  def augment(
    key: PRNGKey,
    images: UInt8[Tensor, " B *image"],
    targets: Float[Tensor, "B V"],
    draws: Integer[Tensor, " B"],
    step: Count,
  ) -> tuple[Float[Array, " B *image"], Float[Tensor, "B V"]]:
    def keys(name: str) -> jax.Array:
      return jax.vmap(jax.random.fold_in, (None, 0))(rng.derive_key(seed, 0, name), draws)

    images, targets = mix(key, bend(keys("warp"), images), targets, step)
    return erase(keys("erasing"), normalise(images, dtype, mean=mean, std=std)), targets

  return augment


def find_normalisation_flags(wanted: Mapping[str, Sequence[float]], own: Mapping[str, Sequence[float]]) -> str | None:
  """Returns the flags that set the normalisation of weights, if images have a different one.

  A different normalisation reduces the accuracy. Differences up to `TOLERANCE` are rounding errors.

  Args:
    wanted: "mean" and "std" of the images for the weights, as far as they are known.
    own: "mean" and "std" of the images.

  Returns:
    The flags, or None if the normalisation is equal.
  """
  # Weights for gray images have one value, which applies to all channels.
  whole = {key: tuple(values) * (3 if len(values) == 1 else 1) for key, values in wanted.items()}
  other = {key: values for key, values in whole.items() if np.abs(np.subtract(values, own[key])).max() > TOLERANCE}
  return " ".join(texts.format_flag(f"config.data.{key}", values) for key, values in other.items()) or None


def denormalise(
  images: Float[Tensor, "*image"], *, mean: Channels = (0.5, 0.5, 0.5), std: Scales = (0.5, 0.5, 0.5)
) -> Float[Array, "*image"]:
  """Inverts `normalise`: returns pixels from 0 to 1 in float32. Values of erased boxes may be outside of this range.

  Args:
    images: normalised images of any type.
    mean: mean of each channel.
    std: standard deviation of each channel.
  """
  offset, scale = _repeat_channels(mean, images), _repeat_channels(std, images)
  return jnp.asarray(images, jnp.float32) * scale + offset


def normalise(
  images: Num[Tensor, "*image"],
  dtype: np.dtype | type | str = jnp.float32,
  *,
  mean: Channels = (0.5, 0.5, 0.5),
  std: Scales = (0.5, 0.5, 0.5),
) -> Float[Array, "*image"]:
  """Returns (pixel / 255 - mean) / std for pixels from 0 to 255, computed in float32 and rounded once.

  The last axis contains the three channels once (images) or repeatedly (patches).

  Args:
    images: pixels from 0 to 255.
    dtype: type of the result.
    mean: mean of each channel, for pixels from 0 to 1.
    std: standard deviation of each channel, for pixels from 0 to 1.
  """
  offset, scale = _repeat_channels(mean, images), _repeat_channels(std, images)
  return (jnp.asarray(images, jnp.float32) * (1 / (255 * scale)) - offset / scale).astype(dtype)


def _repeat_channels(values: Channels, images: Num[Tensor, "..."]) -> Float[Array, " C"]:
  """Returns the values of the three channels, repeated for the last axis of images or patches."""
  return jnp.tile(jnp.asarray(values, jnp.float32), images.shape[-1] // 3)
