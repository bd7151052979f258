"""Tests that scanned, unrolled and rematerialised stacks of vit_jax/models/stack.py compute the same numbers."""

import functools
import itertools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tests import modules
from vit_jax import models
from vit_jax.models import activations, layers, stack

pytestmark = pytest.mark.heavy

TODAY = {  # options of blocks that the ViT of 2020 does not have
  "rotary": {"name": "mixed"}, "registers": 4, "qk_norm": "rms", "qkv_bias": "query_value", "context_norm": True,
  "mlp": "swiglu_normed", "norm": "rms", "norm_order": "parallel", "layer_scale": 0.5,
}  # fmt: skip
DROP = {"dropout": 0.2, "attention_dropout": 0.2, "stochastic_depth": 0.4}


@functools.cache
def value_and_gradients(scan, remat, drop=False, position_at="input", today=False):
  """Returns logits, and gradients by per-layer path, of the same weights under the same dropout key."""
  arguments = dict(depth=2, position_at=position_at, **(DROP if drop else {}), **(TODAY if today else {}))
  listed = modules.model(**arguments)
  model = nnx.eval_shape(
    lambda: models.create("ViT-S/4", **(modules.SIZE | arguments | {"scan": scan, "remat": remat}))
  )
  model = modules.stacked(listed, model) if scan else nnx.merge(nnx.graphdef(model), nnx.state(listed))
  graph, params = nnx.split(model)

  def loss(params, x):
    logits = nnx.merge(graph, params)(x, jax.random.key(7, impl="rbg"))  # quicker to compile
    return jnp.sum(jnp.square(logits)), logits

  gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(params, modules.images())
  found = {}
  for path, variable in nnx.to_flat_state(gradients):
    if scan and path[0] == "blocks":
      found |= {("blocks", i, *path[1:]): variable[i] for i in range(2)}
    else:
      found[path] = variable[...]
  return logits, found


def assert_same(one, other):
  np.testing.assert_allclose(one[0], other[0], rtol=1e-4, atol=1e-5)
  assert set(one[1]) == set(other[1])
  # Relative to the largest gradient of all, because the gradient of a key's bias is only rounding noise.
  largest = max(np.abs(gradient).max() for gradient in one[1].values())
  for path, gradient in one[1].items():
    np.testing.assert_allclose(gradient, other[1][path], rtol=0, atol=1e-6 * largest, err_msg=path)


def test_scanned_equals_unrolled_in_logits_dropout_and_gradients():
  assert_same(value_and_gradients(False, "none", drop=True), value_and_gradients(True, "none", drop=True))
  assert np.abs(value_and_gradients(True, "none", drop=True)[0] - value_and_gradients(True, "none")[0]).max() > 0.01


@pytest.mark.parametrize("position_at", ["each", "shared"])
def test_layer_positions_match_if_scanned_and_rematerialised(position_at):
  expected = value_and_gradients(False, "none", position_at=position_at)
  assert_same(expected, value_and_gradients(True, "full", position_at=position_at))
  assert sum("position" in path for path in expected[1]) == (2 if position_at == "each" else 1)


@pytest.mark.parametrize("remat", ["none", "projections"])
def test_modern_blocks_match_if_scanned_and_rematerialised(remat):
  plain = value_and_gradients(False, "none", today=True)
  assert_same(plain, value_and_gradients(True, remat, today=True))
  assert any("frequencies" in path for path in plain[1])


@pytest.mark.long
def test_rematerialisation_repeats_the_same_dropout():
  assert_same(value_and_gradients(True, "none", drop=True), value_and_gradients(True, "full", drop=True))


@pytest.mark.parametrize("remat", [name for name in stack.POLICIES if name != "none"])
def test_rematerialisation_does_not_change_results(remat):
  assert_same(value_and_gradients(True, "none"), value_and_gradients(True, remat))


@pytest.mark.long
def test_rematerialisation_does_not_change_unrolled_results():
  assert_same(value_and_gradients(False, "none"), value_and_gradients(False, "full"))


def matrix_products(remat, scan, **changes):
  """Counts matrix products in the loss and its gradient, before XLA optimises them."""
  model = modules.model(scan=scan, remat=remat, **changes)
  graph, params = nnx.split(model)
  function = jax.grad(lambda params, x: nnx.merge(graph, params)(x).sum())
  return str(jax.make_jaxpr(function)(params, modules.images())).count("dot_general[")


@pytest.mark.parametrize("scan", [False, True])
def test_policies_recompute_the_expected_matrix_products(scan):
  products = {remat: matrix_products(remat, scan) for remat in stack.POLICIES}
  depth = 1 if scan else modules.SIZE["depth"]
  again = {remat: (count - products["dots"]) / depth for remat, count in products.items()}
  # A layer has 8 products: q, k, v, scores, context, out, up, down. No gradient needs the result of the last one.
  # Without a policy, a scanned layer recomputes scores and out.
  none = 2 if scan else 0
  assert again == {"none": none, "full": 7, "dots": 0, "projections": 1, "attention": 1, "mlp": 5}


def test_projection_of_a_gate_is_stored_like_the_others():
  gated = {"attention": {"output": "gated"}}
  for scan, none in ((False, 0), (True, 2)):
    counts = {remat: matrix_products(remat, scan, **gated) for remat in ("dots", "none", "projections")}
    depth = 1 if scan else modules.SIZE["depth"]
    assert [(counts[remat] - counts["dots"]) / depth for remat in ("none", "projections")] == [none, 1]


def test_every_policy_is_a_choice_of_the_config():
  assert set(typing.get_args(stack.Remat)) == set(stack.POLICIES)


def test_initial_values_do_not_depend_on_scanning():
  def create(scan):
    def layer(rngs):
      return layers.Mlp(4, 6, gelu="erf", bias_init=nnx.initializers.normal(1.0), dtype=jnp.float32, rngs=rngs)

    return dict(nnx.to_flat_state(nnx.state(stack.build(layer, 3, scan=scan, rngs=nnx.Rngs(3)))))

  listed, scanned = create(False), create(True)
  assert len(listed) == 3 * len(scanned)
  for (i, *path), variable in listed.items():
    np.testing.assert_allclose(variable[...], scanned[tuple(path)][i], rtol=1e-6, err_msg=str(path))
  assert np.abs(listed[0, "up", "kernel"][...] - listed[1, "up", "kernel"][...]).max() > 0.1


def test_stochastic_depth_grows_linearly_from_zero():
  np.testing.assert_allclose(stack.compute_growing_rates(0.4, 3), [0, 0.2, 0.4])
  assert not np.any(stack.compute_growing_rates(0.4, 1)) and not np.any(stack.compute_growing_rates(0.0, 5))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(("way", "rates"), [("growing", (0, 0.35, 0.7)), ("equal", (0.7, 0.7, 0.7))])
def test_both_branches_of_a_block_are_dropped_at_its_rate(scan, way, rates):
  """Counts images that a block leaves unchanged: both branches were dropped, each by its own random draw."""
  size = dict(image_size=8, width=8, heads=2, hidden=8, scan=scan)
  model = modules.model("ViT-S/8", stochastic_depth=0.7, stochastic_depth_rates=way, **size)
  assert model.stochastic_depth == 0.7
  call = models.capture(lambda x: model(x, jax.random.key(3)), "tokens", "blocks/./out")
  found = jax.jit(lambda x: call(x)[1])(modules.images(size=8, batch=2000))
  stream = [found["tokens"], *(found[f"blocks/{i}/out"] for i in range(3))]
  unchanged = [np.mean(np.all(np.asarray(a == b), axis=(1, 2))) for a, b in itertools.pairwise(stream)]
  np.testing.assert_allclose(unchanged, np.square(rates), atol=0.04)


def test_every_layer_gets_its_rate():
  class Layer(nnx.Module):
    def __init__(self, place):
      self.place = place

    def __call__(self, x, key, rate):
      return x.at[self.place].add(rate)

  listed = nnx.List([Layer(place) for place in range(3)])
  rates = np.float32([0.3, 0.0, 0.1])
  x = stack.run(listed, jnp.zeros(3), None, rates=rates, remat="none", name="blocks")
  np.testing.assert_array_equal(x, rates)


def test_every_layer_uses_its_own_key():
  class Layer(nnx.Module):
    def __init__(self, place):
      self.place = place

    def __call__(self, x, key, rate):
      return x.at[self.place].set(jax.random.uniform(key))

  listed = nnx.List([Layer(place) for place in range(3)])
  key = jax.random.key(5)
  drawn = stack.run(listed, jnp.zeros(3), key, rates=stack.compute_growing_rates(0.0, 3), remat="none", name="blocks")
  expected = [jax.random.uniform(jax.random.fold_in(key, i)) for i in range(3)]
  np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("scan", [False, True])
def test_activations_on_a_mesh_are_constrained_in_every_layer(scan):
  model = modules.model(scan=scan)
  mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

  def function(x):
    with activations.shard_activations(
      NamedSharding(mesh, PartitionSpec("data")), lambda path, value: value, lambda function: function
    ):
      return model(x)

  images = modules.images(batch=len(jax.devices()))
  constraints = str(jax.make_jaxpr(function)(images)).count("sharding_constraint[")
  assert constraints == (1 if scan else modules.SIZE["depth"])
  assert "sharding_constraint" not in str(jax.make_jaxpr(lambda x: model(x))(images))
