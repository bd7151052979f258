"""Tests of vit_jax/models/int8.py against NumPy integers, and of the layers and models that use these products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models
from vit_jax.models import int8, layers

pytestmark = pytest.mark.heavy

rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def round_rows(x):
  """Returns the nearest integers of the rows of a matrix, and the scale of each row."""
  scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
  return np.rint(x / scale).astype(np.int64), scale


def product(x, kernel):
  """Returns x @ kernel from integers, with a scale for each row of x and each column of the kernel."""
  (rows, of_row), (columns, of_column) = round_rows(x), round_rows(kernel.T)
  return (rows @ columns.T) * of_row * of_column.T


def test_product_equals_that_of_numpy_integers():
  x, kernel = normal(6, 40) * 10.0 ** rng.integers(-3, 4, (6, 1)), normal(40, 24)
  y = int8.multiply(jnp.float32(x), kernel, jax.random.key(0), 1)
  np.testing.assert_allclose(y, product(np.float32(x), kernel), rtol=1e-5)
  assert np.abs(y - x @ kernel).max() > 0  # it is not the exact product
  np.testing.assert_allclose(y, x @ kernel, atol=0.02 * np.abs(x @ kernel).max())


@pytest.mark.parametrize("rank", [1, 2])
def test_several_axes_are_treated_like_one(rank):
  shape = {1: ((2, 3, 12), (12, 4, 5)), 2: ((2, 3, 4, 3), (4, 3, 5))}[rank]
  x, kernel = normal(*shape[0]), normal(*shape[1])
  y = int8.multiply(jnp.asarray(x), kernel, jax.random.key(0), rank)
  expected = product(x.reshape(6, 12), kernel.reshape(12, -1))
  np.testing.assert_allclose(y.reshape(6, -1), expected, rtol=1e-5)
  assert y.shape == (2, 3, *shape[1][rank:])


def test_gradient_of_the_input_uses_integers_of_the_scaled_gradient():
  x, kernel, gradient, key = normal(5, 12), normal(12, 8), normal(5, 8), jax.random.key(3)
  _, pull = jax.vjp(lambda x: int8.multiply(x, kernel, key, 1), jnp.asarray(x))
  columns, of_column = round_rows(kernel.T)
  scaled = gradient * of_column[:, 0]
  scale = np.abs(scaled).max(1, keepdims=True) / np.float32(127)
  rounded = np.floor(scaled / scale + int8.draw_noise(key, (5,), (8,))).clip(-127, 127)
  np.testing.assert_allclose(pull(jnp.asarray(gradient))[0], rounded @ columns * scale, rtol=1e-4, atol=1e-5)


def test_gradient_of_the_weights_is_the_exact_product():
  x, kernel, gradient = normal(2, 3, 12), normal(12, 4, 2), normal(2, 3, 4, 2)
  _, pull = jax.vjp(lambda kernel: int8.multiply(x, kernel, jax.random.key(0), 1), jnp.asarray(kernel))
  np.testing.assert_allclose(
    pull(jnp.asarray(gradient))[0].reshape(12, 8), x.reshape(6, 12).T @ gradient.reshape(6, 8), rtol=1e-4, atol=1e-5
  )


def test_noise_is_uniform_and_pairwise_independent():
  draw = jax.jit(jax.vmap(lambda key: int8.draw_noise(key, (2,), (3,))))
  noise = np.asarray(draw(jax.random.split(jax.random.key(1), 40_000)), np.float64).reshape(-1, 6)
  assert noise.min() >= 0 and noise.max() < 1
  for column in noise.T:
    shares = np.histogram(column, 10, (0, 1))[0] / len(column)
    np.testing.assert_allclose(shares, 0.1, atol=0.008)
  for one, other in ((0, 1), (0, 3), (0, 4), (2, 5)):  # the same token, the same channel, and neither
    joint = np.histogram2d(noise[:, one], noise[:, other], 4, [(0, 1), (0, 1)])[0] / len(noise)
    np.testing.assert_allclose(joint, 1 / 16, atol=0.006)


def test_stochastic_rounding_is_unbiased_with_the_variance_of_independent_noise():
  kernel, gradient = jnp.asarray(normal(12, 8)), jnp.asarray(normal(1, 8))

  @jax.jit
  @jax.vmap
  def backward(key):
    return jax.vjp(lambda x: int8.multiply(x, kernel, key, 1), jnp.zeros((1, 12)))[1](gradient)[0][0]

  drawn = np.asarray(backward(jax.random.split(jax.random.key(0), 20_000)), np.float64)
  columns, of_column = round_rows(np.asarray(kernel).T)
  scaled = (np.asarray(gradient) * of_column[:, 0])[0].astype(np.float64)
  scale = np.abs(scaled).max() / 127
  variance = ((scaled / scale) % 1 * (1 - (scaled / scale) % 1)) @ columns.astype(np.float64) ** 2 * scale**2
  error = np.sqrt(variance / len(drawn))
  assert (np.abs(drawn.mean(0) - scaled @ columns) < 4.5 * error + 1e-6).all()
  np.testing.assert_allclose(drawn.var(0), variance, rtol=0.08)


def test_zeros_stay_zeros_and_values_that_are_not_finite_remain_visible():
  integers, scale = int8.quantize(jnp.zeros((2, 3)), (1,))
  assert (integers == 0).all() and (scale == 1).all()
  x = jnp.ones((3, 4)).at[1, 2].set(jnp.nan).at[2, 0].set(jnp.inf)
  y = int8.multiply(x, jnp.ones((4, 2)), jax.random.key(0), 1)
  assert np.isfinite(y[0]).all() and not np.isfinite(y[1:]).any()


@pytest.mark.parametrize("inputs", [(6,), (2, 3)])
def test_flat_layer_equals_the_layer(inputs):
  outputs = (2, 4) if len(inputs) == 1 else (8,)
  layer = modules.layer(lambda rngs: layers.Linear(inputs, outputs, matmul="int8", dtype=jnp.float32, rngs=rngs))
  x, scale, key = normal(2, 5, *inputs), normal(outputs[-1]), jax.random.key(1)
  scale = None if len(outputs) == 2 else jnp.asarray(scale)
  whole = layer(jnp.asarray(x), scale, key).reshape(2, 5, 8)
  np.testing.assert_allclose(layer.flat(jnp.asarray(x.reshape(2, 5, -1)), scale=scale, key=key), whole, rtol=1e-5)
  float_result = layer(jnp.asarray(x), scale)
  assert np.abs(whole - float_result.reshape(2, 5, 8)).max() > 0


MODELS = {
  "ViT": ("ViT-S/4", {"attention": {"name": "xla", "qk_norm": "rms"}}),
  "SwiGLU": ("ViT-S/4", {"mlp": "swiglu", "layer_scale": 0.5}),
  "fused": ("ViT-S/4", {"attention": "fused"}),
  "differential": ("ViT-S/4", {"attention": "differential"}),
  "compact": ("vit_2_4_32", {"image_size": 32}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_with_int8_and_evaluate_like_other_models(name):
  family, arguments = MODELS[name]
  plain, integers = (modules.model(family, matmul=matmul, **arguments) for matmul in ("default", "int8"))
  images, key = modules.images(arguments.get("image_size", 16)), jax.random.key(0)
  np.testing.assert_array_equal(modules.run(plain, images), modules.run(integers, images))

  @functools.partial(jax.jit, static_argnums=0)
  def gradient(graph, params):
    return jax.grad(lambda params: jnp.square(nnx.merge(graph, params)(images, key)).sum())(params)

  found = [dict(nnx.to_flat_state(gradient(*nnx.split(model)))) for model in (plain, integers)]
  for path, value in found[0].items():
    other = np.asarray(found[1][path][...])
    assert np.isfinite(other).all()
    if "blocks" in path and "kernel" in path:
      likeness = np.sum(value[...] * other) / np.linalg.norm(value[...]) / np.linalg.norm(other)
      assert 0.9 < likeness < 1 - 1e-7, path


def test_products_of_heads_and_embeddings_are_not_integers():
  model = modules.model(matmul="int8")
  text = str(jax.make_jaxpr(lambda x: model(x, jax.random.key(0)))(modules.images()))
  assert text.count("preferred_element_type=int32") == 3 * 6  # query, key, value, out and two of the MLP in 3 blocks


@pytest.mark.parametrize("remat", ["none", "projections", "full"])
def test_scanned_layers_equal_unrolled_ones(remat):
  listed = modules.model(matmul="int8", depth=2)
  shape = nnx.eval_shape(
    lambda: models.create("ViT-S/4", **(modules.SIZE | dict(matmul="int8", depth=2, scan=True, remat=remat)))
  )
  scanned = modules.stacked(listed, shape)
  images, key = modules.images(), jax.random.key(0)

  def gradient(model):
    graph, params = nnx.split(model)
    loss = jax.jit(jax.grad(lambda params: jnp.square(nnx.merge(graph, params)(images, key)).sum()))
    return dict(nnx.to_flat_state(loss(params)))

  one, other = gradient(listed), gradient(scanned)
  for path, value in other.items():
    expected = value[...]
    rows = [one[("blocks", i, *path[1:])][...] for i in range(2)] if path[0] == "blocks" else one[path][...]
    np.testing.assert_allclose(np.asarray(rows), expected, atol=2e-2 * np.abs(expected).max() + 1e-6, err_msg=path)
