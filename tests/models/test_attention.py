"""vit_jax/models/attention.py against NumPy written from the definitions, and its gradients against JAX's own."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import config, models, schema
from vit_jax.models import activations, layers
from vit_jax.models import attention as formulations
from vit_jax.models.attention import Attention
from vit_jax.parallel import sharding

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def attention(module, x, memory):
  """small.softmax(q k / sqrt(K)) v, one query and one head at a time."""

  def project(part, x):
    return np.einsum("bnd,dhk->bnhk", x, part.kernel[...]) + (0 if part.bias is None else part.bias[...])

  q, k, v = project(module.query, x), project(module.key, memory), project(module.value, memory)
  size, out = q.shape[-1], np.zeros((*x.shape[:2], x.shape[2]))
  for b, p, h in np.ndindex(q.shape[:3]):
    logits = np.array([q[b, p, h] @ k[b, n, h] for n in range(memory.shape[1])])
    if module.offsets is not None:
      table = np.asarray(module.offsets[...])
      # Row j of the table is the offset p - n = N - 1 - j.
      logits = logits + [q[b, p, h] @ table[memory.shape[1] - 1 - (p - n)] for n in range(memory.shape[1])]
    weights = modules.softmax(logits / math.sqrt(size))
    out[b, p] += (weights @ v[b, :, h]) @ np.asarray(module.out.kernel[h])
  return out + module.out.bias[...]


@pytest.mark.parametrize("relative", [None, 7])
@pytest.mark.parametrize("bias", ["all", "query_value", "none"])
def test_attention_is_its_definition(relative, bias):
  module = modules.layer(lambda rngs: Attention(12, 3, relative=relative, bias=bias, dtype=F32, rngs=rngs))
  x = normal(2, 7, 12)
  np.testing.assert_allclose(module(x), attention(module, x, x), atol=1e-5)


def test_attention_to_another_sequence():
  module = modules.layer(lambda rngs: Attention(12, 3, dtype=F32, rngs=rngs))
  x, memory = normal(2, 4, 12), normal(2, 7, 12)
  np.testing.assert_allclose(module(x, memory), attention(module, x, memory), atol=1e-5)


def test_attention_dropout_acts_on_the_weights():
  module = modules.layer(lambda rngs: Attention(12, 3, dropout=0.5, dtype=F32, rngs=rngs))
  x = np.ones((1, 6, 12), np.float32)  # equal values: the output only sees how much weight is left
  runs = np.stack([module(x, key=jax.random.key(i)) for i in range(200)])
  assert np.std(runs, axis=0).min() > 1e-3
  np.testing.assert_allclose(runs.mean((0, 2)), np.asarray(module(x)).mean(1), atol=0.15)


def test_the_gradient_of_a_softmax_times_values_is_jax_s():
  logits, values, weight = 3 * normal(2, 3, 5, 7), normal(2, 7, 3, 4), normal(2, 5, 3, 4)

  def plain(logits, values):
    return jnp.einsum("bhqn,bnhk->bqhk", jax.nn.softmax(logits, axis=-1), values)

  expected, back = jax.vjp(plain, logits, values)
  result, ours = jax.vjp(formulations.averaged, logits, values)
  np.testing.assert_allclose(result, expected, atol=1e-6)
  for found, wanted in zip(ours(jnp.asarray(weight)), back(jnp.asarray(weight)), strict=True):
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_half_precision_loses_no_more_than_its_rounding():
  logits, values, weight = 3 * normal(1, 2, 9, 40), normal(1, 40, 2, 8), normal(1, 9, 2, 8)
  half = [jnp.asarray(x, jnp.bfloat16) for x in (logits, values, weight)]
  exact = [np.asarray(x, np.float32) for x in half]
  _, back = jax.vjp(formulations.averaged, *exact[:2])
  _, rough = jax.vjp(formulations.averaged, *half[:2])
  for found, wanted in zip(rough(half[2]), back(exact[2]), strict=True):
    assert np.abs(np.asarray(found, np.float32) - wanted).max() < 0.02 * np.abs(wanted).max()


def gradients(module, x, weight):
  graph, params = nnx.split(module)
  value, back = jax.vjp(lambda params, x: nnx.merge(graph, params)(x), params, jnp.asarray(x))
  return value, dict(nnx.to_flat_state(back(jnp.asarray(weight))[0]))


def test_the_context_is_normalised_in_front_of_the_last_projection():
  norm = {"context_norm": layers.LayerNorm(12, eps=1e-6, dtype=F32)}
  module = modules.layer(lambda rngs: Attention(12, 3, **norm, dtype=F32, rngs=rngs))
  x = normal(2, 7, 12)
  _, inside = models.capture(module, "attention/context")(x)
  context = np.asarray(inside["attention/context"]).reshape(2, 7, 12)
  normed = (context - context.mean(-1, keepdims=True)) / np.sqrt(context.var(-1, keepdims=True) + 1e-6)
  normed = normed * module.context_norm.scale[...] + module.context_norm.bias[...]
  out = np.asarray(module.out.kernel[...]).reshape(12, 12)
  np.testing.assert_allclose(module(x), normed @ out + module.out.bias[...], atol=1e-5)


PLACED = {
  "turned": {"rotary": {"name": "dinov3"}},
  "normed": {"qk_norm": "layer"},
  "both, with registers": {"rotary": {"name": "mixed"}, "qk_norm": "rms", "registers": 3, "qkv_bias": "query_value"},
  "as ViT-5": {"rotary": {"name": "axial", "registers": 9.0}, "qk_norm": "rms", "registers": 4, "qkv_bias": "none"},
}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("arguments", PLACED.values(), ids=list(PLACED))
def test_the_kernel_takes_queries_and_keys_that_are_normalised_and_turned(arguments, scan):
  """Their biases then change something: that of the key too."""
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
def test_the_kernel_is_the_same_function_of_the_same_weights(heads):
  """And so are all gradients, which the kernel sums over rows by itself. The key's bias has none in either."""
  make = dict(width=32 * heads, heads=heads, dtype=F32)
  plain = modules.layer(lambda rngs: Attention(**make, rngs=rngs), std=0.1)
  fused = nnx.merge(
    nnx.graphdef(nnx.eval_shape(lambda: Attention(**make, formulation="fused", rngs=nnx.Rngs(0)))), nnx.state(plain)
  )
  x, weight = normal(2, 11, 32 * heads), normal(2, 11, 32 * heads)
  expected, wanted = gradients(plain, x, weight)
  value, found = gradients(fused, x, weight)
  np.testing.assert_allclose(value, expected, atol=1e-4)
  assert found.keys() == wanted.keys()
  for path, gradient in wanted.items():
    np.testing.assert_allclose(found[path][...], gradient[...], atol=1e-3, err_msg=str(path))


def test_the_kernel_runs_on_each_device_s_rows_and_heads():
  grid = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2), jax.devices())
  module = modules.layer(lambda rngs: Attention(64, 4, formulation="fused", dtype=F32, rngs=rngs), std=0.1)
  x = normal(8, 5, 64)

  def placed(x):
    with activations.sharded(
      sharding.make_batch_sharding(grid), lambda path, value: value, lambda f: sharding.map_per_device(grid, f)
    ):
      return module(x)

  np.testing.assert_allclose(jax.jit(placed)(x), module(x), atol=1e-5)


@pytest.mark.parametrize("arguments", [{"attention_dropout": 0.1}, {"position": "relative"}])
def test_what_the_kernel_cannot_do_is_an_error(arguments):
  with pytest.raises(
    schema.ConfigError, match="attention 'fused' supports neither attention_dropout nor relative positions"
  ):
    models.create("ViT-Ti/8", 16, classes=3, depth=1, attention="fused", **arguments)
