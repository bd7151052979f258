"""Permutations of an epoch: of any length by a function of the index, of few blocks by a table."""

import functools

import numpy as np
from grain.experimental import index_shuffle

from vit_jax import rng

# Grain's function finds its place in at least 2^16 numbers: of 2^15 blocks or more 6 us, of 500 blocks 0.1 ms, of 10
# 5 ms. Up to here all numbers are drawn at once instead, which takes up to 5 ms an epoch.
TABLE = 2**16


def entry(index: int, length: int, seed: int, epoch: int) -> int:
  """What a permutation of the numbers below `length` has at an index."""
  return index_shuffle(index, max_index=length - 1, seed=epoch_seed(seed, epoch), rounds=4)


def of_blocks(block: int, blocks: int, seed: int, epoch: int) -> int:
  """The same of blocks, from a table where they are few."""
  if blocks <= TABLE:
    return int(_table(blocks, seed, epoch)[block])
  return entry(block, blocks, seed, epoch)


def drawn(size: int, seed: int, name: str, *numbers: int) -> np.ndarray:
  """Of the numbers below `size`, from bits that no version of NumPy changes (NEP 19), as its `permutation` may."""
  return np.argsort(rng.generator(seed, name, *numbers).bit_generator.random_raw(size), kind="stable")


# An epoch in parts, one for each group: of all epochs together a group has its share of records, but for less than one.


def begin(length: int, epoch: int, group: int, groups: int) -> int:
  """How many records a group has of all epochs before; of all groups together that are epoch * length (Hermite)."""
  return (epoch * length + group) // groups


def part(length: int, epoch: int, group: int, groups: int) -> range:
  """What a group has of an epoch; the groups' parts follow each other."""

  def before(records):
    """What the groups before this one have of the first epochs, with so many records."""
    each, left = divmod(records, groups)
    return group * each + max(0, group + left - groups)

  first = before((epoch + 1) * length) - before(epoch * length)
  return range(first, first + begin(length, epoch + 1, group, groups) - begin(length, epoch, group, groups))


def locate(length: int, index: int, group: int, groups: int) -> tuple[int, int]:
  """(epoch, index in the group's part of it) of what a group has at an index of all epochs."""
  epoch = ((index + 1) * groups - group - 1) // length
  return epoch, index - begin(length, epoch, group, groups)


@functools.lru_cache(maxsize=64)  # the corpora of a mixture are in epochs of their own
def epoch_seed(seed: int, epoch: int) -> int:
  """What the permutations of an epoch follow from, below 2^32."""
  return int(rng.generator(seed, "order", epoch).integers(2**32))


@functools.lru_cache(maxsize=16)
def _table(blocks, seed, epoch):
  return drawn(blocks, seed, "blocks", epoch)
