"""Tests of Swin Transformers against masked attention over the whole feature map in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models, schema
from vit_jax.models import layers, stack, swin
from vit_jax.models.transformer import Block

pytestmark = pytest.mark.heavy

TINY = "swin_tiny_patch4_window7_224"
SIZE = {"image_size": 24, "classes": 5, "width": 8, "depths": (2, 2), "heads": (2, 4), "window": 3}


def tiny(**arguments):
  """Returns a model with random parameters, maps of 6 x 6 and 3 x 3, and windows of 3 x 3."""
  return modules.filled(nnx.eval_shape(lambda: models.create(TINY, **(SIZE | arguments))))


# Layers against their definitions.


def norm(x, module):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5) * module.scale[...] + module.bias[...]


def dense(block, x, window, shift):
  """Computes x plus attention over all places of the map, with a score of minus infinity outside the window."""
  _, height, width, _ = x.shape
  places = [(row, column) for row in range(height) for column in range(width)]
  part = block.attention
  bias = np.full((part.table.shape[1], len(places), len(places)), -np.inf)
  for i, query in enumerate(places):
    for j, key in enumerate(places):
      # Windows end at shift, shift + window and so on. They do not wrap around on either side of the map.
      numbers = [[(place[axis] - shift[axis]) // window[axis] for axis in (0, 1)] for place in (query, key)]
      if numbers[0] == numbers[1]:
        down, right = query[0] - key[0], query[1] - key[1]
        bias[:, i, j] = part.table[(down + window[0] - 1) * (2 * window[1] - 1) + right + window[1] - 1]
  tokens = norm(x, block.norm1).reshape(len(x), len(places), -1)
  query, key, value = (
    np.einsum("bnd,dhk->bhnk", tokens, p.kernel[...]) + np.asarray(p.bias[...])[:, None]
    for p in (part.query, part.key, part.value)
  )
  scores = np.einsum("bhqk,bhnk->bhqn", query, key) / query.shape[-1] ** 0.5 + bias
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  context = np.einsum("bhqn,bhnk->bqhk", weights, value)
  return x + (np.einsum("bqhk,hkd->bqd", context, part.out.kernel[...]) + part.out.bias[...]).reshape(x.shape)


@pytest.mark.parametrize(
  ("extent", "window", "shift"),
  [
    ((6, 9), (3, 3), (0, 0)),
    ((6, 9), (3, 3), (1, 1)),
    ((8, 8), (4, 4), (2, 2)),
    ((4, 4), (4, 4), (0, 0)),
    ((3, 8), (3, 4), (0, 2)),
    ((8, 3), (2, 3), (1, 0)),
  ],
)
def test_window_attention_matches_masked_attention_over_the_map(extent, window, shift):
  def build(rngs):
    norms = (layers.LayerNorm(8, eps=1e-5, dtype=jnp.float32) for _ in range(2))
    attention = swin.WindowAttention(8, 2, window, shift, dropout=0.0, dtype=jnp.float32, rngs=rngs)
    return Block(next(norms), attention, next(norms), layers.Mlp(8, 32, gelu="erf", dtype=jnp.float32, rngs=rngs))

  block = modules.layer(build)
  x = np.random.default_rng(0).standard_normal((2, *extent, 8), dtype=np.float32)
  y = dense(block, x, window, shift)
  y = y + np.asarray(block.mlp(norm(y, block.norm2)))
  np.testing.assert_allclose(modules.run(block, x), y, atol=2e-5)


def test_merge_joins_four_patches_column_by_column():
  merge = modules.layer(lambda rngs: swin.Merge(3, dtype=jnp.float32, rngs=rngs))
  x = np.random.default_rng(0).standard_normal((2, 4, 6, 3), dtype=np.float32)
  four = [x[:, row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
  expected = norm(np.concatenate(four, -1), merge.norm) @ np.asarray(merge.reduction.kernel[...])
  np.testing.assert_allclose(modules.run(merge, x), expected, atol=1e-5)


def layout_of_windows(**arguments):
  model = nnx.eval_shape(lambda: models.create(TINY, **arguments))
  return [[(block.attention.window, block.attention.shift) for block in stage.blocks] for stage in model.stages]


def test_every_second_block_shifts_unless_one_window_covers_the_map():
  plain, shifted = ((7, 7), (0, 0)), ((7, 7), (3, 3))
  assert layout_of_windows() == [[plain, shifted]] * 2 + [[plain, shifted] * 3, [plain] * 2]
  # First stage: 4 x 8 patches, so one window by two. Second stage: 2 x 4 patches, one window.
  small_window = {"window": 4, "depths": (2, 1), "heads": (3, 6)}
  assert layout_of_windows(image_size=(16, 32), **small_window) == [
    [((4, 4), (0, 0)), ((4, 4), (0, 2))],
    [((2, 4), (0, 0))],
  ]


def test_head_reads_the_mean_of_the_normalised_map():
  model, x = tiny(), modules.images(24)
  logits, found = jax.jit(models.capture(model, "tokens", "stages/1/downsample", "encoded", "pre_logits"))(x)
  assert {name: value.shape for name, value in found.items()} == {
    "tokens": (3, 6, 6, 8),
    "stages/1/downsample": (3, 3, 3, 16),
    "encoded": (3, 3, 3, 16),
    "pre_logits": (3, 16),
  }
  np.testing.assert_allclose(found["pre_logits"], found["encoded"].mean((1, 2)), atol=1e-6)
  np.testing.assert_allclose(logits, found["pre_logits"] @ model.head.kernel[...] + model.head.bias[...], atol=1e-5)
  assert modules.run(tiny(classes=0), x).shape == (3, 16)


def test_outputs_do_not_depend_on_other_images_of_the_batch():
  model, x = tiny(), modules.images(24)
  alone = np.concatenate([modules.run(model, x[i : i + 1]) for i in range(3)])
  np.testing.assert_allclose(modules.run(model, x), alone, atol=1e-5)
  assert np.abs(alone[0] - alone[1]).max() > 0.01


def test_images_need_not_be_square():
  model = tiny(image_size=(24, 48))
  x = np.random.default_rng(0).standard_normal((2, 24, 48, 3), dtype=np.float32)
  assert modules.run(model, x).shape == (2, 5)


def test_initial_values_have_the_published_distributions():
  model = models.create(TINY, depths=(1, 1), heads=(3, 6), image_size=56)
  block, merge = model.stages[1].blocks[0], model.stages[1].downsample
  attention = block.attention
  for part in (
    attention.query,
    attention.key,
    attention.value,
    attention.out,
    block.mlp.up,
    merge.reduction,
    model.head,
  ):
    np.testing.assert_allclose(np.std(part.kernel[...]), 0.02, rtol=0.02)
    assert part.bias is None or not np.any(part.bias[...])
  np.testing.assert_allclose(np.std(attention.table[...]), 0.02, rtol=0.1)
  bound = 48**-0.5
  for values in (model.embedding.kernel[...], model.embedding.bias[...]):
    assert 0.9 * bound < np.abs(values).max() <= bound
    np.testing.assert_allclose(np.std(values), bound / 3**0.5, rtol=0.15)


# Training.


def test_stochastic_depth_grows_over_the_blocks_of_all_stages(monkeypatch):
  seen, run = [], stack.run

  def watched(*arguments, rates, **rest):
    seen.append(rates)
    return run(*arguments, rates=rates, **rest)

  monkeypatch.setattr(stack, "run", watched)
  jax.eval_shape(lambda x: models.create(TINY, stochastic_depth=0.2)(x), jnp.zeros((1, 224, 224, 3)))
  assert [len(rates) for rates in seen] == [2, 2, 6, 2]
  np.testing.assert_allclose(np.concatenate(seen), np.arange(12) * 0.2 / 11, rtol=1e-6)


DROP = {"dropout": 0.4, "attention_dropout": 0.4, "stochastic_depth": 0.4}
ONE_STAGE = {"depths": (2,), "heads": (2,)}


def key(seed):
  return jax.random.key(seed, impl="rbg")  # quicker to compile


@pytest.mark.long
def test_rematerialisation_does_not_change_results():
  def value_and_gradients(remat):
    graph, params = nnx.split(tiny(remat=remat, **ONE_STAGE, **DROP))

    def loss(params, x):
      logits = nnx.merge(graph, params)(x, key(7))
      return jnp.sum(jnp.square(logits)), logits

    return jax.jit(jax.grad(loss, has_aux=True))(params, modules.images(24))

  gradients, logits = value_and_gradients("none")
  assert all(np.any(leaf) for path, leaf in nnx.to_flat_state(gradients) if path[-2:] != ("key", "bias"))
  largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
  others, other = value_and_gradients("full")
  np.testing.assert_allclose(logits, other, rtol=1e-4, atol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * largest), gradients, others)


def test_dropout_needs_a_key_and_depends_only_on_it():
  x = modules.images(24)
  plain = modules.run(tiny(**ONE_STAGE), x)
  for name, rate in DROP.items():
    model = modules.compiled(tiny(**ONE_STAGE, **{name: rate}))
    np.testing.assert_array_equal(model(x, key(1)), model(x, key(1)))
    assert np.abs(model(x, key(1)) - model(x, key(2))).max() > 1e-3
    np.testing.assert_array_equal(model(x), plain)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters():
  wide, narrow = (tiny(dtype=dtype) for dtype in ("float32", "bfloat16"))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(narrow)))
  x = modules.images(24)
  expected = modules.run(wide, x)
  logits, found = jax.jit(models.capture(narrow, ".*"))(x)
  assert logits.dtype == jnp.float32
  assert {value.dtype for name, value in found.items() if name != "logits"} == {jnp.dtype("bfloat16")}
  assert 0 < np.abs(expected - logits).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"image_size": 32}, r"image size 32 .* windows of 3 x 3 patches of 4 in every stage; nearest image sizes: 24, 48"),
    ({"image_size": 23}, r"nearest image sizes: 8, 24"),
    ({"image_size": 5}, r"nearest image sizes: 8(?!,)"),
    ({"image_size": (24, 100)}, r"image size 100 .* nearest image sizes: 96, 120"),
    ({"depths": (2, 2, 2)}, r"depths \(2, 2, 2\) specify 3 stages, but heads \(2, 4\) specify 2"),
    ({"heads": (2, 3)}, r"stage 1 has width 16, which is not a multiple of its heads 3"),
    ({"depths": (0, 2)}, r"model.depths\[0\]: 0 is out of range"),
    ({"window": 1}, r"model.window: 1 is out of range"),
    ({"scan": True}, r"model.scan: unknown key"),
  ],
)
def test_invalid_arguments_are_errors_with_allowed_values(arguments, message):
  with pytest.raises(schema.ConfigError, match=message):
    tiny(**arguments)


def test_errors_name_the_nearest_sizes_of_published_models():
  with pytest.raises(schema.ConfigError, match=r"image size 256 .* nearest image sizes: 224, 448"):
    models.create(TINY, image_size=256)
  with pytest.raises(schema.ConfigError, match=r"nearest image sizes: 384, 768"):
    models.create("swin_base_patch4_window12_384", image_size=400)


def test_images_of_another_size_are_rejected():
  with pytest.raises(ValueError, match=r"images have the shape \(16, 16, 3\).*built for \(24, 24, 3\)"):
    tiny()(modules.images(16))
