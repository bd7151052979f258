"""Unit vectors against PyTorch's `normalize`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from vit_jax.selfsup import vectors

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("eps", [1e-12, 1e-8])
def test_vectors_and_gradients_are_those_of_torch(eps):
  draw = np.random.default_rng(0)
  x = np.concatenate([draw.normal(size=(3, 5)), 1e-5 * draw.normal(size=(2, 5)), np.zeros((1, 5))]).astype(np.float32)
  cotangent = draw.normal(size=x.shape).astype(np.float32)
  theirs = torch.tensor(x, requires_grad=True)
  expected = torch.nn.functional.normalize(theirs, dim=-1, eps=eps)
  expected.backward(torch.tensor(cotangent))
  result, backward = jax.vjp(lambda x: vectors.scale_to_unit_length(x, eps), jnp.asarray(x))
  np.testing.assert_allclose(result, expected.detach(), rtol=1e-6, atol=1e-7)
  (gradient,) = backward(jnp.asarray(cotangent))
  np.testing.assert_allclose(gradient[:5], theirs.grad[:5], rtol=2e-4, atol=1e-4)
  assert np.isfinite(gradient).all()


def test_half_precision_is_widened():
  assert vectors.scale_to_unit_length(jnp.ones((2, 4), jnp.bfloat16)).dtype == jnp.float32
