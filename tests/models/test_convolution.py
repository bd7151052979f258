"""Tests of convolution and max-pooling against NumPy and the operations of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import convolution

pytestmark = pytest.mark.heavy

generator = np.random.default_rng(0)


def normal(*shape):
  return generator.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 1), (7, 2, 3), (4, 4, 0), (5, 1, 2)])
def test_conv_pads_symmetrically(size, stride, padding):
  x, kernel = normal(2, 12, 12, 3), normal(size, size, 3, 5)
  padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  side = (12 + 2 * padding - size) // stride + 1
  expected = np.empty((2, side, side, 5))
  for i in range(side):
    for j in range(side):
      window = padded[:, i * stride : i * stride + size, j * stride : j * stride + size]
      expected[:, i, j] = np.tensordot(window, kernel, 3)
  np.testing.assert_allclose(convolution.conv(x, kernel, stride, padding), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (1, 7, 5, 2), (1, 1, 1, 1), (2, 6, 9, 4)])
def test_max_pool_pads_with_minus_infinity_and_matches_numpy_gradients(shape):
  x = normal(*shape) - 5  # all negative: a border of zeros would win
  b, h, w, c = shape
  padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
  rows, columns = (h + 1) // 2, (w + 1) // 2
  gradient, weight = np.zeros_like(padded), normal(b, rows, columns, c)
  expected = np.empty((b, rows, columns, c), np.float32)
  for index in np.ndindex(b, rows, columns, c):
    n, i, j, k = index
    window = padded[n, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3, k]
    expected[index] = window.max()
    row, column = np.unravel_index(window.argmax(), window.shape)
    gradient[n, 2 * i + row, 2 * j + column, k] += weight[index]
  pooled, back = jax.vjp(convolution.max_pool, jnp.asarray(x))
  np.testing.assert_array_equal(pooled, expected)
  np.testing.assert_allclose(back(jnp.asarray(weight))[0], gradient[:, 1:-1, 1:-1], atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (1, 7, 5, 2)])
def test_max_pool_gradient_matches_xla_if_maxima_tie(shape):
  def own(x):
    border = ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), border)

  x = jnp.round(normal(*shape))
  weight = jnp.asarray(normal(*own(x).shape))
  found, expected = (jax.grad(lambda x, pool=pool: (pool(x) * weight).sum())(x) for pool in (convolution.max_pool, own))
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("side", [8, 9])
def test_max_pool_same_matches_xla_in_value_and_gradient(side):
  def own(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

  x = jnp.asarray(normal(2, side, 7, 3))
  weight = jnp.asarray(normal(*own(x).shape))
  for f, g in ((own, convolution.max_pool_same), (jax.grad(lambda x: (own(x) * weight).sum()), None)):
    found = (g or jax.grad(lambda x: (convolution.max_pool_same(x) * weight).sum()))(x)
    np.testing.assert_allclose(found, f(x), atol=1e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
  ("size", "stride", "padding", "side"),
  [
    (3, 1, 1, 8),
    (7, 2, 3, 9),
    (4, 4, 0, 8),
    (3, 2, 1, 8),
    (3, 2, "same", 8),
    (3, 2, "same", 9),
    (5, 1, "same", 8),
    (1, 2, "same", 8),
    (4, 4, 0, 10),
    (5, 3, "same", 7),
  ],
)
def test_conv_matches_xla_in_value_and_gradient(size, stride, padding, side, groups):
  x, kernel = normal(2, side, side, 4), normal(size, size, 4 // groups, 4)

  def native(x, kernel):
    return jax.lax.conv_general_dilated(
      x,
      kernel,
      (stride, stride),
      "SAME" if padding == "same" else [(padding, padding)] * 2,
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
      feature_group_count=groups,
    )

  weight = normal(*native(x, kernel).shape)
  found, expected = (
    jax.jit(jax.value_and_grad(lambda x, kernel, f=f: (f(x, kernel) * weight).sum(), (0, 1)))(x, kernel)
    for f in (lambda x, kernel: convolution.conv(x, kernel, stride, padding, groups), native)
  )
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
