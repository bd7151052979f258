"""Projection heads against PyTorch modules, and their initial values."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.selfsup import device_counts
from vit_jax.parallel import sharding
from vit_jax.selfsup.heads import ProjectionHead

pytestmark = pytest.mark.heavy
SMALL = ProjectionHead(12, prototypes=40, bottleneck=8, hidden=16)


def randomise(params, seed=0):
  """Parameters far from their initial values."""
  draw = np.random.default_rng(seed)
  return {path: jnp.asarray(draw.normal(size=x.shape) * 0.3 + 0.1, jnp.float32) for path, x in params.items()}


def torch_head(head, params, prefix):
  """The head as layers of PyTorch, with the weight norm of `torch.nn.utils.parametrizations`."""
  linears = []
  for i in range(head.layers):
    kernel = torch.tensor(np.asarray(params[f"{prefix}/layer{i}/kernel"]).T.copy())
    linear = torch.nn.Linear(*reversed(kernel.shape))
    linear.weight.data, linear.bias.data = kernel, torch.tensor(np.asarray(params[f"{prefix}/layer{i}/bias"]).copy())
    linears += [linear, torch.nn.GELU()]
  mlp = torch.nn.Sequential(*linears[:-1])
  last = torch.nn.Linear(head.bottleneck, head.prototypes, bias=False)
  last.weight.data = torch.tensor(np.asarray(params[f"{prefix}/last/kernel"]).T.copy())
  if head.last != "plain":
    last = torch.nn.utils.parametrizations.weight_norm(last)
    scale = params.get(f"{prefix}/last/scale", np.ones(head.prototypes, np.float32))
    last.parametrizations.weight.original0.data = torch.tensor(np.asarray(scale)[:, None].copy())
  return lambda x: last(torch.nn.functional.normalize(mlp(x), dim=-1))


@pytest.mark.sample(3)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("last", ["weight_norm", "fixed_norm", "plain"])
def test_logits_and_gradients_are_those_of_torch(last, layers):
  head = dataclasses.replace(SMALL, last=last, layers=layers)
  params = randomise(head.init(jax.random.key(0), "task/head"))
  draw = np.random.default_rng(1)
  x, cotangent = (draw.normal(size=shape).astype(np.float32) for shape in ((2, 3, 12), (2, 3, 40)))
  theirs = torch.tensor(x, requires_grad=True)
  expected = torch_head(head, params, "task/head")(theirs)
  expected.backward(torch.tensor(cotangent))
  logits, backward = jax.vjp(lambda x: head.apply(params, "task/head", x), jnp.asarray(x))
  np.testing.assert_allclose(logits, expected.detach(), atol=2e-6)
  np.testing.assert_allclose(backward(jnp.asarray(cotangent))[0], theirs.grad, atol=2e-5)


def test_initial_values_have_the_published_distributions():
  params = ProjectionHead(384, 1024, 256, 512).init(jax.random.key(0), "head")
  assert {path: x.shape for path, x in params.items()} == {
    "head/layer0/kernel": (384, 512),
    "head/layer0/bias": (512,),
    "head/layer1/kernel": (512, 512),
    "head/layer1/bias": (512,),
    "head/layer2/kernel": (512, 256),
    "head/layer2/bias": (256,),
    "head/last/kernel": (256, 1024),
    "head/last/scale": (1024,),
  }
  for i in range(3):
    np.testing.assert_allclose(np.std(params[f"head/layer{i}/kernel"]), 0.02, rtol=0.01)
    assert not params[f"head/layer{i}/bias"].any()
  kernel = np.asarray(params["head/last/kernel"])
  assert 0.99 / 16 < np.abs(kernel).max() <= 1 / 16 and abs(kernel.std() - 3**-0.5 / 16) < 1e-3
  assert (np.asarray(params["head/last/scale"]) == 1).all()


def test_a_plain_layer_is_normal_and_a_fixed_norm_has_no_scale():
  plain = ProjectionHead(8, 1024, 256, 8, last="plain").init(jax.random.key(0), "head")
  np.testing.assert_allclose(np.std(plain["head/last/kernel"]), 0.02, rtol=0.01)
  fixed = ProjectionHead(8, 64, 16, 8, last="fixed_norm").init(jax.random.key(0), "head")
  assert "head/last/scale" not in plain | fixed


def test_heads_may_share_the_mlp():
  params = randomise(SMALL.init(jax.random.key(0), "a") | SMALL.init_last(jax.random.key(1), "b"))
  x = jax.random.normal(jax.random.key(2), (4, 12))
  features = SMALL.apply_mlp(params, "a", x)
  np.testing.assert_allclose(jnp.linalg.norm(features, axis=-1), 1, rtol=1e-6)
  np.testing.assert_array_equal(SMALL.apply_last(params, "a", features), SMALL.apply(params, "a", x))
  assert not np.allclose(SMALL.apply_last(params, "b", features), SMALL.apply(params, "a", x))


def test_products_in_bfloat16_keep_sums_and_logits_in_float32():
  params = randomise(SMALL.init(jax.random.key(0), "head"))
  x = jax.random.normal(jax.random.key(2), (64, 12))

  def loss(params, dtype):
    logits = SMALL.apply(params, "head", x, dtype)
    return jnp.square(logits).sum(), logits

  (_, exact), gradients = jax.value_and_grad(loss, has_aux=True)(params, jnp.float32)
  (_, short), rough = jax.value_and_grad(loss, has_aux=True)(params, jnp.bfloat16)
  assert short.dtype == jnp.float32 and np.abs(short - exact).max() < 0.05
  assert (short != short.astype(jnp.bfloat16)).mean() > 0.5  # the sums are not rounded
  for path, gradient in gradients.items():
    assert rough[path].dtype == jnp.float32
    assert np.abs(rough[path] - gradient).max() < 0.05 * np.abs(gradient).max(), path
  traced = jax.make_jaxpr(jax.grad(lambda params: loss(params, jnp.bfloat16)[0]))(params)
  products = [each for each in equations(traced.jaxpr) if each.primitive.name == "dot_general"]
  assert len(products) == 4 + 7  # the gradient of x is not needed
  assert {value.aval.dtype for each in products for value in each.invars} == {jnp.dtype(jnp.bfloat16)}


def equations(jaxpr):
  """All equations of a traced function, with those of the functions that it calls."""
  for each in jaxpr.eqns:
    yield each
    for called in jax.extend.core.jaxprs_in_params(each.params):
      yield from equations(called)


def test_a_head_without_layers_is_an_error():
  with pytest.raises(ValueError, match="layers: expected at least 1"):
    ProjectionHead(8, layers=0)


@pytest.mark.parametrize("last", ["weight_norm", "fixed_norm", "plain"])
def test_every_parameter_has_one_row_of_the_sharding_table(last):
  head = ProjectionHead(16, 64, 8, 32, last=last)
  shapes = jax.eval_shape(lambda key: head.init(key, "task/dino_head"), jax.random.key(0))
  mesh = device_counts.make_mesh(8, fsdp=4)
  found = sharding.find_parameter_shardings(head.sharding("task/(dino|ibot)_head"), shapes, mesh)
  parts = {path: each.shard_shape(shapes[path].shape) for path, each in found.items()}
  assert parts["task/dino_head/layer0/kernel"] == (4, 32) and parts["task/dino_head/last/kernel"] == (8, 16)


def test_a_head_with_split_parameters_gathers_no_prototypes():
  head = ProjectionHead(16, 1024, 8, 32)
  params = randomise(head.init(jax.random.key(0), "head"))
  x = jax.random.normal(jax.random.key(2), (16, 3, 16))

  def loss(params, x):
    return jax.nn.logsumexp(head.apply(params, "head", x), axis=-1).mean()

  expected = jax.value_and_grad(loss)(params, x)
  mesh = device_counts.make_mesh(8, fsdp=4)
  shardings = sharding.find_parameter_shardings(head.sharding("head"), params, mesh)
  placed = jax.device_put(params, shardings), jax.device_put(x, sharding.make_batch_sharding(mesh))
  compiled = jax.jit(jax.value_and_grad(loss), out_shardings=(None, shardings)).lower(*placed).compile()
  for one, many in zip(*map(jax.tree.leaves, (expected, compiled(*placed))), strict=True):
    np.testing.assert_allclose(many, one, atol=2e-5 * np.abs(one).max())
  # Instead, devices exchange features of the bottleneck: logits are split by prototypes.
  assert max(device_counts.find_gathered(compiled.as_text())) < 8 * 1024


def test_results_are_equal_on_one_and_eight_devices():
  params = randomise(SMALL.init(jax.random.key(0), "head"))
  x = jax.random.normal(jax.random.key(2), (16, 3, 12))

  def loss(x, params):
    logits = SMALL.apply(params, "head", x)
    return logits, jnp.sin(logits).mean()

  device_counts.compare(lambda x: loss(x, params), x)
  device_counts.compare(lambda x: jax.grad(lambda p: loss(x, p)[1])(params), x)


@pytest.mark.parametrize("last", ["weight_norm", "plain"])
@pytest.mark.parametrize("layers", [1, 3])
def test_head_is_found_from_the_shapes_of_its_parameters(layers, last):
  head = ProjectionHead(12, prototypes=40, bottleneck=8 if layers > 1 else 16, hidden=16, layers=layers, last=last)
  params = jax.eval_shape(lambda: head.init(jax.random.key(0), "a/b"))
  shapes = {path: leaf.shape for path, leaf in params.items()}
  assert ProjectionHead.from_shapes(shapes | {"a/c/layer0/kernel": (1, 1)}, 12, "a/b", "a/b") == head
