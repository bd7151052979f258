"""Tests that attention with the kernel of vit_jax/models/fused.py equals attention without the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import config, models, schema
from vit_jax.models import activations
from vit_jax.models.attention import Attention
from vit_jax.models.fused import Fused
from vit_jax.parallel import sharding

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def gradients(module, x, weight):
  graph, params = nnx.split(module)
  value, back = jax.vjp(lambda params, x: nnx.merge(graph, params)(x), params, jnp.asarray(x))
  return value, dict(nnx.to_flat_state(back(jnp.asarray(weight))[0]))


PLACED = {
  "turned": {"rotary": {"name": "dinov3"}},
  "normed": {"qk_norm": "layer"},
  "both, with registers": {"rotary": {"name": "mixed"}, "qk_norm": "rms", "registers": 3, "qkv_bias": "query_value"},
  "as ViT-5": {"rotary": {"name": "axial", "registers": 9.0}, "qk_norm": "rms", "registers": 4, "qkv_bias": "none"},
}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("arguments", PLACED.values(), ids=list(PLACED))
def test_kernel_supports_normalised_and_rotated_queries_and_keys(arguments, scan):
  """With norms and rotations, the biases of queries and keys change the output. This includes the key's bias."""
  arguments = dict(depth=2, width=64, heads=2, scan=scan, pool="gap", **arguments)
  plain = modules.model(**arguments)
  fused = nnx.merge(
    nnx.graphdef(nnx.eval_shape(lambda: models.create("ViT-S/4", **(modules.SIZE | arguments), attention="fused"))),
    nnx.state(plain),
  )
  weight = normal(3, 5)
  (expected, wanted), (value, found) = (gradients(module, modules.images(), weight) for module in (plain, fused))
  np.testing.assert_allclose(value, expected, atol=1e-4)
  for path, gradient in wanted.items():
    largest = np.abs(gradient[...]).max()
    np.testing.assert_allclose(found[path][...], gradient[...], atol=1e-4 * max(largest, 1e-2), err_msg=str(path))


@pytest.mark.parametrize("heads", [2, 4])
def test_kernel_matches_plain_attention_in_value_and_gradients(heads):
  """All gradients agree too. The kernel sums them over rows by itself. The key's bias has a zero gradient in both."""
  make = dict(width=32 * heads, heads=heads, dtype=F32)
  plain = modules.layer(lambda rngs: Attention(**make, rngs=rngs), std=0.1)
  fused = nnx.merge(
    nnx.graphdef(nnx.eval_shape(lambda: Attention(**make, kernel=Fused(), rngs=nnx.Rngs(0)))), nnx.state(plain)
  )
  x, weight = normal(2, 11, 32 * heads), normal(2, 11, 32 * heads)
  expected, wanted = gradients(plain, x, weight)
  value, found = gradients(fused, x, weight)
  np.testing.assert_allclose(value, expected, atol=1e-4)
  assert found.keys() == wanted.keys()
  for path, gradient in wanted.items():
    np.testing.assert_allclose(found[path][...], gradient[...], atol=1e-3, err_msg=str(path))


def test_kernel_runs_on_the_rows_and_heads_of_each_device():
  grid = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2), jax.devices())
  module = modules.layer(lambda rngs: Attention(64, 4, kernel=Fused(), dtype=F32, rngs=rngs), std=0.1)
  x = normal(8, 5, 64)

  def run_on_mesh(x):
    with activations.shard_activations(
      sharding.make_batch_sharding(grid), lambda path, value: value, lambda f: sharding.map_per_device(grid, f)
    ):
      return module(x)

  np.testing.assert_allclose(jax.jit(run_on_mesh)(x), module(x), atol=1e-5)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"attention": {"name": "fused", "dropout": 0.1}}, r"model.attention.dropout: unknown key for 'fused'.* xla, diff"),
    ({"attention": "fused", "position": "relative"}, "attention 'fused' does not support position 'relative'"),
  ],
)
def test_options_that_the_kernel_does_not_support_are_errors(arguments, message):
  with pytest.raises(schema.ConfigError, match=message):
    models.create("ViT-Ti/8", 16, classes=3, depth=1, **arguments)
