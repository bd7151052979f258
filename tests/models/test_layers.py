"""vit_jax/models/layers.py against NumPy written from the definitions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax.models import layers

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def norm(x, scale, bias, eps):
  x = np.asarray(x, np.float64)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * scale + bias


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
  np.testing.assert_allclose(layers.conv(x, kernel, stride, padding), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (1, 7, 5, 2), (1, 1, 1, 1), (2, 6, 9, 4)])
def test_max_pool_has_a_border_of_minus_infinity_and_sends_the_gradient_to_the_maximum(shape):
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
  pooled, back = jax.vjp(layers.max_pool, jnp.asarray(x))
  np.testing.assert_array_equal(pooled, expected)
  np.testing.assert_allclose(back(jnp.asarray(weight))[0], gradient[:, 1:-1, 1:-1], atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (1, 7, 5, 2)])
def test_max_pool_has_xlas_own_gradient_where_maxima_tie(shape):
  def own(x):
    border = ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), border)

  x = jnp.round(normal(*shape))
  weight = jnp.asarray(normal(*own(x).shape))
  found, expected = (jax.grad(lambda x, pool=pool: (pool(x) * weight).sum())(x) for pool in (layers.max_pool, own))
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("side", [8, 9])
def test_max_pool_same_is_that_of_xla_in_value_and_gradient(side):
  def own(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

  x = jnp.asarray(normal(2, side, 7, 3))
  weight = jnp.asarray(normal(*own(x).shape))
  for f, g in ((own, layers.max_pool_same), (jax.grad(lambda x: (own(x) * weight).sum()), None)):
    found = (g or jax.grad(lambda x: (layers.max_pool_same(x) * weight).sum()))(x)
    np.testing.assert_allclose(found, f(x), atol=1e-6)


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
def test_both_ways_to_convolve_agree_in_value_and_gradient(size, stride, padding, side, groups):
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
    for f in (lambda x, kernel: layers.conv(x, kernel, stride, padding, groups), native)
  )
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_drops_the_rate_and_keeps_the_mean(dtype):
  x = jnp.ones((400, 500), dtype)
  y = layers.dropout(x, 0.3, jax.random.key(0))
  assert y.dtype == x.dtype
  np.testing.assert_allclose(np.mean(np.asarray(y == 0)), 0.3, atol=0.005)
  np.testing.assert_allclose(np.unique(np.asarray(y, np.float32)), [0, 1 / 0.7], rtol=0.01)
  assert layers.dropout(x, 0.3, None) is x and layers.dropout(x, 0.0, jax.random.key(0)) is x
  assert layers.dropout(jnp.ones((2, 3)), 0.999999, jax.random.key(0)).shape == (2, 3)  # an odd axis, an extreme rate


def test_drop_path_drops_whole_examples_and_keeps_the_expectation():
  x = jnp.asarray(1 + np.abs(normal(20_000, 2, 3)))
  y = np.asarray(layers.drop_path(x, np.float32(0.2), jax.random.key(0)))
  dropped = np.all(y == 0, axis=(1, 2))
  np.testing.assert_allclose(y[~dropped], np.asarray(x)[~dropped] / 0.8, rtol=1e-5)
  np.testing.assert_allclose(dropped.mean(), 0.2, atol=0.01)
  np.testing.assert_allclose(y.mean(), x.mean(), rtol=0.02)


def test_drop_path_draws_the_same_for_a_traced_rate():
  x, key = jnp.asarray(normal(512, 4)), jax.random.key(3)
  traced = jax.jit(layers.drop_path)(x, np.float32(0.1), key)
  np.testing.assert_allclose(traced, layers.drop_path(x, np.float32(0.1), key), rtol=1e-6)
  np.testing.assert_allclose(jax.jit(layers.drop_path)(x, np.float32(0), key), x)


def test_layer_norm_has_the_biased_variance_and_float32_statistics():
  module = modules.layer(lambda rngs: layers.LayerNorm(32, eps=1e-2, dtype=jnp.dtype("bfloat16")))
  x = normal(4, 32) * 0.1 + 300  # in bfloat16 the mean of squares would lose all digits
  expected = norm(x, module.scale[...], module.bias[...], 1e-2)
  y = module(x)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(y.astype(F32), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_mlp_is_its_definition(gelu):
  module = modules.layer(lambda rngs: layers.Mlp(6, 10, gelu=gelu, dtype=F32, rngs=rngs))
  x = normal(2, 3, 6)
  h = x @ np.asarray(module.up.kernel[...]) + module.up.bias[...]
  if gelu == "erf":
    h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
  else:
    h = h * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
  expected = h @ np.asarray(module.down.kernel[...]) + module.down.bias[...]
  np.testing.assert_allclose(module(x), expected, atol=1e-5)


def test_linear_initialises_its_kernel_as_one_matrix():
  seen = []

  def kernel_init(key, shape, dtype):
    seen.append(shape)
    return jnp.zeros(shape, dtype)

  modules.layer(lambda rngs: layers.Linear((12,), (3, 4), kernel_init=kernel_init, dtype=F32, rngs=rngs))
  assert seen == [(12, 12)]
