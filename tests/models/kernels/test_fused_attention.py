"""Tests of fused attention: interpreted on the CPU against a plain formulation, and lowered for a TPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from vit_jax import schema
from vit_jax.models.kernels import tiling
from vit_jax.models.kernels.fused_attention import fused_attention

pytestmark = pytest.mark.heavy

TOLERANCE = {"float32": 3e-6, "bfloat16": 1.5e-2}  # relative to the largest value: a few rounding errors of each type


def plain(query, key, value, query_bias, value_bias, heads):
  """Computes attention from its definition in float32."""
  query, key, value = (x.astype(jnp.float32).reshape(*x.shape[:2], heads, -1) for x in (query, key, value))
  size = query.shape[-1]
  if query_bias is not None:
    query = query + query_bias.reshape(heads, size)
  weights = jax.nn.softmax(jnp.einsum("bqhk,bnhk->bhqn", query, key, precision="highest") / size**0.5, -1)
  context = jnp.einsum("bhqn,bnhk->bqhk", weights, value, precision="highest")
  if value_bias is not None:
    context = context + value_bias.reshape(heads, size)
  return context.reshape(*context.shape[:2], heads * size)


def draw(batch, tokens, heads, size, dtype, scale=1.0):
  """Draws query, key, value, the gradient of the context and two biases."""
  keys = jax.random.split(jax.random.key(batch * tokens + heads * size), 6)
  arrays = [jax.random.normal(key, (batch, tokens, heads * size)).astype(dtype) for key in keys[:4]]
  arrays[0] = arrays[0] * scale
  return *arrays, *(jax.random.normal(key, (heads * size,)) for key in keys[4:])


def run(attention, heads, query, key, value, gradient, query_bias, value_bias):
  """Returns the context, and the gradients of all arrays that are not None, as float32."""

  # The gradient is an argument because XLA on CPU folds constants incorrectly through a bitcast between widths.
  @jax.jit
  def both(arrays, gradient):
    context, backward = jax.vjp(lambda x: attention(*x, heads), arrays)
    return context, backward(gradient.astype(context.dtype))[0]

  leaves = jax.tree.leaves(both((query, key, value, query_bias, value_bias), gradient))
  return [np.asarray(x, np.float32) for x in leaves]


def check(heads, arrays, dtype):
  for mine, other in zip(run(fused_attention, heads, *arrays), run(plain, heads, *arrays), strict=True):
    assert mine.shape == other.shape
    np.testing.assert_allclose(mine, other, rtol=0, atol=TOLERANCE[dtype] * max(np.abs(other).max(), 1))


CASES = (  # batch, tokens, heads, size, dtype
  (1, 1, 1, 16, "float32"), (2, 5, 2, 16, "bfloat16"), (3, 17, 12, 16, "float32"), (1, 50, 3, 32, "bfloat16"),
  (2, 17, 2, 32, "float32"), (1, 1, 1, 64, "bfloat16"), (2, 50, 3, 64, "float32"), (3, 17, 2, 64, "bfloat16"),
  (1, 5, 12, 64, "float32"), (2, 5, 2, 80, "float32"), (1, 50, 3, 80, "bfloat16"), (1, 17, 12, 80, "float32"),
  (2, 17, 2, 128, "bfloat16"), (1, 50, 1, 128, "float32"), (1, 33, 2, 88, "bfloat16"), (1, 16, 2, 104, "float32"),
)  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_context_and_all_five_gradients_match_the_definition(case):
  check(case[2], draw(*case), case[-1])


@pytest.mark.parametrize(
  "case, memory",  # in units of 2**19 bytes
  [((2, 50, 4, 64, "bfloat16"), 1), ((1, 75, 8, 80, "float32"), 8), ((1, 97, 3, 64, "bfloat16"), 3)],
)
def test_chunks_of_queries_and_blocks_of_heads_give_the_same_result(case, memory, monkeypatch):
  monkeypatch.setattr(tiling, "VMEM", memory * 2**19)
  arrays = draw(*case)
  layout = tiling.cut(*arrays[:3], case[2])
  assert layout.chunk < layout.rows and (layout.lanes < layout.width or case[2] != 4)
  check(case[2], arrays, case[-1])


def test_kernel_without_biases_matches_the_definition():
  *arrays, _, _ = draw(2, 17, 3, 64, "float32")
  check(3, (*arrays, None, None), "float32")


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_large_scores_do_not_overflow(dtype):
  arrays = draw(1, 17, 2, 64, dtype, scale=1e4)
  context, *gradients = run(fused_attention, 2, *arrays)
  assert all(np.isfinite(x).all() for x in gradients)
  np.testing.assert_allclose(context, run(plain, 2, *arrays)[0], rtol=0, atol=0.05 if dtype == "bfloat16" else 0.01)


def test_very_negative_scores_do_not_underflow():
  query, key, value, *others = draw(1, 17, 2, 64, "float32")
  arrays = (jnp.abs(query), -100 - jnp.abs(key), value, *others)
  np.testing.assert_allclose(run(fused_attention, 2, *arrays)[0], run(plain, 2, *arrays)[0], rtol=0, atol=2e-4)


def test_replicated_bias_under_shard_map_gets_the_gradient_of_all_images():
  *arrays, gradient, query_bias, value_bias = draw(8, 17, 2, 64, "float32")
  mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
  split, whole = PartitionSpec("batch"), PartitionSpec()

  def attention(*operands):
    arrays, heads = operands[:-1], operands[-1]
    call = functools.partial(fused_attention, heads=heads)
    specs = (split, split, split, whole, whole)
    return jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(*arrays)

  arrays = (*arrays, gradient, query_bias, value_bias)
  for mine, other in zip(run(attention, 2, *arrays), run(plain, 2, *arrays), strict=True):
    np.testing.assert_allclose(mine, other, rtol=0, atol=2e-5)


def lower(platform, batch=2, tokens=196, heads=12, size=64):
  x = jax.ShapeDtypeStruct((batch, tokens, heads * size), jnp.bfloat16)
  bias = jax.ShapeDtypeStruct((heads * size,), jnp.float32)

  def both(query, key, value, query_bias, value_bias, gradient):
    context, backward = jax.vjp(
      functools.partial(fused_attention, heads=heads), query, key, value, query_bias, value_bias
    )
    return context, backward(gradient)

  return jax.jit(both).trace(x, x, x, bias, bias, x).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("tokens, heads, size", [(196, 12, 64), (197, 16, 64), (256, 16, 80), (1025, 12, 64)])
def test_tpu_program_has_two_kernels_and_no_token_by_token_array(tokens, heads, size):
  text = lower("tpu", tokens=tokens, heads=heads, size=size)
  assert text.count("@tpu_custom_call") == 2
  assert "stablehlo.while" not in text  # of the interpreter
  shapes = [tuple(map(int, shape.split("x")[:-1])) for shape in re.findall(r"tensor<((?:\d+x)+)(?:bf16|f32)>", text)]
  assert len(shapes) > 10
  # The largest array has the size of the arguments, apart from padding.
  assert 1 <= max(np.prod(shape) for shape in shapes) / (2 * tokens * heads * size) < 1.1


def test_cpu_program_interprets_the_kernel():
  assert "tpu_custom_call" not in lower("cpu", tokens=5, heads=2, size=16)


@pytest.mark.parametrize(
  "shapes, heads, dtype, message",
  [
    (((1, 5, 64), (1, 6, 64), (1, 6, 64)), 1, "float32", "one shape"),
    (((5, 64),) * 3, 1, "float32", "one shape"),
    (((1, 0, 64),) * 3, 1, "float32", "one shape"),
    (((1, 5, 64),) * 3, 3, "float32", "width 64 with 3 heads"),
    (((1, 5, 64),) * 3, 0, "float32", "width 64 with 0 heads"),
    (((1, 5, 256),) * 3, 1, "float32", "up to 128"),
    (((1, 5, 64),) * 3, 1, "float16", "float16"),
    (((1, 9000, 64),) * 3, 1, "float32", "9000 tokens"),
  ],
)
def test_unsupported_shapes_are_errors_that_suggest_xla_attention(shapes, heads, dtype, message):
  with pytest.raises(schema.ConfigError, match=message) as error:
    fused_attention(*(jnp.zeros(shape, dtype) for shape in shapes), None, None, heads)
  assert 'attention="xla"' in str(error.value)


def test_bias_of_another_shape_is_an_error():
  x = jnp.zeros((1, 5, 64))
  with pytest.raises(schema.ConfigError, match=r"value bias .* \(2, 32\). Allowed: \(64,\)"):
    fused_attention(x, x, x, None, jnp.zeros((2, 32)), 2)
