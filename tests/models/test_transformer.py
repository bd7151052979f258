"""Tests of the computation that all families share: order of tokens, blocks, registers and pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from einops import rearrange
from flax import nnx

from tests import modules
from vit_jax import models
from vit_jax.models import layers, transformer
from vit_jax.models.attention import Attention

pytestmark = pytest.mark.heavy

TINY = dict(depth=2, width=16, heads=2, hidden=16)


def tiny(name="ViT-Ti/8", **arguments):
  return models.create(name, 16, classes=3, rngs=nnx.Rngs(0), **TINY, **arguments)


def images(count=2):
  return jax.random.normal(jax.random.key(1), (count, 16, 16, 3))


def test_class_token_precedes_patches_in_row_order():
  model = tiny(position="none")
  x = jnp.zeros((1, 16, 16, 3)).at[0, 0, 8:].set(1.0)  # the second patch of the first row
  _, found = models.capture(model, "tokens")(x)
  _, blank = models.capture(model, "tokens")(jnp.zeros_like(x))
  changed = np.asarray(jnp.any(found["tokens"] != blank["tokens"], axis=-1))[0]
  assert changed.tolist() == [False, False, True, False, False]
  np.testing.assert_array_equal(found["tokens"][0, 0], model.cls[...])


def test_head_reads_the_class_token_or_the_mean():
  for pool, pooled in (("cls", lambda x: x[:, 0]), ("gap", lambda x: x.mean(1))):
    logits, found = models.capture(tiny(pool=pool), "encoded", "features", "pre_logits")(images())
    np.testing.assert_allclose(found["features"], pooled(found["encoded"]), atol=1e-6)
    assert logits.shape == (2, 3)


def test_outputs_do_not_depend_on_other_images_of_the_batch():
  model = tiny(pre_logits=8)
  model.head.kernel[...] = jax.random.normal(jax.random.key(2), model.head.kernel.shape)
  both = model(images())
  np.testing.assert_allclose(both[:1], model(images()[:1]), atol=1e-5)
  assert not np.allclose(both[0], both[1])


def test_images_of_another_size_are_rejected():
  with pytest.raises(ValueError, match=r"the model was built for \(16, 16, 3\)"):
    tiny()(jnp.zeros((1, 24, 24, 3)))


def test_dropout_needs_a_key_and_depends_only_on_it():
  model = tiny(dropout=0.5)
  model.head.kernel[...] = jax.random.normal(jax.random.key(2), model.head.kernel.shape)
  first, second = (model(images(), jax.random.key(i)) for i in (0, 1))
  np.testing.assert_array_equal(first, model(images(), jax.random.key(0)))
  assert not np.allclose(first, second)
  np.testing.assert_array_equal(model(images()), model(images()))


F32 = jnp.dtype("float32")


def normal(*shape):
  return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def block(layer_scale=None, **arguments):
  def build(rngs):
    norms = (layers.LayerNorm(12, eps=1e-5, dtype=F32) for _ in range(2))
    attention = Attention(12, 3, dtype=F32, rngs=rngs)
    mlp = layers.Mlp(12, 20, gelu="erf", dtype=F32, rngs=rngs)
    scale = layers.create_layer_scale(12, layer_scale)
    return transformer.Block(next(norms), attention, next(norms), mlp, layer_scale=scale, **arguments)

  return modules.layer(build)


def test_default_block_is_pre_norm_and_scales_its_branches():
  module = block(layer_scale=0.1)
  x = normal(2, 5, 12)
  s = x + module.attention(module.norm1(x)) * module.layer_scale1[...]
  s = s + module.mlp(module.norm2(s)) * module.layer_scale2[...]
  np.testing.assert_allclose(module(x), s, atol=1e-5)


def test_official_order_replaces_the_stream_by_its_norm():
  module = block(order="official")
  x = normal(2, 5, 12)
  s = x + module.attention(module.norm1(x))
  s = module.norm2(s)
  s = s + module.mlp(s)
  np.testing.assert_allclose(module(x), s, atol=1e-5)


def test_parallel_branches_share_one_norm_and_one_scale():
  module = block(order="parallel", layer_scale=0.1)
  assert module.layer_scale2 is None
  x = normal(2, 5, 12)
  normed = module.norm1(x)
  s = x + (module.attention(normed) + module.mlp(normed)) * module.layer_scale1[...]
  np.testing.assert_allclose(module(x), s, atol=1e-5)


def test_post_norm_block_normalises_the_outputs_of_its_branches():
  module = block(order="post")
  x = normal(2, 5, 12)
  s = x + module.norm1(module.attention(x))
  s = s + module.norm2(module.mlp(s))
  np.testing.assert_allclose(module(x), s, atol=1e-5)


def test_both_branches_of_a_block_are_dropped_independently():
  module = block()
  x = normal(1, 1, 12)
  batch = np.repeat(x, 400, axis=0)
  y = np.asarray(jax.jit(lambda x, key: module(x, key, np.float32(0.5)))(batch, jax.random.key(0)))
  attention = np.asarray(module.attention(module.norm1(x)))
  kinds = []
  for first in (0, 2):  # a kept branch counts double
    s = x + first * attention
    kinds += [s, s + 2 * np.asarray(module.mlp(module.norm2(s)))]
  distance = np.abs(y[:, None] - np.stack(kinds, 1)[:, :, :]).max((2, 3))
  assert distance.min(1).max() < 1e-4
  np.testing.assert_allclose(np.bincount(distance.argmin(1), minlength=4) / 400, 0.25, atol=0.08)


@pytest.mark.parametrize("name", ["ViT-Ti/8", "vit_7_4_32", "Mixer-S/16"])
def test_images_given_as_patches_give_the_same_tokens(name):
  model = models.create(name, 32, classes=3, rngs=nnx.Rngs(0), depth=1)
  patch = model.patch
  whole = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
  cut = rearrange(whole, "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch)
  _, expected = models.capture(model, "tokens")(whole)
  _, found = models.capture(model, "tokens")(cut)
  np.testing.assert_allclose(found["tokens"], expected["tokens"], atol=1e-5)
  with pytest.raises(ValueError, match="the model was built for"):
    model(cut[:, 1:])


@pytest.mark.long
def test_models_with_other_stems_do_not_accept_patches():
  assert models.create("cct_2_3x2_32", 32, classes=3).patch is None
  assert models.create("R26+S/32", 32, classes=3).patch is None


@pytest.mark.parametrize("name", ["ViT-Ti/8", "vit_7_4_32"])
@pytest.mark.parametrize("position", ["learned", "none"])
def test_registers_follow_the_class_token_and_have_no_position(name, position):
  plain = tiny(name, position=position)
  model = modules.filled(tiny(name, position=position, registers=3), seed=1)
  for path in ("embedding", "cls", "position"):
    setattr(model, path, getattr(plain, path))
  _, expected = models.capture(plain, "tokens")(images())
  _, found = models.capture(model, "tokens")(images())
  registers = np.broadcast_to(model.registers[...], (2, 3, 16))
  spliced = np.concatenate([expected["tokens"][:, :1], registers, expected["tokens"][:, 1:]], axis=1)
  np.testing.assert_allclose(found["tokens"], spliced, atol=1e-6)


@pytest.mark.parametrize("pool", ["cls", "gap", "map", "seqpool", "distilled"])
def test_blocks_read_registers_and_pooling_does_not(pool):
  model = modules.model("ViT-Ti/8", pool=pool, registers=2)
  output = jax.jit(lambda x: model.outputs(x))(modules.images())
  prefix = {"cls": 3, "distilled": 4}.get(pool, 2)
  assert output.tokens.shape[1] == prefix + 4
  patches = output.tokens[:, prefix:]
  match pool:
    case "cls":
      features = output.tokens[:, 0]
    case "distilled":
      features = output.tokens[:, :2].mean(1)
    case "gap":
      features = patches.mean(1)
    case _:
      features = model.pool(patches)
  np.testing.assert_allclose(output.features, features, atol=1e-5)
  silent = nnx.clone(model)
  silent.registers[...] = jnp.zeros_like(silent.registers[...])
  assert np.abs(silent(modules.images()) - output.logits).max() > 1e-3


def test_initial_registers_are_small_and_random():
  model = models.create("ViT-Ti/8", 16, classes=3, rngs=nnx.Rngs(0), registers=64, depth=1)
  registers = np.asarray(model.registers[...])
  np.testing.assert_allclose(np.std(registers), 1e-6, rtol=0.05)
