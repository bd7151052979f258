"""Warps: (keys, images) -> images, uint8 or float32 in 0..255; each image moves by its own key."""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from vit_jax import schema
from vit_jax.schema import Fraction, Positive
from vit_jax.shapes import Array, Float, Key, Tensor, UInt8


def no_warp() -> Callable:
  """Images as they are."""
  return lambda keys, images: images


def affine(
  *,
  degrees: Annotated[float, schema.Range(0, 180)] = 10.0,
  translate: Fraction = 0.1,
  scale: tuple[Positive, Positive] = (0.9, 1.1),
  shear: Annotated[float, schema.Range(0, 80)] = 0.0,
  probability: Fraction = 1.0,
) -> Callable:
  """A random rotation, zoom, horizontal shear and shift of each image about its centre; bilinear, black outside.

  Uniform in +-degrees, +-translate (share of the side, each axis), scale, +-shear (degrees); applied with
  `probability`. Gathers single pixels: cheap at 32 px on any device, slow on TPUs at 224 px.
  """
  if scale[0] > scale[1]:
    raise schema.ConfigError(f"{scale} goes from high to low; write (low, high)", "scale")

  def warp(keys: Key[Array, " B"], images: UInt8[Tensor, "B H W 3"]) -> Float[Array, "B H W 3"]:
    batch, height, width, _ = images.shape
    draw = jax.vmap(lambda key: jax.random.uniform(key, (6,)))(keys)
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


def warp_affine(
  images: UInt8[Tensor, "B H W 3"],
  angle: Float[Tensor, " B"],
  skew: Float[Tensor, " B"],
  zoom: Float[Tensor, " B"],
  shift: Float[Tensor, "B 2"],
) -> Float[Array, "B H W 3"]:
  """Each image turned, skewed and zoomed about its centre, then shifted.

  Output pixel p takes its value at c + A^-1 (p - c - shift), A = zoom R(angle) [[1, tan skew], [0, 1]] in (x, y);
  angle counter-clockwise and skew in radians, shift in pixels (down, right). Float32.
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


WARPS = {"none": no_warp, "affine": affine}
