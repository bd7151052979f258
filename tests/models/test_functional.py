"""Tests that a model as pure functions equals the module that it is built from."""

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import config, models, rng, trees
from vit_jax.parallel import sharding
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy

TINY = {"width": 16, "hidden": 16, "heads": 2, "depth": 2}
VIT = models.Description(Choice("ViT-S/16", TINY), 32, 5)
NET = models.Description(Choice("efficientnet_b0", {"width_factor": 0.25, "stages": (1, 1)}), 32, 5)


def images():
  return np.random.default_rng(0).standard_normal((8, 32, 32, 3), np.float32)


@pytest.mark.parametrize("scan", [False, True])
def test_initial_parameters_equal_those_of_the_module(scan):
  arguments = TINY | {"scan": scan}
  model = models.make_functional(VIT.replace(model=Choice("ViT-S/16", arguments)))
  module = models.create("ViT-S/16", 32, classes=5, rngs=rng.Keys(jax.random.key(3)), **arguments)
  drawn, expected = model.init(jax.random.key(3)), trees.flatten(nnx.state(module))
  assert drawn.keys() == expected.keys() == model.shapes().keys()
  for path, value in expected.items():
    np.testing.assert_array_equal(drawn[path], value)
    assert (model.shapes()[path].shape, model.shapes()[path].dtype) == (value.shape, value.dtype)
  again = model.create(drawn)
  np.testing.assert_array_equal(again(images()), module(images()))


def test_statistics_are_returned_and_change_only_in_training():
  model = models.make_functional(NET)
  params = model.init(jax.random.key(0))
  assert model.statistics == {path for path in params if path.endswith(("/mean", "/var"))}
  _, still = jax.jit(model.outputs)(params, images())
  _, moved = jax.jit(model.outputs)(params, images(), jax.random.key(1))
  assert still.keys() == moved.keys() == model.statistics
  assert all(np.array_equal(still[path], params[path]) for path in still)
  assert not any(np.array_equal(moved[path], params[path]) for path in moved)


def test_mesh_constrains_activations_without_changing_the_output():
  model = models.make_functional(VIT)
  params = model.init(jax.random.key(0))
  sharded = model.place_on(sharding.make_mesh(config.Mesh(data=8), jax.devices()))
  jaxprs = [str(jax.make_jaxpr(one.outputs)(params, images())) for one in (model, sharded)]
  constrained = [text.count("sharding_constraint") for text in jaxprs]
  assert constrained[0] == 0 and constrained[1] >= 2  # once per block
  np.testing.assert_allclose(
    jax.jit(sharded.outputs)(params, images())[0].logits, model.outputs(params, images())[0].logits, atol=1e-5
  )


def test_equal_descriptions_share_a_model_and_unknown_keys_are_errors():
  spelled_out = VIT.bind()
  assert models.make_functional(VIT) is models.make_functional(spelled_out)
  with pytest.raises(ConfigError, match=r"model\.widht: unknown key .* Did you mean 'width'"):
    models.make_functional(VIT.replace(model=Choice("ViT-S/16", {"widht": 3})))
