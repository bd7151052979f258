"""Tests of vit_jax/models/layers.py against NumPy formulas."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.stats

from tests import modules
from vit_jax.models import layers

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def norm(x, scale, bias, eps):
  x = np.asarray(x, np.float64)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * scale + bias


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_drops_at_the_rate_and_scales_the_rest(dtype):
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


def test_drop_path_gives_the_same_result_for_a_traced_rate():
  x, key = jnp.asarray(normal(512, 4)), jax.random.key(3)
  traced = jax.jit(layers.drop_path)(x, np.float32(0.1), key)
  np.testing.assert_allclose(traced, layers.drop_path(x, np.float32(0.1), key), rtol=1e-6)
  np.testing.assert_allclose(jax.jit(layers.drop_path)(x, np.float32(0), key), x)


def test_layer_norm_uses_the_biased_variance_and_float32_statistics():
  module = modules.layer(lambda rngs: layers.LayerNorm(32, eps=1e-2, dtype=jnp.dtype("bfloat16")))
  x = normal(4, 32) * 0.1 + 300  # in bfloat16 the mean of squares would lose all digits
  expected = norm(x, module.scale[...], module.bias[...], 1e-2)
  y = module(x)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(y.astype(F32), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_mlp_matches_its_numpy_definition(gelu):
  module = modules.layer(lambda rngs: layers.Mlp(6, 10, gelu=gelu, dtype=F32, rngs=rngs))
  x = normal(2, 3, 6)
  h = x @ np.asarray(module.up.kernel[...]) + module.up.bias[...]
  if gelu == "erf":
    h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
  else:
    h = h * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
  expected = h @ np.asarray(module.down.kernel[...]) + module.down.bias[...]
  np.testing.assert_allclose(module(x), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_and_its_slope_match_the_normal_distribution(dtype):
  x = jnp.linspace(-9, 9, 4001).astype(dtype)
  wide = np.asarray(x, np.float64)
  below = scipy.stats.norm.cdf(wide)
  value, slope = jax.vmap(jax.value_and_grad(layers.gelu))(x)
  assert value.dtype == slope.dtype == x.dtype
  tolerance = {"float32": {"rtol": 0, "atol": 1e-6}, "bfloat16": {"rtol": 2**-8, "atol": 1e-6}}[dtype]
  np.testing.assert_allclose(np.asarray(value, np.float64), wide * below, **tolerance)
  np.testing.assert_allclose(np.asarray(slope, np.float64), below + wide * scipy.stats.norm.pdf(wide), **tolerance)


def test_linear_initialises_its_kernel_as_one_matrix():
  seen = []

  def kernel_init(key, shape, dtype):
    seen.append(shape)
    return jnp.zeros(shape, dtype)

  modules.layer(lambda rngs: layers.Linear((12,), (3, 4), kernel_init=kernel_init, dtype=F32, rngs=rngs))
  assert seen == [(12, 12)]


def test_rms_norm_matches_its_definition_with_float32_statistics():
  module = modules.layer(lambda rngs: layers.RMSNorm(6, eps=1e-5, dtype=jnp.dtype("bfloat16")))
  x = np.random.default_rng(0).standard_normal((3, 6)).astype(ml_dtypes.bfloat16)
  exact = x.astype(np.float64)
  expected = exact / np.sqrt(np.square(exact).mean(-1, keepdims=True) + 1e-5) * module.scale[...]
  found = module(x)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-8)


@pytest.mark.parametrize("normed", [False, True])
def test_swiglu_matches_its_numpy_definition(normed):
  norm = layers.LayerNorm(10, eps=1e-6, dtype=jnp.dtype("float32")) if normed else None
  module = modules.layer(lambda rngs: layers.SwiGLU(6, 10, norm=norm, dtype=jnp.dtype("float32"), rngs=rngs))
  x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)
  gate, up = (x @ part.kernel[...] + part.bias[...] for part in (module.gate, module.up))
  hidden = gate / (1 + np.exp(-gate)) * up
  if normed:
    mean, variance = hidden.mean(-1, keepdims=True), hidden.var(-1, keepdims=True)
    hidden = (hidden - mean) / np.sqrt(variance + 1e-6) * module.norm.scale[...] + module.norm.bias[...]
  np.testing.assert_allclose(module(x), hidden @ module.down.kernel[...] + module.down.bias[...], atol=1e-5)
