"""Mixing of images and targets within a batch: mixup, CutMix, and their combination.

A mixing function takes (key, images, targets, step) and returns (images, targets). The returned images are float32,
from 0 to 255.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from vit_jax import schema
from vit_jax.data import coordinates
from vit_jax.schema import Duration, Fraction, Positive
from vit_jax.shapes import Array, Count, Float, Int, Num, PRNGKey, Scalar, Shaped, Tensor

Draw = Callable[[Array, int, Tensor], tuple[Tensor, Tensor]]  # (key, count, images) -> weights of images, shares
Partner = Callable[[Tensor], Tensor]
Mixing = Callable[[Array, Tensor, Tensor, Count], tuple[Tensor, Tensor]]

Mode = Literal["batch", "pair", "elem"]

BETA_CANDIDATES = 16  # each is accepted with probability 0.95 or more; all are rejected once in 10^20 draws


def no_mixing(patch: int | None, count_steps: Callable[[Duration], int]) -> Mixing:
  """Returns a mixing function that changes neither images nor targets.

  Args:
    patch: not used.
    count_steps: not used.
  """
  return lambda key, images, targets, step: (images, targets)


def mixup(
  patch: int | None,
  count_steps: Callable[[Duration], int],
  *,
  alpha: Positive = 0.2,
  mode: Mode = "batch",
  probability: Fraction = 1.0,
  partner: Literal["reversed", "rolled"] = "reversed",
  share: Literal["any", "larger"] = "any",
  off_after: Duration | None = None,
) -> Mixing:
  """Returns the function that mixes each example with a partner. Shares are from Beta(alpha, alpha) (Zhang et al.
  2017).

  In timm, the partner is in the "reversed" batch. In big_vision, the partner is the preceding example ("rolled"), and
  the image itself has the "larger" share. Across devices, "rolled" moves one row, and "reversed" moves all rows.

  Args:
    patch: side of a patch in pixels if images are patches. None: images are pixels.
    count_steps: function that converts a duration to a number of steps.
    alpha: parameter of the Beta distribution.
    mode: number of draws. "batch": one draw per batch. "pair": one per pair of partners. "elem": one per example.
    probability: probability with which a draw mixes.
    partner: partner of each example. "reversed": the batch in reverse order. "rolled": the preceding example.
    share: "any" uses the drawn share. "larger" uses the larger of the share and 1 - share for the image itself.
    off_after: duration after which images are no longer mixed. None: mixed until the end.

  Raises:
    ConfigError: if mode="pair" is combined with partner="rolled", or if `off_after` is 0.
  """
  if (mode, partner) == ("pair", "rolled"):
    raise schema.ConfigError(
      "'pair' cannot be combined with partner='rolled', which makes no pairs. Use partner='reversed'", "mode"
    )

  def draw(key: PRNGKey, count: int, images: Num[Tensor, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    kept = draw_beta(key, alpha, (count,))
    if share == "larger":
      kept = jnp.maximum(kept, 1 - kept)
    return _broadcast_values(kept, images), kept

  return _build_mixing(draw, count_steps, mode, probability, PARTNERS[partner], off_after)


def cutmix(
  patch: int | None,
  count_steps: Callable[[Duration], int],
  *,
  alpha: Positive = 1.0,
  mode: Mode = "batch",
  probability: Fraction = 1.0,
  off_after: Duration | None = None,
) -> Mixing:
  """Returns the function that replaces a box of each image by the same box of its partner (Yun et al. 2019).

  The area of the box is 1 - Beta(alpha, alpha) of the image. The partner is the batch in reverse order.

  Args:
    patch: side of a patch in pixels if images are patches. None: images are pixels.
    count_steps: function that converts a duration to a number of steps.
    alpha: parameter of the Beta distribution.
    mode: number of draws, see `mixup`.
    probability: probability with which a draw mixes.
    off_after: duration after which images are no longer mixed. None: mixed until the end.

  Raises:
    ConfigError: if `off_after` is 0.
  """

  def draw(key: PRNGKey, count: int, images: Num[Tensor, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    share_key, centre_key = jax.random.split(key)
    return _cut_boxes(centre_key, draw_beta(share_key, alpha, (count,)), images, patch)

  return _build_mixing(draw, count_steps, mode, probability, reverse_batch, off_after)


def mixup_cutmix(
  patch: int | None,
  count_steps: Callable[[Duration], int],
  *,
  mixup_alpha: Positive = 0.8,
  cutmix_alpha: Positive = 1.0,
  switch: Fraction = 0.5,
  mode: Mode = "batch",
  probability: Fraction = 1.0,
  off_after: Duration | None = None,
) -> Mixing:
  """Returns the function that applies either CutMix, with probability `switch`, or mixup. Each draw chooses one of
  them.

  The partner is the batch in reverse order.

  Args:
    patch: side of a patch in pixels if images are patches. None: images are pixels.
    count_steps: function that converts a duration to a number of steps.
    mixup_alpha: parameter of the Beta distribution of mixup.
    cutmix_alpha: parameter of the Beta distribution of CutMix.
    switch: probability of CutMix.
    mode: number of draws, see `mixup`.
    probability: probability with which a draw mixes.
    off_after: duration after which images are no longer mixed. None: mixed until the end.

  Raises:
    ConfigError: if `off_after` is 0.
  """

  def draw(key: PRNGKey, count: int, images: Num[Tensor, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    switch_key, share_key, centre_key = jax.random.split(key, 3)
    cutting = jax.random.uniform(switch_key, (count,)) < switch
    share = draw_beta(share_key, jnp.where(cutting, cutmix_alpha, mixup_alpha), (count,))
    mask, kept = _cut_boxes(centre_key, share, images, patch)
    weight = jnp.where(_broadcast_values(cutting, images), mask, _broadcast_values(share, images))
    return weight, jnp.where(cutting, kept, share)

  return _build_mixing(draw, count_steps, mode, probability, reverse_batch, off_after)


def _build_mixing(
  draw: Draw,
  count_steps: Callable[[Duration], int],
  mode: Mode,
  probability: float,
  partner: Partner,
  off_after: Duration | None,
) -> Mixing:
  """Returns a mixing function. `draw(key, count, images)` returns weights for `count` images, and shares."""
  if off_after is not None and not off_after.amount:
    raise schema.ConfigError(
      "0 would never mix. Use None to mix until the end, or name='none' to disable mixing", "off_after"
    )
  last = None if off_after is None else min(count_steps(off_after), 2**31 - 1)

  def apply(
    key: PRNGKey, images: Num[Tensor, " B *image"], targets: Float[Tensor, "B V"], step: Count
  ) -> tuple[Float[Array, " B *image"], Float[Array, "B V"]]:
    draw_key, chance_key = jax.random.split(key)
    batch = len(images)
    count = {"batch": 1, "pair": -(-batch // 2), "elem": batch}[mode]
    weight, share = draw(draw_key, count, images)
    chance = probability if last is None else jnp.where(step < last, probability, 0.0)
    mixed = jax.random.uniform(chance_key, (count,)) < chance
    weight, share = jnp.where(_broadcast_values(mixed, images), weight, 1), jnp.where(mixed, share, 1)
    if mode == "pair":
      # One partner is as far from the beginning of the batch as the other from its end.
      weight, share = (jnp.concatenate([x, x[: batch // 2][::-1]]) for x in (weight, share))
    return blend_with_partners(images, targets, weight, share, partner)

  return apply


def _broadcast_values(values: Shaped[Array, " S"], images: Num[Tensor, "..."]) -> Shaped[Array, "..."]:
  """Reshapes values (B,) so that they broadcast with images."""
  return values.reshape(-1, *[1] * (images.ndim - 1))


def _cut_boxes(
  key: PRNGKey, share: Float[Tensor, " S"], images: Num[Tensor, "..."], patch: int | None
) -> tuple[Float[Array, "..."], Float[Array, " S"]]:
  """Draws a box for each share (B,).

  Returns weights, which are 0 inside of the boxes and 1 outside, and remaining shares.
  """
  height, width = coordinates.get_image_sides(images, patch)
  centre = jnp.floor(jax.random.uniform(key, (*share.shape, 2)) * jnp.array([height, width])).astype(jnp.int32)
  box, kept = jax.vmap(compute_cut_box, (None, None, 0, 0))(height, width, share, centre)
  inside = jax.vmap(coordinates.is_inside, (None, 0))(coordinates.compute_pixel_coordinates(images, patch), box)
  return jnp.subtract(1.0, inside), kept


def compute_cut_box(
  height: int, width: int, share: Scalar, centre: Int[Tensor, "2"]
) -> tuple[tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""], Int[Array, ""]], Float[Array, ""]]:
  """Returns the box that leaves about `share` of an image, and the share that it really leaves.

  The box has the sides int(H sqrt(1 - share)) and int(W sqrt(1 - share)). It is clipped at the border of the image.

  Args:
    height: height H of the image in pixels.
    width: width W of the image in pixels.
    share: share of the image to leave, from 0 to 1.
    centre: row and column of the centre of the box.

  Returns:
    The box (top, left, height, width), and the share of the image outside of it.
  """
  ends = []
  for side, middle in ((height, centre[0]), (width, centre[1])):
    length = jnp.floor(side * jnp.sqrt(1 - share)).astype(jnp.int32)
    first = middle - length // 2
    ends.append((jnp.maximum(first, 0), jnp.minimum(first + length, side)))
  (top, bottom), (left, right) = ends
  kept = 1 - (bottom - top) * (right - left) / (height * width)
  return (top, left, bottom - top, right - left), kept


def reverse_batch(rows: Shaped[Tensor, " B *row"]) -> Shaped[Tensor, " B *row"]:
  """Returns the batch in reverse order. The last row is the partner of the first."""
  return rows[::-1]


def roll_batch(rows: Shaped[Tensor, " B *row"]) -> Shaped[Array, " B *row"]:
  """Returns the batch moved by one row. The partner of each row is the preceding row, cyclically."""
  return jnp.roll(rows, 1, axis=0)


def blend_with_partners(
  images: Num[Tensor, " B *image"],
  targets: Float[Tensor, "B V"],
  weight: Scalar | Float[Tensor, "..."],
  share: Scalar | Float[Tensor, "#B"],
  partner: Partner = reverse_batch,
) -> tuple[Float[Array, " B *image"], Float[Array, "B V"]]:
  """Returns weighted sums of images and of targets with those of their partners, in float32.

  Args:
    images: (B, ...).
    targets: (B, V).
    weight: weight of each image, broadcast with `images`. The partner has the weight 1 - weight.
    share: share of each target. The target of the partner has the share 1 - share.
    partner: function from a batch to the batch of partners.
  """
  share = jnp.reshape(share, (-1, 1))
  images, others = jnp.asarray(images), jnp.asarray(partner(images), jnp.float32)
  blended, targets = images * weight + others * (1 - weight), jnp.asarray(targets)
  return blended, targets * share + jnp.asarray(partner(targets)) * (1 - share)


def draw_beta(key: PRNGKey, alpha: Scalar | Float[Tensor, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
  """Draws from Beta(alpha, alpha) without a loop.

  The result is the ratio of two Gamma draws, computed with logarithms so that a small alpha cannot lead to 0 / 0.
  `jax.random.beta` rejects candidates in loops around the random generator. TPUs compile and run these loops slowly.

  Args:
    key: random key.
    alpha: a number, or an array of the given shape.
    shape: shape of the result.
  """
  first, second = (_draw_log_gamma(part, alpha, shape) for part in jax.random.split(key))
  return jax.nn.sigmoid(first - second)


def _draw_log_gamma(key: PRNGKey, alpha: Scalar | Float[Tensor, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
  """Draws logarithms from Gamma(alpha), as Gamma(alpha + 1) U^(1 / alpha) (Marsaglia and Tsang 2000).

  Instead of the loop of the method, several candidates are drawn in parallel, and the first accepted one is used.
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


PARTNERS = {"reversed": reverse_batch, "rolled": roll_batch}
MIXINGS = {"none": no_mixing, "mixup": mixup, "cutmix": cutmix, "mixup_cutmix": mixup_cutmix}
