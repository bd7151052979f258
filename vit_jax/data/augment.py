"""Augmentation on the device: uint8 images and targets in, normalised floats and soft targets out.

The table's functions take what the run supplies and the arguments of the config, and return what runs in the step.
What changes one image (warps, erasing) follows from the run's seed and the example's `draw`, whatever its batch; what
mixes images follows from the key of the step. Neither depends on how the batch is laid over devices.

Images are [B, H, W, 3], or with `patch` P already cut: [B, N, P*P*3], patches row by row, each as row, column, channel.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from vit_jax import config, rng
from vit_jax.config import Duration, Fraction, Positive

Channels = tuple[float, float, float]
Scales = tuple[Positive, Positive, Positive]
Mode = Literal["batch", "pair", "elem"]

BETA_CANDIDATES = 16  # each accepted with probability 0.95 or more: all rejected once in 10^20 draws
ERASING_TRIES = 10


def build(
  dtype,
  seed: int,
  patch: int | None,
  steps_of: Callable[[Duration], int],
  *,
  mean: Channels = (0.5, 0.5, 0.5),
  std: Scales = (0.5, 0.5, 0.5),
  warp: config.Choice = config.Choice("none"),
  mixing: config.Choice = config.Choice("none"),
  erasing: config.Choice = config.Choice("none"),
) -> Callable:
  """The training augmentation: (key, images uint8, targets [B, V], draws uint32 [B], step) -> (images, targets).

  Warps, mixes, normalises with `mean` and `std` of values in 0..1, then erases. Mixing before normalising differs from
  the other order by rounding only, and devices that hold partners exchange bytes instead of floats.
  """
  assert patch is None or warp.name == "none", "a warp needs whole images"
  bend = config.make(warp, WARPS, "config.data.warp")
  mix = config.make(mixing, MIXINGS, "config.data.mixing", patch, steps_of)
  erase = config.make(erasing, ERASINGS, "config.data.erasing", patch)

  def augment(key, images, targets, draws, step):
    def keys(name):
      return jax.vmap(jax.random.fold_in, (None, 0))(rng.stream(seed, 0, name), draws)

    images, targets = mix(key, bend(keys("warp"), images), targets, step)
    return erase(keys("erasing"), normalise(images, dtype, mean=mean, std=std)), targets

  return augment


def normalise(images, dtype=jnp.float32, *, mean: Channels = (0.5, 0.5, 0.5), std: Scales = (0.5, 0.5, 0.5)):
  """Pixels 0..255 -> (pixel / 255 - mean) / std, in `dtype`; computed in float32 and rounded once.

  The last axis holds the three channels once (images) or many times over (patches).
  """
  mean, std = (jnp.tile(jnp.asarray(x, jnp.float32), images.shape[-1] // 3) for x in (mean, std))
  return (images.astype(jnp.float32) * (1 / (255 * std)) - mean / std).astype(dtype)


def sides(images, patch: int | None) -> tuple[int, int]:
  """Height and width of images in either layout; images that are cut into patches are square."""
  if patch is None:
    return images.shape[1:3]
  count = math.isqrt(images.shape[1])
  assert count**2 == images.shape[1] and images.shape[2] == 3 * patch**2
  return count * patch, count * patch


def pixels(images, patch: int | None):
  """Row and column of the pixel that each value of one image belongs to: two arrays that broadcast with an image."""
  height, width = sides(images, patch)
  if patch is None:
    return np.arange(height)[:, None, None], np.arange(width)[:, None]
  patch_row, patch_column = np.divmod(np.arange(images.shape[1])[:, None], width // patch)
  row, column = np.divmod(np.arange(images.shape[2]) // 3, patch)
  return patch_row * patch + row, patch_column * patch + column


def box_mask(place, box):
  """Where the pixels at `place` (rows, columns) are inside of the box (top, left, height, width)."""
  (rows, columns), (top, left, height, width) = place, box
  return (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)


# Warps: (keys [B], images uint8) -> images, uint8 or float32 in 0..255.


def no_warp():
  """Images as they are."""
  return lambda keys, images: images


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

  def warp(keys, images):
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


# Mixings: (key, images, targets [B, V], step) -> the same, mixed; images become float32, 0..255.


def no_mixing(patch, steps_of):
  """Images and targets as they are."""
  return lambda key, images, targets, step: (images, targets)


def mixup(
  patch: int | None,
  steps_of: Callable,
  *,
  alpha: Positive = 0.2,
  mode: Mode = "batch",
  probability: Fraction = 1.0,
  partner: Literal["reversed", "rolled"] = "reversed",
  share: Literal["any", "larger"] = "any",
  off_after: Duration | None = None,
):
  """Each example mixed with its partner, with a share from Beta(alpha, alpha) (Zhang et al. 2017).

  One draw for the "batch", for each "pair" of partners or for each "elem", made with `probability` and not from
  `off_after` on: timm's forms, where the partner is the batch "reversed". big_vision's is the example before,
  "rolled", and the "larger" share for the image itself; across devices it moves one row instead of all.
  """
  if (mode, partner) == ("pair", "rolled"):
    raise config.ConfigError("mixing.mode: 'pair' with partner='rolled', which makes no pairs; take partner='reversed'")

  def draw(key, count, images):
    kept = beta(key, alpha, (count,))
    if share == "larger":
      kept = jnp.maximum(kept, 1 - kept)
    return _one_each(kept, images), kept

  return _mixing(draw, steps_of, mode, probability, PARTNERS[partner], off_after)


def cutmix(
  patch: int | None,
  steps_of: Callable,
  *,
  alpha: Positive = 1.0,
  mode: Mode = "batch",
  probability: Fraction = 1.0,
  off_after: Duration | None = None,
):
  """A box of each image replaced by its partner's, of area 1 - Beta(alpha, alpha) (Yun et al. 2019).

  `mode`, `probability` and `off_after` are those of `mixup`.
  """

  def draw(key, count, images):
    share_key, centre_key = jax.random.split(key)
    return _cut(centre_key, beta(share_key, alpha, (count,)), images, patch)

  return _mixing(draw, steps_of, mode, probability, reversed_batch, off_after)


def mixup_cutmix(
  patch: int | None,
  steps_of: Callable,
  *,
  mixup_alpha: Positive = 0.8,
  cutmix_alpha: Positive = 1.0,
  switch: Fraction = 0.5,
  mode: Mode = "batch",
  probability: Fraction = 1.0,
  off_after: Duration | None = None,
):
  """Cutmix with probability `switch`, else mixup: one of the two for each draw. The rest is as in `mixup`."""

  def draw(key, count, images):
    switch_key, share_key, centre_key = jax.random.split(key, 3)
    cutting = jax.random.uniform(switch_key, (count,)) < switch
    share = beta(share_key, jnp.where(cutting, cutmix_alpha, mixup_alpha), (count,))
    mask, kept = _cut(centre_key, share, images, patch)
    weight = jnp.where(_one_each(cutting, images), mask, _one_each(share, images))
    return weight, jnp.where(cutting, kept, share)

  return _mixing(draw, steps_of, mode, probability, reversed_batch, off_after)


def _mixing(draw, steps_of, mode, probability, partner, off_after):
  """The mixing whose `draw(key, count, images)` gives weights, `count` of what broadcasts with an image, and shares."""
  if off_after is not None and not off_after.amount:
    raise config.ConfigError("mixing.off_after: 0 would never mix; None mixes to the end, name='none' not at all")
  last = None if off_after is None else steps_of(off_after)

  def apply(key, images, targets, step):
    draw_key, chance_key = jax.random.split(key)
    batch = len(images)
    count = {"batch": 1, "pair": -(-batch // 2), "elem": batch}[mode]
    weight, share = draw(draw_key, count, images)
    chance = probability if last is None else jnp.where(step < last, probability, 0.0)
    mixed = jax.random.uniform(chance_key, (count,)) < chance
    weight, share = jnp.where(_one_each(mixed, images), weight, 1), jnp.where(mixed, share, 1)
    if mode == "pair":
      # The second of a pair stands as far from the end as the first from the beginning.
      weight, share = (jnp.concatenate([x, x[: batch // 2][::-1]]) for x in (weight, share))
    return blend(images, targets, weight, share, partner)

  return apply


def _one_each(values, images):
  """[b] -> what broadcasts with images: one value for each."""
  return values.reshape(-1, *[1] * (images.ndim - 1))


def _cut(key, share, images, patch):
  """Weights, 0 inside and 1 outside of boxes around uniform centres, and what they keep [b], for shares [b]."""
  height, width = sides(images, patch)
  centre = jnp.floor(jax.random.uniform(key, (*share.shape, 2)) * jnp.array([height, width])).astype(jnp.int32)
  box, kept = jax.vmap(cut_box, (None, None, 0, 0))(height, width, share, centre)
  return 1.0 - jax.vmap(box_mask, (None, 0))(pixels(images, patch), box), kept


def cut_box(height: int, width: int, share, centre):
  """The box (top, left, height, width) that leaves about `share` of an image, and the share that it leaves.

  It has sides int(H sqrt(1 - share)) and int(W sqrt(1 - share)) around `centre`, and is clipped at the border.
  """
  ends = []
  for side, middle in ((height, centre[0]), (width, centre[1])):
    length = jnp.floor(side * jnp.sqrt(1 - share)).astype(jnp.int32)
    first = middle - length // 2
    ends.append((jnp.maximum(first, 0), jnp.minimum(first + length, side)))
  (top, bottom), (left, right) = ends
  kept = 1 - (bottom - top) * (right - left) / (height * width)
  return (top, left, bottom - top, right - left), kept


def reversed_batch(rows):
  """The last row is the partner of the first."""
  return rows[::-1]


def rolled_batch(rows):
  """Each row's partner is the one before, the last of the first."""
  return jnp.roll(rows, 1, axis=0)


def blend(images, targets, weight, share, partner: Callable = reversed_batch):
  """`weight` (what broadcasts with images) of each image, `share` (a number, [1] or [B]) of its target, in float32.

  The rest is the `partner`'s.
  """
  share = jnp.reshape(share, (-1, 1))
  others = partner(images).astype(jnp.float32)
  return images * weight + others * (1 - weight), targets * share + partner(targets) * (1 - share)


def beta(key, alpha, shape: tuple[int, ...]):
  """Draws of the given shape from Beta(alpha, alpha), without a loop; `alpha` is a number or has that shape.

  As a ratio of two Gamma draws in logarithms, so that no small alpha makes it 0 / 0. `jax.random.beta` rejects in
  loops around the generator, which TPUs compile and run slowly.
  """
  first, second = (_log_gamma(part, alpha, shape) for part in jax.random.split(key))
  return jax.nn.sigmoid(first - second)


def _log_gamma(key, alpha, shape):
  """Logarithms of draws from Gamma(alpha), by Gamma(alpha + 1) U^(1 / alpha) (Marsaglia and Tsang 2000).

  The method's loop as candidates side by side, of which the first accepted one is taken.
  """
  normal_key, accept_key, boost_key = jax.random.split(key, 3)
  scale = jnp.asarray(alpha, jnp.float32) + 2 / 3
  x = jax.random.normal(normal_key, (BETA_CANDIDATES, *shape))
  root = 1 + x / jnp.sqrt(9 * scale)
  log_cube = 3 * jnp.log(jnp.maximum(root, jnp.finfo(jnp.float32).tiny))
  limit = x**2 / 2 + scale * (1 - root**3 + log_cube)
  accepted = (root > 0) & (-jax.random.exponential(accept_key, x.shape) < limit)
  chosen = jnp.take_along_axis(log_cube, jnp.argmax(accepted, axis=0)[None], axis=0)[0]
  return jnp.log(scale) + chosen - jax.random.exponential(boost_key, shape) / alpha


# Erasings: (keys [B], images normalised) -> images of the same form.


def no_erasing(patch):
  """Images as they are."""
  return lambda keys, images: images


def random_erasing(
  patch: int | None,
  *,
  probability: Fraction = 0.25,
  area: tuple[Positive, Fraction] = (0.02, 1 / 3),
  aspect: tuple[Positive, Positive] = (0.3, 1 / 0.3),
  fill: Literal["pixel", "colour", "zero"] = "pixel",
  count: Annotated[int, config.Range(1, 16)] = 1,
):
  """With `probability`, `count` boxes of an image are painted over (Zhong et al. 2020, in timm's form).

  A box has a uniform share of the image's area, divided by `count`, and a log-uniform height / width; it must be
  smaller than the image on both sides, or after ten tries is left out. The paint is N(0, 1) in normalised values: for
  each "pixel" and channel, or a "colour" for each box; or "zero".
  """
  for name, pair in (("area", area), ("aspect", aspect)):
    if pair[0] > pair[1]:
      raise config.ConfigError(f"erasing.{name}: {pair} goes from high to low; write (low, high)")

  def erase(keys, images):
    height, width = sides(images, patch)
    place = pixels(images, patch)

    def paint(key):
      """What each box is painted with: `count` values that broadcast with one image."""
      if fill == "zero":
        return [0.0] * count
      if fill == "colour":
        return jnp.tile(jax.random.normal(key, (count, 3)), images.shape[-1] // 3)
      # One field of noise serves all boxes: where they overlap, one of them is seen.
      noise = jax.random.normal(key, (height, width, 3))
      if patch is not None:
        noise = rearrange(noise, "(h i) (w j) c -> (h w) (i j c)", i=patch, j=patch)
      return [noise] * count

    def erase_one(key, image):
      chance_key, box_key, paint_key = jax.random.split(key, 3)
      chosen = jax.random.uniform(chance_key) < probability
      numbers = jax.random.uniform(box_key, (count, ERASING_TRIES, 4))
      boxes, fits = erasing_boxes(numbers, height, width, (area[0] / count, area[1] / count), aspect)
      for box, fit, colour in zip(boxes, fits, paint(paint_key), strict=True):
        image = jnp.where(box_mask(place, box) & fit & chosen, colour, image)
      return image.astype(images.dtype)

    return jax.vmap(erase_one)(keys, images)

  return erase


def erasing_boxes(numbers, height: int, width: int, area, aspect):
  """Uniform numbers [..., tries, 4] -> the first box that fits, (top, left, height, width) [..., 4]; whether any does.

  The four numbers are area, height / width, top and left.
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


PARTNERS = {"reversed": reversed_batch, "rolled": rolled_batch}
WARPS = {"none": no_warp, "affine": affine}
MIXINGS = {"none": no_mixing, "mixup": mixup, "cutmix": cutmix, "mixup_cutmix": mixup_cutmix}
ERASINGS = {"none": no_erasing, "random": random_erasing}
