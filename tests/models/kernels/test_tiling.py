"""Tests of tiling: the lanes of each head, and the amount of attention's arrays that one step processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.kernels import tiling


def compute_layout(batch, tokens, heads, size, dtype="bfloat16"):
  x = jax.ShapeDtypeStruct((batch, tokens, heads * size), jnp.dtype(dtype))
  return tiling.cut(x, x, x, heads)


@pytest.mark.heavy
@pytest.mark.parametrize("heads, size", [(12, 64), (3, 64), (4, 32), (16, 80), (3, 80), (4, 88), (4, 104), (2, 128)])
def test_gathered_heads_contain_their_lanes_once_and_scatter_back(heads, size):
  layout = compute_layout(1, 8, heads, size)._replace(lanes=-(-heads * size // 128) * 128)
  x = np.arange(1, layout.lanes + 1, dtype=np.float32)[None]
  groups, back = {i: jnp.asarray(x[:, tiling.slice_group(i)]) for i in range(layout.lanes // 128)}, {}
  for number, head in enumerate(tiling.list_heads(layout)):
    gathered = tiling.gather(head, groups)
    own = np.sort(np.asarray(gathered)[np.asarray(head.mask)])
    np.testing.assert_array_equal(own, x[0, number * size : (number + 1) * size])
    tiling.scatter(head, gathered, back)
  whole = np.concatenate([back[i] for i in range(len(groups))], 1)
  np.testing.assert_array_equal(whole[:, : heads * size], x[:, : heads * size])
  assert not whole[:, heads * size :].any()


@pytest.mark.parametrize(
  "shape, lanes_of_step, chunk, images",
  [((32, 196, 12, 64), 768, 208, 1), ((32, 196, 6, 64), 384, 208, 2), ((32, 256, 16, 80), 640, 256, 1)],
)
def test_step_processes_up_to_twelve_heads_and_all_queries_if_they_fit(shape, lanes_of_step, chunk, images):
  layout = compute_layout(*shape)
  assert (layout.lanes, layout.chunk, layout.images) == (lanes_of_step, chunk, images)


def test_long_sequences_are_cut_into_chunks_of_whole_tiles():
  layout = compute_layout(4, 1025, 12, 64)
  assert layout.chunk < layout.rows == 1040 and layout.chunk % 16 == 0


def test_no_more_heads_than_lanes_share_a_step():
  layout = compute_layout(1, 8, 384, 2)
  assert layout.lanes // layout.size <= 128 and layout.width % layout.lanes == 0
