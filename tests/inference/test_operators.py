"""Tests of ONNX nodes against NumPy or JAX, for each primitive that a model computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.inference.test_graph import written
from vit_jax.inference import operators

pytestmark = pytest.mark.heavy

DRAW = np.random.default_rng(0)
KERNEL = DRAW.standard_normal((3, 3, 3, 6)).astype(np.float32)
DEEP = DRAW.standard_normal((3, 3, 1, 3)).astype(np.float32)
PACKED = DRAW.standard_normal((3, 2, 5)).astype(np.float32)
LAYOUT = ("NHWC", "HWIO", "NHWC")

FUNCTIONS = {
  "arithmetic": lambda x: -x / 3 + x * 2 - 1 + x**2 + x**3 + lax.integer_pow(x + 1, -1),
  "functions": lambda x: (
    jnp.tanh(x) + jnp.exp(-x) + jnp.log(jnp.abs(x) + 1) + jnp.sin(x) * jnp.cos(x) + lax.rsqrt(x + 1) + jnp.sqrt(x)
  ),
  "activations": lambda x: lax.erf(x) + lax.erfc(x) + jax.nn.sigmoid(x) + jax.nn.relu(x - 1) + jnp.minimum(x, 1),
  "gelu": lambda x: jax.nn.gelu(x - 1, approximate=False) + jax.nn.gelu(x - 1, approximate=True),
  "choice": lambda x: jnp.where(x > 1, x, -x) + jnp.where(x <= 1, 0.0, 1.0),
  "softmax": lambda x: jax.nn.softmax(x, -1) + x.mean((1, 2), keepdims=True) + x.max((1, 3), keepdims=True),
  "axes": lambda x: jnp.tile(x.transpose(0, 3, 1, 2), (1, 2, 1, 1))[:, 1:5:2, 1:][..., :1].squeeze(-1),
  "borders": lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)), constant_values=7),
  "patches": lambda x: (
    x.reshape(-1, 2, 2, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 12) @ KERNEL.ravel()[:60].reshape(12, 5)
  ),
  "convolution": lambda x: lax.conv_general_dilated(x, KERNEL, (2, 2), ((0, 1), (1, 1)), dimension_numbers=LAYOUT),
  "depthwise": lambda x: lax.conv_general_dilated(
    x, DEEP, (1, 1), "SAME", dimension_numbers=LAYOUT, feature_group_count=3
  ),
  "pooling": lambda x: lax.reduce_window(
    x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
  ),
  "heads": lambda x: jnp.einsum("bhwc,ckd->bkhwd", x, PACKED),
  "attention": lambda x: jnp.einsum("bhwc,bkwc->bwhk", x, x + 1),
  "packed": lambda x: jnp.einsum("bhkc,ckd->bhd", x[:, :, :2], PACKED),
  "branch": lambda x: lax.platform_dependent(x, cpu=lambda x: x * jnp.nan, default=lambda x: x + 1),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_node_computes_the_same_as_the_primitive(name):
  function = FUNCTIONS[name]
  _, session = written(lambda images: function(images.astype(jnp.float32) / 100))
  for count in (2, 5):
    images = np.random.default_rng(count).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    pixels = images.astype(np.float32) / 100
    expected = pixels + 1 if name == "branch" else jax.jit(function)(pixels)
    np.testing.assert_allclose(session.run(None, {"images": images})[0], expected, rtol=1e-5, atol=1e-5)


def test_every_operator_is_a_function():
  assert all(map(callable, operators.OPERATORS.values()))
