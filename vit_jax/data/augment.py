"""Augmentation on the device, pure functions of a key: uint8 images in, normalised floats and soft labels out.

The table's functions take the arguments of the config and return what runs in the step. Draws for row i of the global
batch depend on the key and on i alone, not on how the batch is laid over devices.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from vit_jax import config
from vit_jax.config import Fraction, Positive

Channels = tuple[float, float, float]
Scales = tuple[Positive, Positive, Positive]


def build(
  classes: int,
  dtype,
  *,
  mean: Channels = (0.5, 0.5, 0.5),
  std: Scales = (0.5, 0.5, 0.5),
  warp: config.Choice = config.Choice("none"),
  mixing: config.Choice = config.Choice("none"),
) -> Callable:
  """The training augmentation: (key, images uint8 [B, H, W, 3], labels [B]) -> (images [B, H, W, 3], targets [B, V]).

  Warps, then normalises with `mean` and `std` of values in 0..1, then mixes images and one-hot float32 targets.
  """
  bend, mix = build_part(warp, WARPS, "config.data.warp"), build_part(mixing, MIXINGS, "config.data.mixing")

  def augment(key, images, labels):
    warp_key, mix_key = jax.random.split(key)
    images = normalise(bend(warp_key, images), dtype, mean=mean, std=std)
    return mix(mix_key, images, jax.nn.one_hot(labels, classes, dtype=jnp.float32))

  return augment


def build_part(choice: config.Choice, table, where: str) -> Callable:
  """The function that a choice of a warp or a mixing stands for."""
  function = config.lookup(table, choice.name, where)
  return function(**config.bind(choice, (function,), where).args)


def normalise(images, dtype=jnp.float32, *, mean: Channels = (0.5, 0.5, 0.5), std: Scales = (0.5, 0.5, 0.5)):
  """Pixels 0..255 -> (pixel / 255 - mean) / std, in `dtype`; computed in float32 and rounded once."""
  mean, std = jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32)
  return (images.astype(jnp.float32) * (1 / (255 * std)) - mean / std).astype(dtype)


# Warps: (key, images uint8) -> images, uint8 or float32 in 0..255.


def no_warp():
  """Images as they are."""
  return lambda key, images: images


def affine(
  *,
  degrees: Annotated[float, config.Range(0, 180)] = 10.0,
  translate: Fraction = 0.1,
  scale: tuple[Positive, Positive] = (0.9, 1.1),
  shear: Annotated[float, config.Range(0, 80)] = 0.0,
  probability: Fraction = 1.0,
):
  """A random rotation, zoom, horizontal shear and shift of each image about its centre; bilinear, black outside.

  Uniform in +-degrees, +-translate (share of the side, each axis), scale, +-shear (degrees); applied with
  `probability`. Gathers single pixels: cheap at 32 px on any device, slow on TPUs at 224 px.
  """
  if scale[0] > scale[1]:
    raise config.ConfigError(f"warp.scale: {scale} goes from high to low; write (low, high)")

  def warp(key, images):
    batch, height, width, _ = images.shape
    draw = jax.random.uniform(key, (batch, 6))
    applied = draw[:, 5] < probability
    angle, skew = (jnp.deg2rad(limit * (2 * draw[:, i] - 1)) for i, limit in ((0, degrees), (1, shear)))
    zoom = scale[0] + draw[:, 2] * (scale[1] - scale[0])
    shift = translate * (2 * draw[:, 3:5] - 1) * jnp.array([height, width])
    # The identity, whose bilinear weights are exactly 0 and 1, for images that stay as they are.
    still = (jnp.zeros(batch), jnp.zeros(batch), jnp.ones(batch), jnp.zeros((batch, 2)))
    numbers = (
      jnp.where(applied.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
      for a, b in zip((angle, skew, zoom, shift), still, strict=True)
    )
    return warp_affine(images, *numbers)

  return warp


def warp_affine(images, angle, skew, zoom, shift):
  """[B, H, W, 3] uint8 -> float32 [B, H, W, 3]: each image turned, skewed and zoomed about its centre, then shifted.

  Output pixel p takes its value at c + A^-1 (p - c - shift), A = zoom R(angle) [[1, tan skew], [0, 1]] in (x, y);
  angle counter-clockwise and skew in radians [B], zoom [B], shift in pixels (down, right) [B, 2].
  """
  batch, height, width, _ = images.shape
  # The y axis points down, so a counter-clockwise turn has the sine's sign changed, and its inverse changes it back.
  cos, sin, tan = jnp.cos(angle) / zoom, jnp.sin(angle) / zoom, jnp.tan(skew)
  inverse = jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin - tan * cos, cos - tan * sin], -1)], axis=1)
  middle = jnp.array([(height - 1) / 2, (width - 1) / 2])
  grid = jnp.stack(jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij"), axis=-1) - middle
  # As a matrix product, which XLA does not fuse into the gathers below, where it would be done again for each corner.
  exact = jax.lax.Precision.HIGHEST
  back = (
    jnp.einsum("bij,hwj->bihw", inverse, grid, precision=exact)
    - jnp.einsum("bij,bj->bi", inverse, shift, precision=exact)[..., None, None]
  )
  back_y, back_x = back[:, 0] + middle[0], back[:, 1] + middle[1]
  # A border of black pixels, one before and two behind, into which every point outside falls.
  back_y, back_x = jnp.clip(back_y + 1, 0, height + 1), jnp.clip(back_x + 1, 0, width + 1)
  floor_y, floor_x = jnp.floor(back_y), jnp.floor(back_x)
  part_y, part_x = back_y - floor_y, back_x - floor_x
  stride = width + 3
  place = (floor_y.astype(jnp.int32) * stride + floor_x.astype(jnp.int32)).reshape(batch, -1)

  # One 32-bit word per pixel, so that a corner is one gather instead of three; and colours stay separate planes until
  # the end: on CPU, [64, 32, 32, 3] takes 1 ms this way and 3.3 ms with the channels innermost.
  red, green, blue = (images[..., i].astype(jnp.uint32) for i in range(3))
  words = jnp.pad(red | green << 8 | blue << 16, ((0, 0), (1, 2), (1, 2))).reshape(batch, -1)
  corners = []
  for down, weight_y in ((0, 1 - part_y), (1, part_y)):
    for right, weight_x in ((0, 1 - part_x), (1, part_x)):
      at = place + down * stride + right
      word = jnp.take_along_axis(words, at, axis=1, mode="promise_in_bounds").reshape(part_y.shape)
      corners.append((word, weight_y * weight_x))
  planes = [sum((word >> bits & 255).astype(jnp.float32) * weight for word, weight in corners) for bits in (0, 8, 16)]
  return jnp.stack(planes, axis=-1)


# Mixings: (key, images [B, H, W, C], targets [B, V]) -> the same, mixed. One draw for the batch.


def no_mixing():
  """Images and targets as they are."""
  return lambda key, images, targets: (images, targets)


def mixup(*, alpha: Positive = 0.2):
  """Each example mixed with its partner, with a share from Beta(alpha, alpha) (Zhang et al. 2017)."""
  return mixup_cutmix(mixup_alpha=alpha, cutmix_alpha=1.0, switch=0.0)


def cutmix(*, alpha: Positive = 1.0):
  """A box of each image replaced by its partner's, of area 1 - Beta(alpha, alpha) (Yun et al. 2019)."""
  return mixup_cutmix(mixup_alpha=1.0, cutmix_alpha=alpha, switch=1.0)


def mixup_cutmix(*, mixup_alpha: Positive = 0.8, cutmix_alpha: Positive = 1.0, switch: Fraction = 0.5):
  """Cutmix with probability `switch`, else mixup: one of the two for the whole batch of a step."""

  def apply(key, images, targets):
    which, share_key, centre_key = jax.random.split(key, 3)
    height, width = images.shape[1:3]
    alphas = jnp.array([mixup_alpha, cutmix_alpha])
    share, uncut = jax.random.beta(share_key, alphas, alphas)
    centre = jnp.floor(jax.random.uniform(centre_key, (2,)) * jnp.array([height, width])).astype(jnp.int32)
    mask, kept = cut_mask(height, width, uncut, centre)
    cutting = jax.random.uniform(which) < switch
    return blend(images, targets, jnp.where(cutting, mask, share), jnp.where(cutting, kept, share))

  return apply


def cut_mask(height: int, width: int, share, centre):
  """Mask [H, W], 0 inside the box and 1 outside, and its mean: what is kept of the first image.

  The box has sides int(H sqrt(1 - share)) and int(W sqrt(1 - share)) and is clipped at the border.
  """
  axes = []
  for side, middle in ((height, centre[0]), (width, centre[1])):
    length = jnp.floor(side * jnp.sqrt(1 - share)).astype(jnp.int32)
    first = middle - length // 2
    axes.append((jnp.arange(side) >= first) & (jnp.arange(side) < first + length))
  mask = 1 - (axes[0][:, None] & axes[1][None, :]).astype(jnp.float32)
  return mask, mask.mean()


def blend(images, targets, weight, share):
  """`weight` (a number or [H, W]) of each image, `share` of its target; the rest from its partner, batch reversed."""
  weight = jnp.broadcast_to(jnp.asarray(weight), images.shape[1:3])[..., None].astype(images.dtype)
  return images * weight + images[::-1] * (1 - weight), targets * share + targets[::-1] * (1 - share)


WARPS = {"none": no_warp, "affine": affine}
MIXINGS = {"none": no_mixing, "mixup": mixup, "cutmix": cutmix, "mixup_cutmix": mixup_cutmix}
