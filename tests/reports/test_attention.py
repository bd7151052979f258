"""Tests of vit_jax/reports/attention.py against loops and matrix products in NumPy."""

import math

import jax
import numpy as np
import pytest

from tests.modules import softmax
from vit_jax.reports import attention

pytestmark = pytest.mark.heavy

GRID = (2, 3)


def weights(prefix, layers=3, batch=2, heads=2, sharpness=3.0):
  """Returns random attention weights [L, B, H, T, T]. Rows sum to 1."""
  tokens = prefix + GRID[0] * GRID[1]
  draw = np.random.default_rng(prefix)
  return softmax(sharpness * draw.standard_normal((layers, batch, heads, tokens, tokens))).astype(np.float32)


def on_class_token(prefix, tokens):
  return np.eye(1, prefix + tokens, dtype=np.float32)


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_distance_is_the_mean_over_queries_weighted_by_attention(prefix):
  layer = weights(prefix)[0]
  found = jax.jit(lambda x: attention.measure_head_distances(x, GRID, 16))(layer)
  for image, head in np.ndindex(2, 2):
    of_queries = []
    for i, j in np.ndindex(GRID):
      row = layer[image, head, prefix + 3 * i + j, prefix:].reshape(GRID).astype(np.float64)
      far = [row[k, m] * 16 * math.dist((i, j), (k, m)) for k, m in np.ndindex(GRID)]
      of_queries.append(sum(far) / row.sum())
    np.testing.assert_allclose(found[image, head], np.mean(of_queries), rtol=1e-5)


def test_distances_have_known_values_for_simple_patterns():
  itself = np.eye(6, dtype=np.float32)[None, None]
  np.testing.assert_allclose(attention.measure_head_distances(itself, GRID, 8), [[0]])
  mirrored = itself.reshape(1, 1, 6, *GRID)[..., ::-1, :].reshape(1, 1, 6, 6)  # each query attends to the other row
  np.testing.assert_allclose(attention.measure_head_distances(mirrored, GRID, 8), [[8]])
  alike = np.full((1, 1, 6, 6), 1 / 6, np.float32)
  np.testing.assert_allclose(
    attention.measure_head_distances(alike, GRID, 8), [[attention.measure_patch_distances(GRID, 8).mean()]], rtol=1e-6
  )


def test_attention_to_prefix_tokens_does_not_count_as_distance():
  layer = weights(1)[0]
  half = layer.copy()
  half[..., 1:] /= 2
  half[..., 0] = 1 - half[..., 1:].sum(-1)
  far = attention.measure_head_distances(layer, GRID, 16)
  np.testing.assert_allclose(attention.measure_head_distances(half, GRID, 16), far, rtol=1e-5)
  only = np.zeros_like(layer)
  only[..., 0] = 1
  np.testing.assert_array_equal(attention.measure_head_distances(only, GRID, 16), np.zeros((2, 2)))


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("heads", ["mean", "max"])
def test_rollout_is_the_product_of_all_layers(prefix, heads):
  layers = weights(prefix)
  pooling = np.full((1, prefix + 6), 1 / 6, np.float32) * (np.arange(prefix + 6) >= prefix)
  pooling = on_class_token(prefix, 6) if prefix else pooling
  found = jax.jit(lambda x: attention.compute_rollout(list(x), pooling, GRID, heads))(layers)
  for image in range(2):
    product = np.eye(prefix + 6)
    for layer in layers.astype(np.float64):
      a = getattr(layer[image], heads)(axis=0) / 2 + np.eye(prefix + 6) / 2
      product = (a / a.sum(axis=1, keepdims=True)) @ product
    expected = product[0] if prefix else product.mean(axis=0)
    np.testing.assert_allclose(found[image], expected[prefix:].reshape(GRID), rtol=1e-5, atol=1e-7)


def test_rollout_without_prefix_tokens_sums_to_one():
  pooling = softmax(np.random.default_rng(0).standard_normal((2, 6))).astype(np.float32)
  found = attention.compute_rollout(list(weights(0)), pooling, GRID)
  np.testing.assert_allclose(found.sum((1, 2)), [1, 1], rtol=1e-5)


def test_maps_are_the_row_of_the_class_token_or_a_mean_of_rows():
  layer = weights(1)[2]
  found = attention.compute_attention_maps(layer, on_class_token(1, 6), GRID)
  np.testing.assert_allclose(found, layer[:, :, 0, 1:].reshape(2, 2, *GRID), rtol=1e-6)
  pooling = softmax(np.random.default_rng(0).standard_normal((2, 7))).astype(np.float32)
  found = attention.compute_attention_maps(layer, pooling, GRID)
  for image, head in np.ndindex(2, 2):
    expected = sum(pooling[image, q] * layer[image, head, q, 1:] for q in range(7))
    np.testing.assert_allclose(found[image, head], expected.reshape(GRID), rtol=1e-5)
