"""Erasing of random boxes in normalised images on the device.

An erasing is a function (keys, images) that returns images of the same shape. Each image has its own key.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import schema
from vit_jax.data import coordinates
from vit_jax.schema import Fraction, Positive
from vit_jax.shapes import Array, Bool, Float, Int, Key, PRNGKey, Tensor

Erasing = Callable[[Array, Tensor], Tensor]  # (keys, images) -> images

ERASING_TRIES = 10


def no_erasing(patch: int | None) -> Erasing:
  """Returns an erasing function that does not change images.

  Args:
    patch: not used.
  """
  return lambda keys, images: images


def random_erasing(
  patch: int | None,
  *,
  probability: Fraction = 0.25,
  area: tuple[Positive, Fraction] = (0.02, 1 / 3),
  aspect: tuple[Positive, Positive] = (0.3, 1 / 0.3),
  fill: Literal["pixel", "colour", "zero"] = "pixel",
  count: Annotated[int, schema.Range(1, 16)] = 1,
) -> Erasing:
  """Returns the function that paints over boxes of an image (Zhong et al. 2020, in timm's version).

  The ratio of height to width of a box is log-uniform. A box must be smaller than the image in both directions. A box
  that does not fit after ten attempts is left out.

  Args:
    patch: side of a patch in pixels if images are divided into patches. None: images are not divided.
    probability: probability that an image is changed.
    area: smallest and largest share of the image's area, for all boxes together. Shares are uniform.
    aspect: smallest and largest ratio of height to width.
    fill: values of a box. "pixel": N(0, 1) for each pixel and channel. "colour": N(0, 1) for each channel. "zero": 0.
    count: number of boxes.

  Raises:
    ConfigError: if `area` or `aspect` is not in the order (low, high).
  """
  for name, pair in (("area", area), ("aspect", aspect)):
    if pair[0] > pair[1]:
      raise schema.ConfigError(f"{pair} goes from high to low. Write (low, high)", name)

  def erase(keys: Key[Array, " B"], images: Float[Tensor, " B *image"]) -> Float[Array, " B *image"]:
    height, width = coordinates.get_image_sides(images, patch)
    place = coordinates.compute_pixel_coordinates(images, patch)

    def paint(key: PRNGKey) -> list[Any] | Float[Array, "count values"]:
      """Returns the values of each box, which broadcast with one image."""
      if fill == "zero":
        return [0.0] * count
      if fill == "colour":
        return jnp.tile(jax.random.normal(key, (count, 3)), images.shape[-1] // 3)
      # All boxes share one field of noise, because only one box is visible where boxes overlap.
      noise = jax.random.normal(key, (height, width, 3))
      if patch is not None:
        noise = rearrange(noise, "(h i) (w j) c -> (h w) (i j c)", i=patch, j=patch)
      return [noise] * count

    def erase_one(key: PRNGKey, image: Float[Tensor, "*image"]) -> Float[Array, "*image"]:
      chance_key, box_key, paint_key = jax.random.split(key, 3)
      chosen = jax.random.uniform(chance_key) < probability
      numbers = jax.random.uniform(box_key, (count, ERASING_TRIES, 4))
      boxes, fits = choose_erasing_boxes(numbers, height, width, (area[0] / count, area[1] / count), aspect)
      for box, fit, colour in zip(boxes, fits, paint(paint_key), strict=True):
        image = jnp.where(coordinates.is_inside(place, box) & fit & chosen, colour, image)
      return jnp.asarray(image, images.dtype)

    return jax.vmap(erase_one)(keys, images)

  return erase


def choose_erasing_boxes(
  numbers: Float[Tensor, "*B tries 4"],
  height: int,
  width: int,
  area: tuple[float, float],
  aspect: tuple[float, float],
) -> tuple[Int[Array, "*B 4"], Bool[Array, "*B"]]:
  """Returns the first box that fits, (top, left, height, width), and whether any box fits.

  Args:
    numbers: uniform numbers in [0, 1) for each attempt: area, height / width, top and left.
    height: height of the image in pixels.
    width: width of the image in pixels.
    area: smallest and largest share of the image's area.
    aspect: smallest and largest ratio of height to width.
  """
  share, ratio, down, right = jnp.moveaxis(numbers, -1, 0)
  target = height * width * (area[0] + share * (area[1] - area[0]))
  ratio = aspect[0] * (aspect[1] / aspect[0]) ** ratio
  rows, columns = jnp.round(jnp.sqrt(target * ratio)), jnp.round(jnp.sqrt(target / ratio))
  fits = (rows < height) & (columns < width)
  top, left = jnp.floor(down * (height - rows + 1)), jnp.floor(right * (width - columns + 1))
  boxes = jnp.stack([top, left, rows, columns], axis=-1).astype(jnp.int32)
  first = jnp.argmax(fits, axis=-1)[..., None, None]
  return jnp.take_along_axis(boxes, first, axis=-2)[..., 0, :], fits.any(-1)


ERASINGS = {"none": no_erasing, "random": random_erasing}
