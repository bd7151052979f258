"""Tests that a resized model matches a model with a position table that the importers resampled."""

import jax
import numpy as np
import pytest

from vit_jax import models
from vit_jax.importers import surgery
from vit_jax.models import resizing
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy

SMALL = {"depth": 1, "width": 16, "heads": 2, "hidden": 16}
KEY = jax.random.key(0)


def model(size=32, **arguments):
  return models.make_functional(models.Description(Choice("ViT-Ti/8", SMALL | arguments), size, 0))


@pytest.mark.parametrize("arguments", [
  {"resampling": "zoom"},
  {"resampling": "bicubic_offset", "registers": 2},
  {"resampling": "bicubic_antialiased", "position": "learned_patches"},
  {"resampling": "bicubic", "pool": "gap"},
  {"position": "sincos2d"},
], ids=str)  # fmt: skip
def test_resized_model_matches_a_model_resampled_by_importers(arguments):
  large, small = model(32, **arguments), model(24, **arguments)
  params = {path: np.asarray(jax.random.normal(KEY, leaf.shape)) for path, leaf in large.shapes().items()}
  images = np.asarray(jax.random.normal(KEY, (2, 24, 24, 3)))
  fitted, _ = surgery.fit(params, large.description, small.description, "keep")
  expected, _ = small.outputs(fitted, images)
  resized = resizing.resize(large, 24)
  found, _ = resized.model.outputs(resized.adapt(params), images)
  np.testing.assert_allclose(found.tokens, expected.tokens, rtol=1e-5, atol=1e-5)


def test_gradients_reach_the_original_table():
  large = model(32, resampling="bicubic_antialiased")
  small, params = resizing.resize(large, 16), large.init(KEY)
  images = jax.random.normal(KEY, (2, 16, 16, 3))

  def features(table):
    return small.model.outputs(small.adapt(params | {"position/table": table}), images)[0].features.sum()

  gradient = jax.grad(features)(params["position/table"])
  assert gradient.shape == (17, 16) and np.all(np.abs(np.asarray(gradient)).sum(1) > 0)


def test_the_same_size_needs_no_resampling():
  large = model(32)
  assert resizing.resize(large, 32).weights is None


@pytest.mark.parametrize(("arguments", "expected"), [
  ({"position": "relative"}, "depends on the image size"),
  ({"position": {"name": "learned", "at": "each"}}, "depends on the image size"),
], ids=str)  # fmt: skip
def test_other_size_dependent_parameters_are_an_error(arguments, expected):
  with pytest.raises(ConfigError, match=expected):
    resizing.resize(model(32, **arguments), 16)
