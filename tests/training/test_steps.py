"""The train step against NumPy, accumulation against the whole batch, frozen parameters, averages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.stages import CONTEXT
from vit_jax import config, rng
from vit_jax.parallel import sharding
from vit_jax.training import steps

pytestmark = pytest.mark.heavy

DRAW = np.random.default_rng(0)
BATCH = {"x": DRAW.normal(size=(16, 3)).astype(np.float32), "y": DRAW.normal(size=(16,)).astype(np.float32)}


def parameters(key):
  return {"a/kernel": jax.random.normal(key, (3,)), "head/bias": jnp.zeros(())}


def examples(batch, context, key):
  return batch


def loss(params, context, examples, key):
  """Least squares, with a noise that tells which dropout key arrived."""
  error = examples["x"] @ params["a/kernel"] + params["head/bias"] - examples["y"]
  return jnp.mean(error**2), ({"noise": jax.random.normal(key)}, {})


def one_step(gradient, transformation, ema=None, number=1):
  state = steps.init_state(7, parameters, transformation, ema is not None)
  step = jax.jit(steps.make_train_step(7, examples, gradient, transformation, average_decay=lambda step: ema))
  history = [state]
  for _ in range(number):
    state, metrics = step(state, BATCH, {})
    history.append(state)
  return history, metrics


def test_a_step_of_gradient_descent_is_what_numpy_computes():
  history, metrics = one_step(steps.make_gradient(loss, frozenset()), optax.sgd(0.1))
  w = np.asarray(history[0].params["a/kernel"], np.float64)
  error = BATCH["x"] @ w - BATCH["y"]
  gradient = 2 * BATCH["x"].T @ error / 16, 2 * error.mean()
  np.testing.assert_allclose(history[1].params["a/kernel"], w - 0.1 * gradient[0], rtol=1e-5)
  np.testing.assert_allclose(history[1].params["head/bias"], -0.1 * gradient[1], rtol=1e-5)
  norm = np.sqrt((gradient[0] ** 2).sum() + gradient[1] ** 2)
  np.testing.assert_allclose(metrics["loss"], (error**2).mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-5)
  assert int(history[1].step) == 1


@pytest.mark.parametrize("count", [2, 4])
def test_micro_batches_add_up_to_the_batch(count):
  grid = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2), jax.devices())
  whole = steps.make_gradient(loss, frozenset())
  parts = steps.accumulate_gradients(whole, sharding.make_micro_batch_sharding(grid), accumulate=count)
  expected, _ = one_step(whole, optax.sgd(0.1))
  found, _ = one_step(parts, optax.sgd(0.1))
  for path, value in expected[1].params.items():
    np.testing.assert_allclose(found[1].params[path], value, rtol=1e-5, atol=1e-6)


def test_every_micro_batch_has_a_dropout_key_of_its_own():
  grid = sharding.make_mesh(config.Mesh(), jax.devices())
  parts = steps.accumulate_gradients(
    steps.make_gradient(loss, frozenset()), sharding.make_micro_batch_sharding(grid), accumulate=2
  )
  _, metrics = one_step(parts, optax.sgd(0.1))
  key = rng.derive_key(7, 0, "dropout")
  draws = [float(jax.random.normal(jax.random.fold_in(key, i))) for i in range(2)]
  assert draws[0] != draws[1]
  np.testing.assert_allclose(metrics["noise"], np.mean(draws), rtol=1e-5)


def test_frozen_parameters_stay_and_are_not_in_the_norm():
  gradient = steps.make_gradient(loss, frozenset({"a/kernel"}))
  history, metrics = one_step(gradient, optax.sgd(0.1))
  np.testing.assert_array_equal(history[1].params["a/kernel"], history[0].params["a/kernel"])
  error = BATCH["x"] @ np.asarray(history[0].params["a/kernel"]) - BATCH["y"]
  np.testing.assert_allclose(metrics["gradient_norm"], abs(2 * error.mean()), rtol=1e-5)


def test_frozen_parameters_cost_no_backward_pass():
  def flops(frozen):
    gradient = steps.make_gradient(lambda p, c, e, k: ((e["x"] @ p["a"] @ p["b"]).sum(), ({}, {})), frozen)
    shapes = {"a": jax.ShapeDtypeStruct((64, 64), jnp.float32), "b": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
    lowered = jax.jit(gradient).lower(
      shapes, CONTEXT, {"x": jax.ShapeDtypeStruct((64, 64), jnp.float32)}, jax.random.key(0)
    )
    return lowered.compile().cost_analysis()["flops"]

  assert flops(frozenset({"a"})) < 0.9 * flops(frozenset())


def with_statistics(params, context, examples, key):
  """The least squares of `loss`, and a running mean of the targets, as a batch norm would have it."""
  value, (metrics, _) = loss(params, context, examples, key)
  return value, (metrics, {"norm/mean": 0.9 * params["norm/mean"] + 0.1 * examples["y"].mean()})


def with_mean(key):
  return parameters(key) | {"norm/mean": jnp.ones(())}


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("frozen", [frozenset(), frozenset({"a/kernel"})])
def test_statistics_are_what_the_forward_pass_says_and_no_gradients(count, frozen):
  grid = sharding.make_mesh(config.Mesh(), jax.devices()[:2])
  gradient = steps.make_gradient(with_statistics, frozen | {"norm/mean"})
  gradient = steps.accumulate_gradients(gradient, sharding.make_micro_batch_sharding(grid), accumulate=count)
  state = steps.init_state(7, with_mean, optax.sgd(0.1), averaged=True)
  after, metrics = jax.jit(
    steps.make_train_step(7, examples, gradient, optax.sgd(0.1), average_decay=lambda step: 0.75)
  )(state, BATCH, {})
  mean = 0.9 + 0.1 * BATCH["y"].mean()
  np.testing.assert_allclose(after.params["norm/mean"], mean, rtol=1e-6)
  np.testing.assert_allclose(after.ema["norm/mean"], 0.75 + 0.25 * mean, rtol=1e-6)
  # All else is as if there were none.
  plain, expected = one_step(steps.make_gradient(loss, frozen), optax.sgd(0.1))
  for path, value in plain[1].params.items():
    np.testing.assert_allclose(after.params[path], value, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(metrics["gradient_norm"], expected["gradient_norm"], rtol=1e-5)


def test_the_average_follows_the_weights():
  history, _ = one_step(steps.make_gradient(loss, frozenset()), optax.sgd(0.1), ema=0.75, number=5)
  mean = np.asarray(history[0].params["a/kernel"], np.float64)
  for state in history[1:]:
    mean = 0.75 * mean + 0.25 * np.asarray(state.params["a/kernel"])
  np.testing.assert_allclose(history[-1].ema["a/kernel"], mean, rtol=1e-5)


def test_without_an_average_none_is_kept():
  history, _ = one_step(steps.make_gradient(loss, frozenset()), optax.sgd(0.1))
  assert history[1].ema == {}


def test_dropout_and_augmentation_keys_follow_from_the_step():
  history, first = one_step(steps.make_gradient(loss, frozenset()), optax.sgd(0.1))
  step = steps.make_train_step(7, examples, steps.make_gradient(loss, frozenset()), optax.sgd(0.1))
  noises = [float(step(history[0], BATCH, {})[1]["noise"]), float(step(history[1], BATCH, {})[1]["noise"])]
  assert noises[0] == float(first["noise"]) != noises[1]
