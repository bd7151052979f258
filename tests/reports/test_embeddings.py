"""Tests of vit_jax/reports/embeddings.py against scikit-learn and loops."""

import math

import numpy as np
import pytest
import sklearn.decomposition

from vit_jax.models import positions
from vit_jax.reports import embeddings

draw = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(4, 4, 3, 64), (3, 3, 3, 64), (8, 8, 3, 20)])
def test_filters_match_the_principal_components_of_scikit_learn(shape):
  kernel = draw.standard_normal(shape).astype(np.float32)
  found = embeddings.compute_filters(kernel)
  p, _, c, d = shape
  assert len(found.filters) == min(28, p * p * c, d - 1)  # subtracting the mean removes one dimension
  points = [[kernel[i, j, k, n] for i in range(p) for j in range(p) for k in range(c)] for n in range(d)]
  pca = sklearn.decomposition.PCA(len(found.filters), svd_solver="full").fit(np.asarray(points, np.float64))
  np.testing.assert_allclose(found.share, pca.explained_variance_ratio_, atol=1e-6)
  for ours, theirs in zip(found.filters.reshape(len(found.filters), -1), pca.components_, strict=True):
    sign = np.sign(theirs[np.abs(theirs).argmax()])
    np.testing.assert_allclose(ours, sign * theirs, atol=1e-5)
    assert ours[np.abs(ours).argmax()] > 0


def test_filters_of_gray_kernels_have_no_colour_component():
  grey = draw.standard_normal((3, 3, 1, 64)).repeat(3, axis=2).astype(np.float32)
  found = embeddings.compute_filters(grey)
  assert len(found.filters) == 9
  np.testing.assert_allclose(found.filters[..., 0], found.filters[..., 2], atol=1e-6)
  np.testing.assert_allclose(found.share.sum(), 1, rtol=1e-6)


def test_identical_filters_have_no_components():
  found = embeddings.compute_filters(np.ones((2, 2, 3, 8), np.float32))
  assert found.filters.shape == (0, 2, 2, 3) and found.share.shape == (0,)


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_similarity_is_the_cosine_between_patches_without_prefix_tokens(prefix):
  table = draw.standard_normal((prefix + 6, 5)).astype(np.float32)
  found = embeddings.compute_similarity(table, (2, 3))
  for i, j, k, m in np.ndindex(2, 3, 2, 3):
    a, b = table[prefix + 3 * i + j].tolist(), table[prefix + 3 * k + m].tolist()
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    np.testing.assert_allclose(found[i, j, k, m], dot / (math.hypot(*a) * math.hypot(*b)), atol=1e-6)


def test_fixed_positions_are_more_similar_if_they_are_near():
  found = embeddings.compute_similarity(positions.compute_sincos2d(7, 7, 64), (7, 7))
  np.testing.assert_allclose(found[3, 3, 3, 3], 1, rtol=1e-6)
  assert found[3, 3, 3, 4] > found[3, 3, 3, 6] and found[3, 3, 4, 3] > found[3, 3, 0, 3]


def test_position_of_zeros_is_similar_to_no_other():
  table = np.concatenate([np.zeros((1, 4)), np.ones((3, 4))]).astype(np.float32)
  found = embeddings.compute_similarity(table, (2, 2))
  assert not found[0, 0].any() and found[0, 1, 1, 1] == pytest.approx(1)


def test_too_short_table_is_refused():
  with pytest.raises(ValueError, match=r"5 position embeddings, but a grid of 2 x 3 patches needs 6"):
    embeddings.compute_similarity(np.ones((5, 4), np.float32), (2, 3))
