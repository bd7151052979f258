"""Tests of the MLP-Mixer against its definition in NumPy, and of its gradients under scanning and dropout."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models, schema
from vit_jax.models import layers, mixer, stack
from vit_jax.models.published import mixer as published

pytestmark = pytest.mark.heavy

SIZE = {"width": 12, "depth": 2, "token_hidden": 10, "hidden": 14}


def shapes(classes=5, **arguments):
  """Returns the shapes of a model with 16 patches of 4 x 4 pixels, which compiles faster than published patches."""
  return nnx.eval_shape(lambda: mixer.mixer(published.SIZES["S"], 4, 16, 3, classes, nnx.Rngs(0), **(SIZE | arguments)))


def tiny(**arguments):
  return modules.filled(shapes(**arguments))


def norm(x, module):
  centred = x - x.mean(-1, keepdims=True)
  return (
    centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + module.eps) * module.scale[...] + module.bias[...]
  )


def gelu(x, form):
  if form == "erf":
    return x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2
  return x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_block_mixes_tokens_then_channels(form):
  def build(rngs):
    norms = (layers.LayerNorm(6, eps=1e-2, dtype=jnp.float32) for _ in range(2))
    mlp = {"gelu": form, "dtype": jnp.float32, "rngs": rngs}
    return mixer.Block(next(norms), layers.Mlp(7, 5, **mlp), next(norms), layers.Mlp(6, 9, **mlp), dropout=0.0)

  block = modules.layer(build)
  x = np.random.default_rng(0).standard_normal((2, 7, 6), dtype=np.float32)
  up, down = block.tokens.up, block.tokens.down
  hidden = np.einsum("bnd,nf->bfd", norm(x, block.norm1), up.kernel[...]) + up.bias[...][:, None]
  y = x + np.einsum("bfd,fn->bnd", gelu(hidden, form), down.kernel[...]) + down.bias[...][:, None]
  up, down = block.mlp.up, block.mlp.down
  hidden = np.einsum("bnd,df->bnf", norm(y, block.norm2), up.kernel[...]) + up.bias[...]
  y = y + np.einsum("bnf,fd->bnd", gelu(hidden, form), down.kernel[...]) + down.bias[...]
  np.testing.assert_allclose(modules.run(block, x), y, atol=2e-5)


def test_head_reads_the_mean_of_the_normalised_tokens():
  model, x = tiny(), modules.images()
  logits, found = jax.jit(models.capture(model, "encoded", "pre_logits"))(x)
  assert found["encoded"].shape == (3, 16, 12)
  np.testing.assert_allclose(found["pre_logits"], found["encoded"].mean(1), atol=1e-6)
  np.testing.assert_allclose(logits, found["pre_logits"] @ model.head.kernel[...] + model.head.bias[...], atol=1e-5)
  np.testing.assert_array_equal(modules.run(tiny(classes=0), x).shape, (3, 12))


def test_defaults_match_the_code_that_published_the_name():
  for name, form in (("Mixer-L/16", "tanh"), ("mixer_l16_224", "erf")):
    bound = schema.bind(schema.Choice(name), (models.lookup(name),)).args
    assert (bound["gelu"], bound["eps"], bound["dropout"], bound["stochastic_depth"]) == (form, 1e-6, 0.0, 0.0)


def test_initial_values_have_the_published_distributions():
  model = models.create("Mixer-S/16", depth=1)
  block = model.blocks[0]
  for part, inputs in ((block.tokens.up, 196), (block.tokens.down, 256), (block.mlp.up, 512), (block.mlp.down, 2048)):
    np.testing.assert_allclose(np.std(part.kernel[...]), inputs**-0.5, rtol=0.02)
    assert not np.any(part.bias[...])
  np.testing.assert_allclose(np.std(model.embedding.kernel[...]), 768**-0.5, rtol=0.02)
  assert not np.any(model.head.kernel[...]) and not np.any(model.head.bias[...])


def test_intermediates_of_both_mlps_have_different_names():
  for scan in (False, True):
    _, found = jax.jit(models.capture(tiny(scan=scan), "blocks/1/.*"))(modules.images())
    assert {name: value.shape for name, value in found.items()} == {
      "blocks/1/tokens/mlp/hidden": (3, 12, 10),
      "blocks/1/tokens/mlp/out": (3, 12, 16),
      "blocks/1/mlp/hidden": (3, 16, 14),
      "blocks/1/mlp/out": (3, 16, 12),
      "blocks/1/out": (3, 16, 12),
    }


DROP = {"dropout": 0.2, "stochastic_depth": 0.4}


def value_and_gradients(listed, **arguments):
  """Returns logits, and gradients by per-layer path, of the weights of `listed` under one dropout key."""
  scan = arguments.get("scan", False)
  model = shapes(**(DROP | arguments))
  model = modules.stacked(listed, model) if scan else nnx.merge(nnx.graphdef(model), nnx.state(listed))
  graph, params = nnx.split(model)

  def loss(params, x):
    logits = nnx.merge(graph, params)(x, jax.random.key(7, impl="rbg"))
    return jnp.sum(jnp.square(logits)), logits

  gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(params, modules.images())
  found = {}
  for path, variable in nnx.to_flat_state(gradients):
    layers = range(SIZE["depth"]) if scan and path[0] == "blocks" else ()
    found |= {("blocks", i, *path[1:]): variable[i] for i in layers} or {path: variable[...]}
  return logits, found


@pytest.mark.long
def test_scanning_and_rematerialisation_do_not_change_results():
  listed = tiny(**DROP)
  logits, gradients = value_and_gradients(listed)
  largest = max(np.abs(gradient).max() for gradient in gradients.values())
  assert np.abs(logits - modules.run(listed, modules.images())).max() > 0.01
  for arguments in ({"remat": "full"}, {"scan": True, "remat": "mlp"}):
    other, found = value_and_gradients(listed, **arguments)
    np.testing.assert_allclose(logits, other, rtol=1e-4, atol=1e-5)
    assert set(found) == set(gradients)
    for path, gradient in gradients.items():
      np.testing.assert_allclose(gradient, found[path], rtol=0, atol=1e-6 * largest, err_msg=path)


@pytest.mark.long
def test_rematerialisation_policies_treat_both_mlps_alike():
  def matrix_products(remat):
    graph, params = nnx.split(tiny(scan=True, remat=remat))
    function = jax.grad(lambda params, x: nnx.merge(graph, params)(x).sum())
    return str(jax.make_jaxpr(function)(params, modules.images())).count("dot_general[")

  products = {remat: matrix_products(remat) for remat in stack.POLICIES}
  again = {remat: number - products["dots"] for remat, number in products.items()}
  # A layer has four matrix products. No gradient needs the result of the last one. A loop computes the last product of
  # the first MLP again, see `stack._store_in_loop`.
  assert again == {"none": 1, "full": 3, "dots": 0, "projections": 0, "attention": 3, "mlp": 0}


def test_dropout_needs_a_key_and_depends_only_on_it():
  x, one, two = modules.images(), *(jax.random.key(seed, impl="rbg") for seed in (1, 2))
  plain = modules.run(tiny(), x)
  for arguments in ({"dropout": 0.3}, {"stochastic_depth": 0.5}):
    model = modules.compiled(tiny(**arguments))
    np.testing.assert_array_equal(model(x, one), model(x, one))
    assert np.abs(model(x, one) - model(x, two)).max() > 1e-3
    np.testing.assert_array_equal(model(x), plain)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters():
  wide, narrow = (tiny(dtype=dtype) for dtype in ("float32", "bfloat16"))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(narrow)))
  x = modules.images()
  expected = modules.run(wide, x)
  logits, found = jax.jit(models.capture(narrow, ".*"))(x)
  assert logits.dtype == jnp.float32
  assert {value.dtype for name, value in found.items() if name != "logits"} == {jnp.dtype("bfloat16")}
  assert 0 < np.abs(expected - logits).max() < 0.1 * np.abs(expected).max()


def test_invalid_arguments_are_errors_with_allowed_values():
  with pytest.raises(schema.ConfigError, match=r"image size 30 .* patch 16; nearest image sizes: 16, 32"):
    models.create("Mixer-S/16", 30)
  with pytest.raises(schema.ConfigError, match=r"model.heads: unknown key"):
    models.create("Mixer-S/16", heads=2)
  with pytest.raises(ValueError, match=r"images have the shape \(8, 8, 3\).*built for \(16, 16, 3\)"):
    tiny()(modules.images(8))
