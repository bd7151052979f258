"""Resized patch features against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.selfsup import device_counts
from vit_jax.selfsup import resize

pytestmark = pytest.mark.heavy


@pytest.mark.sample(2)
@pytest.mark.parametrize(("old", "new"), [((32, 32), (16, 16)), ((7, 10), (5, 4)), ((4, 4), (7, 9)), ((3, 4), (3, 4))])
def test_patches_are_resized_as_by_torch(old, new):
  x = np.random.default_rng(0).normal(size=(2, 3, *old, 5)).astype(np.float32)
  planes = torch.tensor(x).flatten(0, 1).permute(0, 3, 1, 2)
  expected = torch.nn.functional.interpolate(planes, size=new, mode="bicubic", align_corners=False, antialias=False)
  result = resize.resize_patches(x.reshape(2, 3, -1, 5), old, new)
  assert result.shape == (2, 3, new[0] * new[1], 5)
  np.testing.assert_allclose(
    result.reshape(6, *new, 5), expected.permute(0, 2, 3, 1).numpy(), atol=3e-6 * np.abs(x).max()
  )


def test_half_precision_is_widened_and_the_function_compiles():
  x = jax.random.normal(jax.random.key(0), (2, 16, 3))
  result = jax.jit(lambda x: resize.resize_patches(x, (4, 4), (2, 2)))(x.astype(jnp.bfloat16))
  assert result.dtype == jnp.float32
  np.testing.assert_allclose(result, resize.resize_patches(x, (4, 4), (2, 2)), atol=0.05)


def test_results_are_equal_on_one_and_eight_devices():
  x = np.random.default_rng(0).normal(size=(16, 36, 4)).astype(np.float32)
  device_counts.compare(lambda x: resize.resize_patches(x, (6, 6), (3, 3)), x)
