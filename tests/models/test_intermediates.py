"""Tests of vit_jax/models/intermediates.py: captures intermediates by name, and records none without a capture."""

import threading

import jax
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models, schema

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def pair():
  unrolled = modules.model()
  scanned = nnx.eval_shape(lambda: models.create("ViT-S/4", scan=True, **modules.SIZE))
  return unrolled, modules.stacked(unrolled, scanned)


def test_scanned_and_unrolled_layers_give_the_same_names_and_values(pair):
  found = [jax.jit(models.capture(model, ".*"))(modules.images())[1] for model in pair]
  assert set(found[0]) == set(found[1])
  assert {"embedding", "tokens", "encoded", "features", "pre_logits", "logits"} <= set(found[0])
  local = ("query", "key", "value", "weights", "context", "out")
  assert {f"blocks/{i}/attention/{name}" for i in range(3) for name in local} <= set(found[0])
  assert {f"blocks/{i}/{name}" for i in range(3) for name in ("mlp/hidden", "mlp/out", "out")} <= set(found[0])
  for name, value in found[0].items():
    np.testing.assert_allclose(value, found[1][name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_captured_values_are_those_that_the_model_computed(pair):
  model = pair[0]
  logits, found = models.capture(model, "logits", "features", r"blocks/\d/attention/weights", "blocks/[12]/out")(
    modules.images()
  )
  assert set(found) == {"logits", "features", "blocks/1/out", "blocks/2/out"} | {
    f"blocks/{i}/attention/weights" for i in range(3)
  }
  np.testing.assert_array_equal(found["logits"], logits)
  np.testing.assert_allclose(found["features"] @ model.head.kernel[...] + model.head.bias[...], logits, atol=1e-5)
  assert found["blocks/0/attention/weights"].shape == (3, 2, 17, 17)
  np.testing.assert_allclose(found["blocks/0/attention/weights"].sum(-1), 1, rtol=1e-5)
  np.testing.assert_allclose(model.norm(found["blocks/2/out"])[:, 0], found["features"], atol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_rematerialised_layers_can_be_captured(scan):
  model = modules.model(scan=scan, remat="full")
  _, found = jax.jit(models.capture(model, "blocks/*/out"))(modules.images())
  assert sorted(found) == [f"blocks/{i}/out" for i in range(3)]


def test_capture_composes_with_gradients(pair):
  graph, params = nnx.split(pair[1])

  def loss(params, x):
    logits, found = models.capture(lambda x: nnx.merge(graph, params)(x), "blocks/2/attention/weights")(x)
    return logits.sum(), found

  gradients, found = jax.jit(jax.grad(loss, has_aux=True))(params, modules.images())
  assert list(found) == ["blocks/2/attention/weights"] and len(jax.tree.leaves(gradients)) == len(
    jax.tree.leaves(params)
  )


def test_intermediates_of_the_pool_have_their_own_prefix():
  _, found = models.capture(modules.model(pool="map", depth=1), "pool/.*")(modules.images())
  assert found["pool/attention/weights"].shape == (3, 2, 1, 16)
  _, found = models.capture(modules.model(pool="seqpool", depth=1), "pool/weights")(modules.images())
  assert found["pool/weights"].shape == (3, 16)


def test_pattern_without_a_match_is_an_error_with_the_names(pair):
  with pytest.raises(schema.ConfigError, match=r"'blocks/9/out'\. Did you mean 'blocks/\d/out'\? Allowed: embedding, "):
    models.capture(pair[1], "blocks/9/out")(modules.images())


def test_compiled_function_is_an_error_that_shows_the_right_order(pair):
  compiled = jax.jit(lambda x: pair[0](x))
  with pytest.raises(schema.ConfigError, match=r"jax\.jit\(capture\("):
    models.capture(compiled, "tokens")(modules.images())
  compiled(modules.images())
  with pytest.raises(schema.ConfigError, match=r"jax\.jit\(capture\("):
    models.capture(compiled, "tokens")(modules.images())


def test_model_called_twice_in_a_capture_is_an_error(pair):
  with pytest.raises(schema.ConfigError, match="recorded twice"):
    models.capture(lambda x: pair[0](x) + pair[0](x), "tokens")(modules.images())


def test_calls_in_another_thread_are_not_captured(pair):
  model, seen = pair[0], []

  def inner(x):
    thread = threading.Thread(target=lambda: seen.append(model(x)))
    thread.start()
    thread.join()
    return model(x)

  _, found = models.capture(inner, "tokens")(modules.images())
  assert list(found) == ["tokens"] and len(seen) == 1


@pytest.mark.parametrize("scan", [False, True])
def test_layers_keep_their_numeric_order_through_transformations(scan):
  model = modules.model(scan=scan, depth=12)
  captured = models.capture(model, "blocks/*/out", "blocks/*/attention/weights")
  _, inside = captured(modules.images())
  by_number = [f"blocks/{layer}/out" for layer in range(12)]
  for found in (
    inside,
    jax.jit(captured)(modules.images())[1],
    jax.tree.map(np.asarray, inside),
    jax.device_get(inside),
    jax.vmap(captured)(modules.images()[:, None])[1],
  ):
    assert [name for name in found if name.endswith("/out")] == by_number
  found = jax.jit(captured)(modules.images())[1]
  stacked = np.stack([value for name, value in found.items() if name.endswith("/out")])
  for layer in range(12):
    np.testing.assert_allclose(stacked[layer], inside[f"blocks/{layer}/out"], rtol=1e-3, atol=1e-4)
