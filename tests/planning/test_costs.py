"""Tests of the division of a step by parts and kinds, and of the names that models give their operations."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vit_jax.models import attention, layers
from vit_jax.planning import costs, hlo

STEP = "jit(step)/part_forward_and_backward"
divide = functools.partial(costs.divide_step, kernel_cycles={"fused": 25}, clock=10.0, links=0.7)


def test_cycles_belong_to_the_innermost_part_of_their_operation():
  operations = [
    hlo.Operation(f"{STEP}/jvp(part_student)/dot_general", 70, None, 1),
    hlo.Operation(f"{STEP}/transpose(jvp(part_student))/while/body/add", 30, None, 24),
    hlo.Operation(f"{STEP}/add", 5, None, 1),
    hlo.Operation("jit(step)/part_optimizer_and_average/mul", 3, None, 1),
    hlo.Operation(f"{STEP}/jvp(part_student)/pallas_call", 0, "fused", 4),
    hlo.Operation("", 2, None, 1),
  ]
  parts = divide(operations, find=costs.find_part)
  assert parts == pytest.approx(
    {"student": 20, "collectives": 0.7, "forward and backward": 0.5, "optimizer and average": 0.3, "other": 0.2}
  )
  assert [*parts.values()] == sorted(parts.values(), reverse=True)


@pytest.mark.parametrize(
  ("name", "kind", "expected"),
  [
    (f"{STEP}/jvp()/dot_general", "product", "matrix products"),
    (f"{STEP}/jvp(attention/bqhk,bnhk->bhqn)/dot_general", "product", "attention"),
    (f"{STEP}/transpose(jvp(attention))/mul", "other", "attention"),
    (f"{STEP}/transpose(jvp(normalisation))/reduce_sum", "other", "normalisation"),
    (f"{STEP}/transpose(jvp(normalisation))/dot_general", "product", "matrix products"),
    (f"{STEP}/jvp(attention)/normalisation/mul", "other", "normalisation"),
    (f"{STEP}/jvp(part_attention_maps)/mul", "other", "other"),
    ("jit(step)/part_optimizer_and_average/dot_general", "product", "optimizer and average"),
    ("", "copy", "copies"),
    ("", "other", "other"),
  ],
)
def test_kind_follows_from_the_scope_and_the_content(name, kind, expected):
  assert costs.find_kind(hlo.Operation(name, 1, None, 1, kind)) == expected


def test_kinds_of_fusions_follow_from_their_operations():
  text = """
%inner (a: f32[4,8], b: f32[8,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,8]{1,0} parameter(1)
  ROOT %d = f32[4,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%outer (a.1: f32[4,8], b.1: f32[8,8]) -> f32[4,8] {
  %a.1 = f32[4,8]{1,0} parameter(0)
  %b.1 = f32[8,8]{1,0} parameter(1)
  ROOT %f.1 = f32[4,8]{1,0} fusion(%a.1, %b.1), kind=kOutput, calls=%inner
}

%moves (c: f32[4,8]) -> bf16[8,4] {
  %c = f32[4,8]{1,0} parameter(0)
  %t = f32[8,4]{1,0} transpose(%c), dimensions={1,0}
  ROOT %h = bf16[8,4]{1,0} convert(%t)
}

ENTRY %main (x: f32[4,8], y: f32[8,8]) -> bf16[8,4] {
  %x = f32[4,8]{1,0} parameter(0)
  %y = f32[8,8]{1,0} parameter(1)
  %p = f32[4,8]{1,0} fusion(%x, %y), kind=kOutput, calls=%outer, backend_config={"estimated_cycles":"5"}
  %e = f32[4,8]{1,0} exponential(%p), backend_config={"estimated_cycles":"4"}
  %k = f32[4,8]{0,1} copy(%e), backend_config={"estimated_cycles":"3"}
  ROOT %m = bf16[8,4]{1,0} fusion(%k), kind=kLoop, calls=%moves, backend_config={"estimated_cycles":"2"}
}
"""
  found = {operation.cycles: operation.kind for operation in hlo.read_program(text).operations}
  assert found == {5: "product", 4: "other", 3: "copy", 2: "copy"}


@pytest.mark.heavy
def test_attention_and_norms_name_their_operations_forward_and_backward():
  """The products of queries, keys and values are in the scope, and the projections are not."""
  rngs = nnx.Rngs(0)
  parts = attention.Attention(16, 2, dtype=jnp.float32, rngs=rngs)
  norm = layers.LayerNorm(16, eps=1e-6, dtype=jnp.float32)
  graph, params = nnx.split((parts, norm))

  def loss(params, x):
    parts, norm = nnx.merge(graph, params)
    return jnp.sum(parts(norm(x)) ** 2)

  text = jax.jit(jax.grad(loss)).lower(params, jnp.ones((2, 5, 16))).compile().as_text()
  products = [line for line in text.splitlines() if " dot(" in line or "__onednn$matmul" in line]
  inside = [line for line in products if "attention/" in line or "attention)" in line]
  assert len(inside) == 6  # two forward and four backward
  assert any("transpose" in line for line in inside) and len(products) > len(inside)
  assert "jvp(normalisation)" in text
