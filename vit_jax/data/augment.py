"""Augmentation on the device: uint8 images and targets in, normalised floats and soft targets out.

The functions of the tables in `warping`, `mixing` and `erasing` take what the run supplies and the arguments of the
config, and return what runs in the step. What changes one image (warps, erasing) follows from the run's seed and the
example's `draw`, whatever its batch; what mixes images follows from the key of the step. Neither depends on how the
batch is laid over devices.

Images are [B, H, W, 3], or with `patch` P already cut: [B, N, P*P*3], patches row by row, each as row, column, channel.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import rng
from vit_jax.data.erasing import ERASINGS
from vit_jax.data.mixing import MIXINGS
from vit_jax.data.warping import WARPS
from vit_jax.schema import Choice, Duration, Positive, at, make
from vit_jax.shapes import Array, Count, Float, Integer, Num, PRNGKey, Tensor, UInt8

Channels = tuple[float, float, float]
Scales = tuple[Positive, Positive, Positive]


def build(
  dtype: np.dtype | type | str,
  seed: Count,
  patch: int | None,
  steps_of: Callable[[Duration], int],
  *,
  mean: Channels = (0.5, 0.5, 0.5),
  std: Scales = (0.5, 0.5, 0.5),
  warp: Annotated[Choice, WARPS] = Choice("none"),
  mixing: Annotated[Choice, MIXINGS] = Choice("none"),
  erasing: Annotated[Choice, ERASINGS] = Choice("none"),
) -> Callable:
  """The training augmentation: (key, images, targets, draws, step) -> (images, targets).

  Warps, mixes, normalises with `mean` and `std` of values in 0..1, then erases. Mixing before normalising differs from
  the other order by rounding only, and devices that hold partners exchange bytes instead of floats.
  """
  assert patch is None or warp.name == "none", "a warp needs whole images"
  with at("warp"):
    bend = make(warp, WARPS)
  with at("mixing"):
    mix = make(mixing, MIXINGS, patch, steps_of)
  with at("erasing"):
    erase = make(erasing, ERASINGS, patch)

  def augment(
    key: PRNGKey,
    images: UInt8[Tensor, " B *image"],
    targets: Float[Tensor, "B V"],
    draws: Integer[Tensor, " B"],
    step: Count,
  ) -> tuple[Float[Array, " B *image"], Float[Tensor, "B V"]]:
    def keys(name):
      return jax.vmap(jax.random.fold_in, (None, 0))(rng.stream(seed, 0, name), draws)

    images, targets = mix(key, bend(keys("warp"), images), targets, step)
    return erase(keys("erasing"), normalise(images, dtype, mean=mean, std=std)), targets

  return augment


def pixels(
  images: Float[Tensor, "*image"], *, mean: Channels = (0.5, 0.5, 0.5), std: Scales = (0.5, 0.5, 0.5)
) -> Float[Array, "*image"]:
  """What `normalise` made, in any type, back to values of 0..1 in float32; erased parts may lie outside."""
  mean, std = (jnp.tile(jnp.asarray(x, jnp.float32), images.shape[-1] // 3) for x in (mean, std))
  return images.astype(jnp.float32) * std + mean


def normalise(
  images: Num[Tensor, "*image"],
  dtype: np.dtype | type | str = jnp.float32,
  *,
  mean: Channels = (0.5, 0.5, 0.5),
  std: Scales = (0.5, 0.5, 0.5),
) -> Float[Array, "*image"]:
  """Pixels 0..255 -> (pixel / 255 - mean) / std, in `dtype`; computed in float32 and rounded once.

  The last axis holds the three channels once (images) or many times over (patches).
  """
  mean, std = (jnp.tile(jnp.asarray(x, jnp.float32), images.shape[-1] // 3) for x in (mean, std))
  return (images.astype(jnp.float32) * (1 / (255 * std)) - mean / std).astype(dtype)
