"""Masks against the algorithm in plain Python, and the slots against loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.selfsup import device_counts
from vit_jax.selfsup import patch_masks

pytestmark = pytest.mark.heavy
GRID = (8, 6)


def draw(key=0, groups=16, crops=6, grid=GRID, **options):
  return jax.device_get(
    jax.jit(lambda key: patch_masks.draw_masks(key, groups, crops, grid, **options))(jax.random.key(key))
  )


def plain_blocks(generator, count, grid, smallest, largest):
  """BEiT's algorithm in plain Python."""
  mask, failed = np.zeros(grid, bool), 0
  while mask.sum() < count and failed < 10:
    allowed = min(count - mask.sum(), largest)
    area = generator.uniform(*sorted((smallest, allowed)))
    aspect = math.exp(generator.uniform(math.log(0.3), -math.log(0.3)))
    height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    failed += 1
    if height >= grid[0] or width >= grid[1]:
      continue
    top, left = (
      int(generator.integers(0, whole - part + 1)) for whole, part in zip(grid, (height, width), strict=True)
    )
    block = np.zeros(grid, bool)
    block[top : top + height, left : left + width] = True
    if 0 < (block & ~mask).sum() <= allowed:
      mask, failed = mask | block, 0
  return mask


@pytest.mark.parametrize(("count", "smallest", "largest"), [(20, 4, 24), (3, 4, 24), (30.5, 4, 48)])
def test_blocks_have_the_statistics_of_the_plain_algorithm(count, smallest, largest):
  number, generator = 1500, np.random.default_rng(0)
  expected = np.array([plain_blocks(generator, count, GRID, smallest, largest) for _ in range(number)])
  keys = jax.random.split(jax.random.key(0), number)
  masks = np.asarray(jax.jit(jax.vmap(lambda key: patch_masks.draw_blocks(key, count, GRID, smallest, largest)))(keys))
  assert masks.sum((1, 2)).max() <= count
  for measure in (lambda m: m.sum((1, 2)), lambda m: (m[:, 1:] & m[:, :-1]).sum((1, 2))):
    one, other = measure(expected), measure(masks)
    limit = 4 * np.sqrt((one.var() + other.var()) / number) + 0.05
    assert abs(one.mean() - other.mean()) < limit
  assert np.abs(masks.mean(0) - expected.mean(0)).max() < 0.08


def test_filled_masks_have_exact_counts():
  result = draw(fill=True)
  expected = [0, 0, 0, *(int(48 * p) for p in np.linspace(0.1, 0.5, 4)[1:])]
  np.testing.assert_array_equal(np.sort(result.masks.sum(2), 1), np.tile(expected, (16, 1)))
  assert result.valid.all() and result.indices.shape == (16, patch_masks.count_slots(6, GRID)) == (16, sum(expected))
  assert len({tuple(row) for row in result.masks.sum(2).tolist()}) > 1  # shuffled over the crops


def test_masks_without_filling_stay_within_their_limits():
  counts = np.sort(draw(groups=200).masks.sum(2), 1)
  limits = 48 * np.linspace(0.1, 0.5, 4)
  assert (counts[:, :3] == 0).all() and (counts[:, 3:] > 0).all()
  assert (counts[:, 3:].max(0) <= np.floor(limits[1:])).all()
  assert np.abs(counts[:, 3:].mean(0) - (limits[1:] + limits[:-1]) / 2).max() < 2


@pytest.mark.parametrize("fill", [False, True])
def test_slots_contain_the_masked_patches_and_their_weights(fill):
  result = draw(fill=fill)
  for group, mask in enumerate(result.masks):
    numbers = np.flatnonzero(mask)
    used = result.valid[group]
    np.testing.assert_array_equal(result.indices[group][used], numbers)
    assert not result.indices[group][~used].any() and not result.weights[group][~used].any()
    expected = 1 / mask.sum(1)[numbers // 48]
    np.testing.assert_allclose(result.weights[group][used], expected, rtol=1e-6)
    np.testing.assert_allclose(result.weights[group].sum(), 3, rtol=1e-5)  # one for each masked crop


def test_groups_do_not_depend_on_their_number():
  few, many = draw(groups=2), draw(groups=16)
  for one, other in zip(few, many, strict=True):
    np.testing.assert_array_equal(one, other[:2])
  assert (many.masks[0] != many.masks[1]).any() and (draw(key=1).masks != many.masks).any()


def test_patches_are_taken_from_neighbouring_images():
  images, crops, size = 6, 2, 4
  x = np.arange(images * crops * size * 3).reshape(images, crops, size, 3)
  indices = np.array([[0, 13, 23], [5, 5, 1]], np.int32)
  taken = patch_masks.take_patches(jnp.asarray(x), jnp.asarray(indices))
  expected = [[x.reshape(2, 24, 3)[g, i] for i in row] for g, row in enumerate(indices)]
  np.testing.assert_array_equal(taken, expected)


def test_random_masks_have_the_exact_number_of_patches():
  result = jax.device_get(
    jax.jit(lambda key: patch_masks.draw_ratio_masks(key, 200, 2, (5, 6), ((0.0, 0.0), (0.3, 0.0)), "random"))(
      jax.random.key(0)
    )
  )
  counts = result.masks.sum(2)
  assert set(counts.ravel().tolist()) == {0, 9}  # 0.3 * 30, which float32 rounds down
  assert abs((counts == 9).mean() - 0.5) < 0.1
  masked = result.masks[counts == 9].mean(0)
  assert np.abs(masked - 0.3).max() < 0.13
  assert result.valid.sum() == counts.sum()


def test_blocks_of_ibot_stay_below_the_ratio_of_their_crop():
  result = jax.device_get(
    jax.jit(lambda key: patch_masks.draw_ratio_masks(key, 300, 2, (6, 6), ((0.3, 0.2),)))(jax.random.key(0))
  )
  counts = result.masks.sum(2)
  assert counts.max() <= 18 and result.indices.shape == (300, 36) and result.valid.sum() == counts.sum()
  assert 5 < counts.mean() < 0.3 * 36 + 0.2


def test_a_group_without_masked_patches_is_an_error():
  for options in ({"crops": 1}, {"share": 0.0}, {"ratio": (0.0, 0.01)}):
    with pytest.raises(ValueError, match="no patch of a group is masked"):
      patch_masks.draw_masks(jax.random.key(0), 2, **({"crops": 6, "grid": GRID} | options))


def test_results_are_equal_on_one_and_eight_devices():
  images = np.arange(32 * 2 * 48, dtype=np.float32).reshape(32, 2, 48, 1)

  def masked(x):
    result = patch_masks.draw_masks(jax.random.key(3), 16, 4, GRID)
    return *result, patch_masks.take_patches(x, result.indices)

  device_counts.compare(masked, images)
