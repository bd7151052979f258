"""Tests of batches as global arrays: the placement of rows on the mesh, and closing."""

import jax
import numpy as np
import pytest

from vit_jax import config
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.parallel import sharding


class Rows:
  """An iterator over two batches of row numbers."""

  def __init__(self, rows):
    self.rows, self.left, self.closed, self.skipped = rows, 2, False, 3

  def __next__(self):
    if not self.left:
      raise StopIteration
    self.left -= 1
    return {"row": self.rows.copy(), "image": np.stack([np.full((2, 2), row) for row in self.rows])}

  def close(self):
    self.closed = True


@pytest.mark.parametrize("sizes", [{"data": 8}, {"data": 2, "fsdp": 4}, {"data": 4, "tensor": 2}], ids=str)
def test_global_arrays_contain_all_rows_in_order_over_the_batch_axes(sizes):
  grid = sharding.make_mesh(config.Mesh(**sizes), jax.devices())
  split = sharding.make_batch_sharding(grid)
  local = Rows(sharding.find_local_rows(split, 16))
  batches = list(DeviceBatches(local, local.rows, 16, split))
  assert len(batches) == 2
  for batch in batches:
    np.testing.assert_array_equal(batch["row"], np.arange(16))
    assert batch["image"].sharding.is_equivalent_to(split, 3)
    shards = {shard.data.shape[0] for shard in batch["image"].addressable_shards}
    assert shards == {16 // sharding.count_batch_shards(grid)}


def test_closing_ends_the_stream_and_skipped_images_are_counted():
  local = Rows(np.arange(8))
  batches = DeviceBatches(
    local, local.rows, 8, sharding.make_batch_sharding(sharding.make_mesh(config.Mesh(), jax.devices()))
  )
  assert batches.skipped == 3
  batches.close()
  assert local.closed
