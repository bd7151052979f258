"""Masks of patches for masked image modelling, drawn on the devices: blocks (BEiT, iBOT, DINOv2) or single patches.

Images form groups of a fixed size, which does not depend on the number of devices. Each group has its own random key,
and its masked patches fill a static number of slots.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from vit_jax.shapes import Array, Bool, Count, Float, Int, PRNGKey, Scalar, Shaped, Tensor

ASPECT = 0.3  # blocks have aspect ratios between 0.3 and 1 / 0.3
ATTEMPTS = 10  # a mask is complete after this number of failed attempts in a row
MIN_AREA = 4  # smallest area of a block in DINOv2, in patches


class PatchMasks(NamedTuple):
  """Masks of a batch, and the masked patches in slots.

  Attributes:
    masks: whether each patch is masked, (groups, crops of a group, N).
    indices: numbers of the masked patches of a group, in ascending order, (groups, M). Patch n of crop c has the number
      c * N + n. Unused slots contain 0.
    valid: whether a slot is used, (groups, M).
    weights: 1 / (number of masked patches of the crop) for each used slot, else 0, (groups, M).
  """

  masks: Bool[Array, "groups crops N"]
  indices: Int[Array, "groups M"]
  valid: Bool[Array, "groups M"]
  weights: Float[Array, "groups M"]


def draw_masks(
  key: PRNGKey,
  groups: int,
  crops: int,
  grid: tuple[int, int],
  ratio: tuple[float, float] = (0.1, 0.5),
  share: float = 0.5,
  fill: bool = False,
) -> PatchMasks:
  """Draws the block masks of DINOv2 or DINOv3 for each group of crops.

  A crop has N patches. In each group, n = int(share * crops) crops get a mask. The range `ratio` is divided into n
  equal intervals with the limits p_0, …, p_n. For mask i, a ratio u is drawn uniformly between p_i and p_(i+1). The
  mask covers int(N u) patches, or fewer if blocks are rejected, see `draw_blocks`. The masks are shuffled over the
  crops.

  Args:
    key: random key. Group g uses the key folded with g, so its masks do not depend on the number of groups.
    groups: number of groups.
    crops: number of global crops in a group.
    grid: numbers of patches (rows, columns) of a crop.
    ratio: smallest and largest ratio of masked patches.
    share: share of the crops that are masked.
    fill: true masks exactly int(N p_(i+1)) patches in mask i (DINOv3). Single random patches complete the blocks.

  Raises:
    ValueError: if no patch of a group would be masked.
  """
  size, limits = math.prod(grid), _compute_limits(crops, ratio, share)
  most = np.array([int(size * limit) for limit in limits[1:]])
  if not most.sum():
    raise ValueError(
      f"{crops} crops with {size} patches, share {share} and ratio {ratio}: no patch of a group is masked. "
      "Use larger groups"
    )

  def draw_group(key: PRNGKey) -> Array:
    wanted, shuffle, each, rest = jax.random.split(key, 4)
    counts = jnp.asarray(most, jnp.int32)
    if not fill:
      within = jax.random.uniform(wanted, most.shape)
      drawn = (size * (limits[:-1] + within * np.diff(limits))).astype(jnp.int32)
      counts = jnp.minimum(drawn, counts)  # float32 may round up
    counts = jax.random.permutation(shuffle, jnp.concatenate([counts, jnp.zeros(crops - len(most), jnp.int32)]))
    masks = jax.vmap(lambda key, count: draw_blocks(key, count, grid, MIN_AREA, size / 2))(
      jax.random.split(each, crops), counts
    )
    masks = masks.reshape(crops, size)
    return jax.vmap(_fill_up)(jax.random.split(rest, crops), masks, counts) if fill else masks

  return select_patches(_map_groups(draw_group, key, groups), int(most.sum()))


def count_slots(crops: int, grid: tuple[int, int], ratio: tuple[float, float] = (0.1, 0.5), share: float = 0.5) -> int:
  """Returns the number M of slots of a group in `draw_masks`, which is the largest possible number of masked patches.

  Args:
    crops: number of global crops in a group.
    grid: numbers of patches (rows, columns) of a crop.
    ratio: smallest and largest ratio of masked patches.
    share: share of the crops with a mask.
  """
  return sum(int(math.prod(grid) * limit) for limit in _compute_limits(crops, ratio, share)[1:])


def draw_ratio_masks(
  key: PRNGKey,
  groups: int,
  crops: int,
  grid: tuple[int, int],
  ratios: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.3, 0.2)),
  shape: Literal["block", "random"] = "block",
) -> PatchMasks:
  """Draws the masks of iBOT: each crop has its own ratio of masked patches.

  For each crop, one pair (mean, deviation) of `ratios` is chosen at random. The ratio of masked patches is then drawn
  uniformly from [mean - deviation, mean + deviation]. The smallest area of a block is (min(rows, columns) // 3) ** 2
  patches.

  Args:
    key: random key. Group g uses the key folded with g.
    groups: number of groups.
    crops: number of global crops in a group.
    grid: numbers of patches (rows, columns) of a crop.
    ratios: pairs (mean, deviation) of the ratio.
    shape: "block" for blocks, "random" for int(ratio * N) single patches.
  """
  size = math.prod(grid)
  low, high = (np.array([mean + sign * deviation for mean, deviation in ratios]) for sign in (-1, 1))

  def draw_mask(key: PRNGKey) -> Array:
    choose, within, mask = jax.random.split(key, 3)
    chosen = jax.random.randint(choose, (), 0, len(ratios))
    ratio = jnp.asarray(low)[chosen] + jax.random.uniform(within) * jnp.asarray(high - low)[chosen]
    if shape == "random":
      # float32 rounds 0.3 * 10 to a value below 3.
      return _fill_up(mask, jnp.zeros(size, bool), jnp.floor(ratio * size * (1 + 1e-6)).astype(jnp.int32))
    return draw_blocks(mask, ratio * size, grid, (min(grid) // 3) ** 2, size).reshape(size)

  slots = crops * math.floor(size * high.max() * (1 + 1e-6))
  return select_patches(
    _map_groups(lambda key: jax.vmap(draw_mask)(jax.random.split(key, crops)), key, groups), max(slots, 1)
  )


def draw_blocks(
  key: PRNGKey, count: Scalar | Count, grid: tuple[int, int], min_area: float, max_area: float
) -> Bool[Array, "H W"]:
  """Draws one mask as a union of rectangular blocks (BEiT, Bao et al. 2022, algorithm 1).

  Blocks are drawn until the mask has `count` patches, or until 10 blocks in a row were rejected. Let m be the number of
  patches that the mask still lacks. A block is drawn in three steps:

  1. The area is uniform between `min_area` and min(m, `max_area`).
  2. The aspect ratio is log-uniform in [0.3, 1 / 0.3].
  3. The position is uniform.

  A block is rejected in these cases:

  - It is as high or as wide as the grid, or larger.
  - It masks no additional patch.
  - It masks more than min(m, `max_area`) additional patches.

  Args:
    key: random key.
    count: wanted number of patches. The mask may have fewer patches, but not more.
    grid: numbers of patches (rows, columns).
    min_area: smallest area of a block in patches.
    max_area: largest area of a block in patches.
  """
  rows, columns = (np.arange(length) for length in grid)
  log_aspect = math.log(ASPECT)

  def incomplete(state: tuple[Array, Array, Array]) -> Array:
    _, mask, rejected = state
    return (mask.sum() < count) & (rejected < ATTEMPTS)

  def draw_block(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    number, mask, rejected = state
    area, aspect, top, left = jax.random.uniform(jax.random.fold_in(key, number), (4,))
    allowed = jnp.minimum(count - mask.sum(), max_area)
    area = min_area + area * (allowed - min_area)  # also if fewer patches than `min_area` remain
    aspect = jnp.exp(log_aspect * (1 - 2 * aspect))
    height, width = (jnp.round(jnp.sqrt(value)) for value in (area * aspect, area / aspect))
    top, left = jnp.floor(top * (grid[0] - height + 1)), jnp.floor(left * (grid[1] - width + 1))
    block = ((rows >= top) & (rows < top + height))[:, None] & ((columns >= left) & (columns < left + width))
    new = (block & ~mask).sum()
    accepted = (height < grid[0]) & (width < grid[1]) & (new > 0) & (new <= allowed)
    return number + 1, mask | (block & accepted), jnp.where(accepted, 0, rejected + 1)

  return jax.lax.while_loop(incomplete, draw_block, (jnp.int32(0), jnp.zeros(grid, bool), jnp.int32(0)))[1]


def select_patches(masks: Bool[Tensor, "groups crops N"], slots: int) -> PatchMasks:
  """Returns the masks together with their masked patches in slots.

  Args:
    masks: whether each patch is masked.
    slots: number M of slots of each group. Further masked patches would be ignored.
  """
  flat = rearrange(jnp.asarray(masks), "g c n -> g (c n)")
  indices = jax.vmap(lambda row: jnp.nonzero(row, size=slots, fill_value=0)[0])(flat).astype(jnp.int32)
  valid = jnp.arange(slots) < flat.sum(1, keepdims=True)
  counts = jnp.take_along_axis(masks.sum(2), indices // masks.shape[2], axis=1)
  return PatchMasks(jnp.asarray(masks), indices, valid, jnp.where(valid, 1 / jnp.maximum(counts, 1), 0))


def take_patches(x: Shaped[Tensor, "B G N *x"], indices: Int[Tensor, "groups M"]) -> Shaped[Array, "groups M *x"]:
  """Returns the values of the patches in slots.

  Args:
    x: values of all patches of the global crops (B, G, N, ...). A group consists of B / groups neighbouring images.
    indices: numbers of patches from `PatchMasks`.
  """
  groups, slots = indices.shape
  x = x.reshape(groups, -1, *x.shape[3:])
  return jnp.take_along_axis(x, indices.reshape(groups, slots, *[1] * (x.ndim - 2)), axis=1)


def _compute_limits(crops: int, ratio: tuple[float, float], share: float) -> np.ndarray:
  """Returns the limits of the ratios of all masked crops of a group."""
  return np.linspace(*ratio, int(crops * share) + 1)


def _map_groups(draw_group: Callable[[PRNGKey], Array], key: PRNGKey, groups: int) -> Array:
  return jax.vmap(lambda number: draw_group(jax.random.fold_in(key, number)))(jnp.arange(groups))


def _fill_up(key: PRNGKey, mask: Array, count: Array) -> Array:
  """Masks random single patches until the mask has `count` patches."""
  order = jnp.argsort(jnp.where(mask, 2, jax.random.uniform(key, mask.shape)))
  ranks = jnp.argsort(order)
  return mask | (ranks < count - mask.sum())
