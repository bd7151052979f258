"""Tests of counted FLOPs against a count by hand. XLA's count is right only for programs without loops."""

import jax
import jax.numpy as jnp

from vit_jax.models import flops


def test_flops_without_loops_equal_the_count_by_hand():
  def network(x, kernel, w):
    y = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.einsum("bhwc,cd->bd", y, w)

  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 16, 16, 8), (4, 4, 8, 32), (32, 10))]
  by_hand = 2 * (4 * 8 * 8 * 32) * (4 * 4 * 8) + 2 * (4 * 8 * 8) * 32 * 10
  assert flops.count_flops(network, *shapes) in (by_hand, by_hand - 2 * (4 * 8 * 8 - 4) * 32 * 10)


def test_flops_count_every_iteration_of_a_loop():
  w = jax.ShapeDtypeStruct((7, 16, 16), jnp.float32)
  x = jax.ShapeDtypeStruct((4, 16), jnp.float32)

  def scanned(x, w):
    return jax.lax.scan(lambda x, w: (jax.checkpoint(jnp.dot)(x, w), None), x, w)[0]

  assert flops.count_flops(scanned, x, w) == 7 * 2 * 4 * 16 * 16
