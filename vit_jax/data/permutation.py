"""Permutations of an epoch, computed from the index for any length, or stored in a table for a few blocks."""

import functools

import numpy as np
from grain.experimental import index_shuffle

from vit_jax import rng

# Largest number of blocks for which a table is used. Grain's function permutes at least 2^16 numbers. It takes 6 us
# for 2^15 blocks or more, 0.1 ms for 500 blocks, and 5 ms for 10 blocks. Drawing a table takes up to 5 ms per epoch.
TABLE = 2**16


def permute_index(index: int, length: int, seed: int, epoch: int) -> int:
  """Returns the entry at an index of a permutation of the numbers below `length`.

  Args:
    index: position in the permutation.
    length: number of entries.
    seed: seed of the run.
    epoch: number of the epoch. Each epoch has its own permutation.
  """
  return index_shuffle(index, max_index=length - 1, seed=derive_epoch_seed(seed, epoch), rounds=4)


def permute_block(block: int, blocks: int, seed: int, epoch: int) -> int:
  """Returns the entry at an index of a permutation of blocks. Uses a table for up to `TABLE` blocks.

  Args:
    block: position in the permutation.
    blocks: number of blocks.
    seed: seed of the run.
    epoch: number of the epoch.
  """
  if blocks <= TABLE:
    return int(_block_table(blocks, seed, epoch)[block])
  return permute_index(block, blocks, seed, epoch)


def draw_permutation(size: int, seed: int, name: str, *numbers: int) -> np.ndarray:
  """Draws a permutation of the numbers below `size`.

  It uses raw bits, which are the same in all versions of NumPy (NEP 19). The results of NumPy's own `permutation` may
  change between versions.

  Args:
    size: number of entries.
    seed: seed of the run.
    name: name of the random stream.
    numbers: further numbers on which the permutation depends, such as the epoch.
  """
  return np.argsort(rng.make_numpy_generator(seed, name, *numbers).bit_generator.random_raw(size), kind="stable")


# The following functions divide an epoch into parts, one per group. Over all epochs, each group gets its share of the
# records, with an error below one record.


def count_earlier(length: int, epoch: int, group: int, groups: int) -> int:
  """Returns the number of records that a group gets in all earlier epochs.

  The sum over all groups is epoch * length (Hermite's identity).

  Args:
    length: number of records of an epoch.
    epoch: number of the epoch.
    group: number of the group.
    groups: number of groups.
  """
  return (epoch * length + group) // groups


def select_indices(length: int, epoch: int, group: int, groups: int) -> range:
  """Returns the indices of an epoch that a group gets. The parts of successive groups follow each other.

  Args:
    length: number of records of an epoch.
    epoch: number of the epoch.
    group: number of the group.
    groups: number of groups.
  """

  def before(records: int) -> int:
    """Returns how many of the first `records` records of all epochs belong to the groups before this one."""
    each, remainder = divmod(records, groups)
    return group * each + max(0, group + remainder - groups)

  first = before((epoch + 1) * length) - before(epoch * length)
  return range(
    first, first + count_earlier(length, epoch + 1, group, groups) - count_earlier(length, epoch, group, groups)
  )


def locate(length: int, index: int, group: int, groups: int) -> tuple[int, int]:
  """Returns (epoch, index in the group's part of the epoch) for an index in all records of a group.

  Args:
    length: number of records of an epoch.
    index: index of a record among those that the group gets in all epochs.
    group: number of the group.
    groups: number of groups.
  """
  epoch = ((index + 1) * groups - group - 1) // length
  return epoch, index - count_earlier(length, epoch, group, groups)


@functools.lru_cache(maxsize=64)  # the corpora of a mixture can be in different epochs
def derive_epoch_seed(seed: int, epoch: int) -> int:
  """Returns the seed of the permutations of an epoch, below 2^32.

  Args:
    seed: seed of the run.
    epoch: number of the epoch.
  """
  return int(rng.make_numpy_generator(seed, "order", epoch).integers(2**32))


@functools.lru_cache(maxsize=16)
def _block_table(blocks: int, seed: int, epoch: int) -> np.ndarray:
  return draw_permutation(blocks, seed, "blocks", epoch)
