"""Tests of vit_jax/models/differential.py inside attention, against the NumPy definition."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models
from vit_jax.models.attention import Attention
from vit_jax.models.differential import Differential
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy
F32 = jnp.dtype("float32")
WIDTH, HEADS, SIZE = 24, 3, 8


@pytest.mark.parametrize("number", [0, 5])
def test_head_subtracts_the_map_of_its_second_half(number):
  def build(rngs):
    kernel = Differential(SIZE, dtype=F32)
    return Attention(WIDTH, HEADS, kernel=kernel, out_bias=False, dtype=F32, rngs=rngs)

  module = modules.layer(build)
  difference, x = module.difference, np.random.default_rng(0).standard_normal((2, 5, WIDTH), np.float32)
  assert module.out.bias is None
  difference.norm.scale[...] = jnp.linspace(0.5, 2, SIZE)
  q, k, v = (
    np.einsum("bnd,dhk->bhnk", x, np.asarray(part.kernel[...])) + np.asarray(part.bias[...])[:, None]
    for part in (module.query, module.key, module.value)
  )
  half = SIZE // 2
  first, second = (
    modules.softmax(np.einsum("bhqk,bhnk->bhqn", q[..., part], k[..., part]) / half**0.5) @ v
    for part in (slice(half), slice(half, None))
  )
  dots = [
    float(np.exp(np.asarray(a[...]) @ np.asarray(b[...])))
    for a, b in ((difference.query1, difference.key1), (difference.query2, difference.key2))
  ]
  start = 0.8 - 0.6 * np.exp(-0.3 * number)
  context = first - (dots[0] - dots[1] + start) * second
  context /= np.sqrt(np.square(context).mean(-1, keepdims=True) + 1e-5)
  context *= np.asarray(difference.norm.scale[...]) * (1 - start)
  expected = np.einsum("bhqk,hkd->bqd", context, np.asarray(module.out.kernel[...]))
  np.testing.assert_allclose(module(x, number=np.float32(number)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arguments", [{"norm_order": "parallel"}, {"qk_norm": "rms", "rotary": Choice("axial")}])
def test_blocks_depend_on_their_number_scanned_or_not(arguments):
  plain, scanned = (
    modules.model(differential=True, **arguments, **how) for how in ({}, {"scan": True, "remat": "full"})
  )
  images = modules.images()
  logits = modules.run(plain, images)
  np.testing.assert_allclose(modules.run(modules.stacked(plain, scanned), images), logits, rtol=0, atol=1e-5)
  moved = nnx.merge(*nnx.split(plain))
  moved.blocks = nnx.List([plain.blocks[i] for i in (1, 0, 2)])
  assert np.abs(modules.run(moved, images) - logits).max() > 0.01


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"attention": "fused"}, r"'fused' does not support differential=true. Use attention='differential'"),
    (
      {"width": 9, "heads": 3},
      r"model.attention: 'differential' halves heads, which have 3 channels. Allowed: an even number",
    ),
  ],
)
def test_fused_kernel_and_odd_head_sizes_are_errors(arguments, message):
  with pytest.raises(ConfigError, match=message):
    models.make_functional(models.Description(Choice("ViT-Ti/8", {"differential": True} | arguments), 16, 5)).shapes()
