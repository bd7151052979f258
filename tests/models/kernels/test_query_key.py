"""Tests of norms and rotations in the attention kernel, and their gradients, against a plain formulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import schema
from vit_jax.models import rotary
from vit_jax.models.kernels import query_key, tiling
from vit_jax.models.kernels.fused_attention import fused_attention

pytestmark = pytest.mark.heavy


def plain(query, key, value, gains, angles, heads, eps=1e-5):
  """Normalises and rotates queries and keys, then computes attention in float32."""
  size = query.shape[-1] // heads
  query, key, value = (x.astype(jnp.float32).reshape(*x.shape[:2], heads, size) for x in (query, key, value))
  if gains is not None:
    query, key = (
      x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * gain.reshape(heads, size)
      for x, gain in zip((query, key), gains, strict=True)
    )
  if angles is not None:
    query, key = (rotary.apply_rotary(x, angles[:, None]) for x in (query, key))
  weights = jax.nn.softmax(jnp.einsum("bqhk,bnhk->bhqn", query, key, precision="highest") / size**0.5, -1)
  context = jnp.einsum("bhqn,bnhk->bqhk", weights, value, precision="highest")
  return context.reshape(*context.shape[:2], -1)


def fused(query, key, value, gains, angles, heads, eps=1e-5):
  return fused_attention(query, key, value, None, None, heads, gains, angles, eps)


def both(attention, arrays, gains, angles, heads, gradient):
  @jax.jit
  def run(arrays, gains, gradient):
    context, back = jax.vjp(lambda arrays, gains: attention(*arrays, gains, angles, heads), arrays, gains)
    return context, back(gradient.astype(context.dtype))

  return [np.asarray(x, np.float32) for x in jax.tree.leaves(run(arrays, gains, gradient))]


def draw(tokens, heads, size, dtype, normed, turned, batch=2):
  rng = np.random.default_rng(tokens * heads * size)
  arrays = [jnp.asarray(rng.standard_normal((batch, tokens, heads * size)), dtype) for _ in range(4)]
  gains = tuple(jnp.asarray(1 + 0.3 * rng.standard_normal(heads * size), jnp.float32) for _ in range(2))
  angles = rng.uniform(-3, 3, (tokens, size // 2)).astype(np.float32)
  return arrays[:3], gains if normed else None, angles if turned else None, heads, arrays[3]


CASES = (  # tokens, heads, size, dtype
  (21, 2, 32, "float32"), (17, 3, 64, "bfloat16"), (50, 4, 64, "float32"), (19, 1, 128, "float32"),
)  # fmt: skip


@pytest.mark.parametrize(("normed", "turned"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_normalised_and_rotated_attention_matches_the_definition(case, normed, turned):
  arguments = draw(*case, normed, turned)
  tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[case[-1]]
  for mine, other in zip(both(fused, *arguments), both(plain, *arguments), strict=True):
    np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * max(np.abs(other).max(), 1))


def test_chunks_of_queries_give_the_same_result(monkeypatch):
  monkeypatch.setattr(tiling, "VMEM", 2**20)
  arguments = draw(75, 2, 64, "bfloat16", True, True)
  layout = tiling.cut(*arguments[0], 2, placed=True)
  assert layout.chunk < layout.rows
  for mine, other in zip(both(fused, *arguments), both(plain, *arguments), strict=True):
    np.testing.assert_allclose(mine, other, rtol=0, atol=2e-2 * max(np.abs(other).max(), 1))


def test_head_size_that_does_not_divide_the_lanes_is_an_error():
  arrays, gains, angles, heads, _ = draw(9, 2, 80, "float32", True, True)
  assert not query_key.supports(80) and not query_key.supports(1) and query_key.supports(64)
  with pytest.raises(schema.ConfigError, match=r"a size that divides 128, not 80.*attention=\"xla\""):
    fused(*arrays, gains, angles, heads)


@pytest.mark.parametrize(("heads", "size"), [(12, 64), (8, 128)])
def test_tpu_program_normalises_and_rotates_inside_the_kernel(heads, size):
  arrays, gains, angles, *_ = draw(197, heads, size, "bfloat16", True, True)
  text = (
    jax.jit(functools.partial(fused, angles=angles, heads=heads))
    .trace(*arrays, gains)
    .lower(lowering_platforms=("tpu",))
    .as_text()
  )
  assert text.count("tpu_custom_call") == 1 and "rsqrt" not in text and "cosine" not in text
