"""Mixings: (key, images, targets, step) -> (images, targets), mixed; images become float32, 0..255."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from vit_jax import schema
from vit_jax.data import coordinates
from vit_jax.schema import Duration, Fraction, Positive
from vit_jax.shapes import Array, Count, Float, Int, Num, PRNGKey, Scalar, Shaped, Tensor

Mode = Literal["batch", "pair", "elem"]

BETA_CANDIDATES = 16  # each accepted with probability 0.95 or more: all rejected once in 10^20 draws


def no_mixing(patch: int | None, steps_of: Callable) -> Callable:
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
) -> Callable:
  """Each example mixed with its partner, with a share from Beta(alpha, alpha) (Zhang et al. 2017).

  One draw for the "batch", for each "pair" of partners or for each "elem", made with `probability` and not from
  `off_after` on: timm's forms, where the partner is the batch "reversed". big_vision's is the example before,
  "rolled", and the "larger" share for the image itself; across devices it moves one row instead of all.
  """
  if (mode, partner) == ("pair", "rolled"):
    raise schema.ConfigError("'pair' with partner='rolled', which makes no pairs; take partner='reversed'", "mode")

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
) -> Callable:
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
) -> Callable:
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
    raise schema.ConfigError("0 would never mix; None mixes to the end, name='none' not at all", "off_after")
  last = None if off_after is None else min(steps_of(off_after), 2**31 - 1)

  def apply(
    key: PRNGKey, images: Num[Tensor, " B *image"], targets: Float[Tensor, "B V"], step: Count
  ) -> tuple[Float[Array, " B *image"], Float[Array, "B V"]]:
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
  height, width = coordinates.sides(images, patch)
  centre = jnp.floor(jax.random.uniform(key, (*share.shape, 2)) * jnp.array([height, width])).astype(jnp.int32)
  box, kept = jax.vmap(cut_box, (None, None, 0, 0))(height, width, share, centre)
  return 1.0 - jax.vmap(coordinates.inside, (None, 0))(coordinates.pixels(images, patch), box), kept


def cut_box(
  height: int, width: int, share: Scalar, centre: Int[Tensor, "2"]
) -> tuple[tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""], Int[Array, ""]], Float[Array, ""]]:
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


def reversed_batch(rows: Shaped[Tensor, " B *row"]) -> Shaped[Tensor, " B *row"]:
  """The last row is the partner of the first."""
  return rows[::-1]


def rolled_batch(rows: Shaped[Tensor, " B *row"]) -> Shaped[Array, " B *row"]:
  """Each row's partner is the one before, the last of the first."""
  return jnp.roll(rows, 1, axis=0)


def blend(
  images: Num[Tensor, " B *image"],
  targets: Float[Tensor, "B V"],
  weight: Scalar | Float[Tensor, "..."],
  share: Scalar | Float[Tensor, "#B"],
  partner: Callable = reversed_batch,
) -> tuple[Float[Array, " B *image"], Float[Array, "B V"]]:
  """`weight` (what broadcasts with images) of each image, `share` of its target, in float32.

  The rest is the `partner`'s.
  """
  share = jnp.reshape(share, (-1, 1))
  others = partner(images).astype(jnp.float32)
  return images * weight + others * (1 - weight), targets * share + partner(targets) * (1 - share)


def beta(key: PRNGKey, alpha: Scalar | Float[Tensor, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
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


PARTNERS = {"reversed": reversed_batch, "rolled": rolled_batch}
MIXINGS = {"none": no_mixing, "mixup": mixup, "cutmix": cutmix, "mixup_cutmix": mixup_cutmix}
