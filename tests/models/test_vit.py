"""Tests of vit_jax/models/vit.py: initial distributions, positions, dropout and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models, schema
from vit_jax.models.published import vit


@pytest.mark.heavy
def test_initial_values_have_the_published_distributions():
  model = models.create("ViT-Ti/16", depth=1, head_bias=-6.9, pre_logits=96)
  block = model.blocks[0]
  bound = (6 / (192 + 192)) ** 0.5  # for each of q, k and v separately, not for the three together
  for part in (block.attention.query, block.attention.key, block.attention.value, block.attention.out):
    assert 0.99 * bound < np.abs(part.kernel[...]).max() <= bound
    np.testing.assert_allclose(np.std(part.kernel[...]), bound / 3**0.5, rtol=0.02)
    assert not np.any(part.bias[...])
  assert np.abs(block.attention.query.kernel[...] - block.attention.key.kernel[...]).max() > 0.1
  assert np.abs(block.mlp.up.kernel[...]).max() <= (6 / (192 + 768)) ** 0.5
  np.testing.assert_allclose(np.std(block.mlp.up.bias[...]), 1e-6, rtol=0.1)
  np.testing.assert_allclose(np.std(model.embedding.kernel[...]), 768**-0.5, rtol=0.02)
  assert not np.any(model.embedding.bias[...]) and not np.any(model.cls[...]) and not np.any(model.head.kernel[...])
  np.testing.assert_allclose(np.std(model.position.table[...]), 0.02, rtol=0.02)
  np.testing.assert_allclose(model.head.bias[...], -6.9)
  np.testing.assert_allclose(np.std(model.pre_logits.kernel[...]), 192**-0.5, rtol=0.05)
  np.testing.assert_allclose(np.std(models.create("ViT-mu/16", head_std=0.02).head.kernel[...]), 0.02, rtol=0.02)


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("pool", "position"),
  [("cls", "learned"), ("gap", "sincos2d"), ("cls", "factored"), ("seqpool", "relative"), ("map", "learned")]
  + [(pool, "none") for pool in ("cls", "gap", "map", "seqpool")],
)
def test_only_models_without_positions_ignore_the_order_of_patches(pool, position):
  model = modules.model(pool=pool, position=position, depth=1, layer_scale=0.1, pre_logits=8)
  x = modules.images()
  x = np.concatenate([x, np.roll(x, 4, axis=2)])  # by one patch
  logits, moved = np.split(modules.run(model, x), 2)
  assert logits.shape == (3, 5) and logits.dtype == np.float32 and np.all(np.isfinite(logits))
  assert (np.abs(logits - moved).max() < 1e-4) == (position == "none")


@pytest.mark.heavy
def test_grid_positions_are_zero_for_the_class_token():
  for position in ("learned_patches", "sincos2d", "factored"):
    table = np.asarray(modules.model(position=position).position())
    assert table.shape == (17, 16) and not np.any(table[0]) and np.any(table[1])


def compute_with_tables(model, tables, first):
  """Computes logits of the first token after adding tables [L, T, D] by hand before each block."""
  x = jnp.asarray(modules.images())
  x = model.embedding(x).reshape(3, -1, 16)
  prefix = [token for token in (model.cls, model.registers) if token is not None]
  rows = [jnp.broadcast_to(token[...].reshape(-1, 16)[None], (3, token[...].size // 16, 16)) for token in prefix]
  x = jnp.concatenate([*rows, x], axis=1)
  for block, table in zip(model.blocks, tables, strict=True):
    gap = x.shape[1] - len(table)
    block.position = None
    x = block(x + np.insert(np.asarray(table), [first] * gap, 0, axis=0))
  return model.head(model.norm(x)[:, 0])


@pytest.mark.heavy
@pytest.mark.parametrize("position", ["learned", "learned_patches", "learned_all", "sincos2d", "factored"])
@pytest.mark.parametrize(("position_at", "registers"), [("each", 0), ("shared", 2), ("each", 2)])
def test_positions_are_added_before_every_block(position, position_at, registers):
  arguments = {"position": position, "registers": registers, "depth": 2}
  model = modules.model(position_at=position_at, **arguments)
  logits = modules.run(model, modules.images())
  each = position_at == "each"
  assert (model.position is None) == each
  tables = [np.asarray((block if each else model).position()) for block in model.blocks]
  assert np.array_equal(*tables) == (not each or position == "sincos2d")
  np.testing.assert_allclose(logits, compute_with_tables(model, tables, 1), atol=2e-5)
  once = modules.run(modules.model(position_at="input", **arguments), modules.images())
  assert np.abs(logits - once).max() > 1e-3


@pytest.mark.heavy
@pytest.mark.parametrize("scan", [False, True])
def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters(scan):
  wide, narrow = (modules.model(dtype=dtype, scan=scan, pool="map") for dtype in ("float32", "bfloat16"))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(narrow)))
  x = modules.images()
  expected = modules.run(wide, x)
  logits, found = jax.jit(models.capture(narrow, ".*"))(x)
  assert logits.dtype == jnp.float32
  assert {value.dtype for name, value in found.items() if name != "logits"} == {jnp.dtype("bfloat16")}
  assert 0 < np.abs(expected - logits).max() < 0.1 * np.abs(expected).max()


@pytest.mark.heavy
def test_dropout_needs_a_key_and_depends_only_on_it():
  plain = modules.compiled(modules.model(scan=True))
  model = modules.compiled(modules.model(scan=True, dropout=0.3, attention_dropout=0.3, stochastic_depth=0.3))
  x, one, two = modules.images(), jax.random.key(1), jax.random.key(2)
  np.testing.assert_array_equal(model(x, one), model(x, one))
  assert np.abs(model(x, one) - model(x, two)).max() > 1e-3
  np.testing.assert_array_equal(model(x), plain(x))
  np.testing.assert_array_equal(plain(x, one), plain(x))


@pytest.mark.heavy
def test_the_same_configuration_gives_the_same_graph():
  one, two = (nnx.split(modules.model(position="sincos2d", scan=True))[0] for _ in range(2))
  assert one == two and hash(one) == hash(two)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"image_size": 18}, r"image size 18 is not a multiple of patch 4; nearest image sizes: 16, 20"),
    ({"image_size": 3}, r"image size 3 is not a multiple of patch 4; nearest image sizes: 4"),
    ({"heads": 3}, r"width 16 is not a multiple of heads 3. Allowed heads: 1, 2, 4, 8, 16"),
    ({"width": 18, "position": "sincos2d"}, r"width 18 is not a multiple of 4, which position 'sincos2d' needs"),
    (
      {"width": 15, "heads": 3, "position": "factored"},
      r"width 15 is not a multiple of 2, which position 'factored' needs",
    ),
    ({"depth": 0}, r"model.depth: 0 is out of range. Allowed: \[1, 1024\]"),
    ({"dropout": 1.0}, r"model.dropout: 1.0 is out of range"),
    ({"layer_scale": 0.0}, r"model.layer_scale: 0.0 is out of range"),
    (
      {"hidden_multiple": 8},
      r"model.mlp.multiple: unknown key for 'gelu', value 8. It is supported by swiglu, swiglu_normed",
    ),
    ({"rotary": {"name": "axail"}}, r"model.position.rotary.name: unknown name 'axail'.*'axial'"),
    (
      {"rotary": {"name": "mixed", "first": "rows"}},
      r"model.position.rotary.first: unknown key for 'mixed'.*supported by axial",
    ),
    ({"rotary": {"name": "axial"}, "heads": 8}, r"^model.position.rotary: a head has 2 channels"),
    (
      {"rotary": {"name": "axial", "registers": 9.0}, "registers": 3},
      r"registers: 3; rotary registers must form a square",
    ),
    (
      {"position": "relative", "position_at": "each"},
      r"position.at: unknown key for 'relative', value 'each'. It is supported by learned, ",
    ),
    (
      {"position": "none", "position_at": "shared"},
      r"position.at: unknown key for 'none', value 'shared'. It is supported by learned, ",
    ),
    ({"pool": "token"}, r"model.head.name: unknown name 'token'.* Allowed: cls, gap, map, seqpool, distilled"),
    ({"pool": "distilled", "pre_logits": 8}, r"model.head.pre_logits: unknown key for 'distilled', value 8"),
    ({"head": {"class_token": True}}, r"model.head.class_token: unknown key for 'cls', value True"),
    ({"remat": "ful"}, r"model.remat: 'ful' is not a choice. Did you mean 'full'"),
    ({"stochastic_dept": 0.1}, r"model.stochastic_dept: unknown key .* Did you mean 'stochastic_depth'"),
  ],
)
def test_invalid_arguments_are_errors_with_allowed_values(arguments, message):
  with pytest.raises(schema.ConfigError, match=message):
    modules.model(**arguments)


@pytest.mark.heavy
def test_images_of_another_size_are_rejected():
  with pytest.raises(ValueError, match=r"images have the shape \(8, 8, 3\).*built for \(16, 16, 3\)"):
    modules.model()(modules.images(8))


def test_arguments_override_the_size_of_the_name():
  assert vit.SIZES["S"] == (384, 12, 6, 1536)
  model = nnx.eval_shape(lambda: models.create("ViT-S/4", image_size=8, classes=2, depth=3))
  assert len(model.blocks) == 3 and model.blocks[0].mlp.up.kernel.shape == (384, 1536)
