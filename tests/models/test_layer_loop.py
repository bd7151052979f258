"""Tests that the loop over layers computes what a loop in Python computes, and stores what its policy selects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import layer_loop

pytestmark = pytest.mark.heavy

DEPTH, BATCH, WIDTH, HIDDEN = 3, 4, 5, 7


def layer(params, x, shared, own):
  hidden = jnp.sin(x @ params["up"].astype(x.dtype)) * jax.random.bernoulli(own["key"], 0.7, (BATCH, HIDDEN))
  y = x + hidden @ params["down"].astype(x.dtype) * params["scale"].astype(x.dtype) + shared["added"]
  return y + own["number"].astype(x.dtype), {"hidden": hidden}


def pick(stacks, i):
  return jax.tree.map(lambda stack: stack[i], stacks)


def make_inputs(dtype):
  draw = np.random.default_rng(0).standard_normal
  shapes = {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH), "scale": (WIDTH,)}
  params = {name: jnp.asarray(draw((DEPTH, *shape)), jnp.float32) for name, shape in shapes.items()}
  shared = {"added": jnp.asarray(draw((BATCH, WIDTH)), dtype)}
  own = {"key": jax.random.split(jax.random.key(1), DEPTH), "number": np.arange(DEPTH, dtype=np.float32)}
  return params, jnp.asarray(draw((BATCH, WIDTH)), dtype), shared, own


def compute_loss(apply, own):
  def loss(params, x, shared):
    y, values = apply(params, x, shared, own)
    return jnp.sum(jnp.square(y.astype(jnp.float32))) + jnp.sum(jnp.cos(values["hidden"].astype(jnp.float32)))

  return loss


def apply_in_turn(params, x, shared, own):
  """Applies the layers with a loop in Python."""
  hidden = []
  for i in range(DEPTH):
    x, values = layer(pick(params, i), x, shared, pick(own, i))
    hidden.append(values["hidden"])
  return x, {"hidden": jnp.stack(hidden)}


def apply_scanned(policy):
  return lambda params, x, shared, own: layer_loop.scan_layers(layer, params, x, shared, own, policy)


@pytest.mark.parametrize("policy", ["everything_saveable", "nothing_saveable", "dots_saveable"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_results_and_gradients_equal_those_of_a_loop_in_python(policy, dtype, tolerance):
  params, x, shared, own = make_inputs(dtype)
  scanned = compute_loss(apply_scanned(getattr(jax.checkpoint_policies, policy)), own)
  expected, gradients = jax.value_and_grad(compute_loss(apply_in_turn, own), (0, 1, 2))(params, x, shared)
  value, found = jax.jit(jax.value_and_grad(scanned, (0, 1, 2)))(params, x, shared)
  np.testing.assert_allclose(value, expected, rtol=tolerance)
  assert jax.tree.map(lambda a: a.dtype, found) == jax.tree.map(lambda a: a.dtype, gradients)
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(gradients), strict=True):
    one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
    np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


def test_one_layer_is_a_loop_too():
  params, x, shared, own = make_inputs("float32")
  params, own = jax.tree.map(lambda a: a[:1], (params, own))
  value, gradient = jax.value_and_grad(compute_loss(apply_scanned(jax.checkpoint_policies.nothing_saveable), own), 1)(
    params, x, shared
  )

  def direct(x):
    y, values = layer(pick(params, 0), x, shared, pick(own, 0))
    return jnp.sum(jnp.square(y)) + jnp.sum(jnp.cos(values["hidden"]))

  np.testing.assert_allclose(value, direct(x), rtol=1e-5)
  np.testing.assert_allclose(gradient, jax.grad(direct)(x), rtol=1e-4, atol=1e-5)


def find_stacks(policy):
  """Returns the shapes and types of all stacks that the two loops write."""
  params, x, shared, own = make_inputs("bfloat16")
  jaxpr = jax.make_jaxpr(jax.grad(compute_loss(apply_scanned(policy), own), (0, 1, 2)))(params, x, shared).jaxpr
  loops = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
  assert len(loops) == 2
  return [[(v.aval.shape[1:], str(v.aval.dtype)) for v in loop.outvars[loop.params["num_carry"] :]] for loop in loops]


def test_only_selected_values_are_stored():
  forward, _ = find_stacks(jax.checkpoint_policies.nothing_saveable)
  # The recorded values and the outputs, but neither parameters, keys nor masks.
  assert sorted(forward) == [((BATCH, WIDTH), "bfloat16"), ((BATCH, HIDDEN), "bfloat16")]
  everything, _ = find_stacks(jax.checkpoint_policies.everything_saveable)
  assert len(everything) > len(forward)


def test_gradients_have_the_type_in_which_the_layer_reads_its_parameters():
  _, backward = find_stacks(jax.checkpoint_policies.nothing_saveable)
  shapes = [(WIDTH,), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
  assert sorted(backward) == sorted((shape, "bfloat16") for shape in shapes)


def test_recorded_parameter_keeps_its_type():
  params, x, shared, own = make_inputs("bfloat16")

  def record(params, x, shared, own):
    return layer(params, x, shared, own)[0], {"scale": params["scale"]}

  policy = jax.checkpoint_policies.nothing_saveable
  _, values = layer_loop.scan_layers(record, params, x, shared, own, policy)
  np.testing.assert_array_equal(values["scale"], params["scale"])


def test_shared_integers_are_refused():
  params, x, shared, own = make_inputs("float32")
  with pytest.raises(TypeError, match="shared inputs must be floating-point arrays"):
    layer_loop.scan_layers(layer, params, x, shared | {"number": jnp.arange(2)}, own, lambda *_, **__: False)
