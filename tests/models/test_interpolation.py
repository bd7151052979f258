"""Tests of interpolation weights, the shares of old rows in new rows, against PyTorch along one axis."""

import numpy as np
import pytest
import torch

from vit_jax.models import interpolation

METHODS = ("zoom", "bilinear", "bilinear_antialiased", "bicubic", "bicubic_antialiased", "bicubic_offset")


@pytest.mark.parametrize(("old", "new"), [(14, 7), (5, 9), (37, 32), (1, 4), (6, 6)])
@pytest.mark.parametrize("method", METHODS)
def test_weights_of_a_row_sum_to_one(method, old, new):
  weights = interpolation.compute_weights(old, new, method)
  assert weights.shape == (new, old) and weights.dtype == np.float64
  np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(("old", "new"), [(14, 7), (5, 9), (32, 16)])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_weights_match_torch(kind, antialias, old, new):
  rows = torch.eye(old, dtype=torch.float64).reshape(1, old, old, 1).expand(1, old, old, 2)
  expected = torch.nn.functional.interpolate(rows, size=(new, 2), mode=kind, align_corners=False, antialias=antialias)[
    0, :, :, 0
  ].T
  weights = interpolation.compute_weights(old, new, f"{kind}_antialiased" if antialias else kind)
  np.testing.assert_allclose(weights, expected.numpy(), atol=1e-6)
