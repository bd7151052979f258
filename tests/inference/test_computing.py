"""Tests of a model's predictions, against NumPy on its logits."""

import jax
import numpy as np
import pytest

from tests import small_weights
from vit_jax import models
from vit_jax.inference import stored
from vit_jax.inference.computing import make_predict_function

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def use(tmp_path_factory):
  return stored.load(small_weights.file(tmp_path_factory.mktemp("weights"), mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4]))


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_best_classes_have_the_largest_probabilities(use, loss):
  images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
  model = models.make_functional(use.description)
  result = jax.jit(make_predict_function(model, use.data, loss, "head"))(use.arrays, images)
  normalised = ((images / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]).astype(np.float32)
  output, _ = jax.jit(model.outputs)(use.arrays, normalised)
  logits = np.asarray(output.logits, np.float64)
  shares = np.exp(logits) if loss == "softmax" else 1 / (1 + np.exp(-logits))
  if loss == "softmax":
    shares /= shares.sum(1, keepdims=True)
  best = np.argsort(-shares, axis=1)[:, :5]
  np.testing.assert_array_equal(result["best"], best)
  np.testing.assert_allclose(result["probability"], np.take_along_axis(shares, best, 1), rtol=2e-3, atol=1e-6)
  np.testing.assert_allclose(result["features"], output.features, rtol=1e-3, atol=1e-3)


def test_model_without_a_head_has_only_features(use):
  model = models.make_functional(use.description.replace(classes=0))
  shapes = jax.eval_shape(
    make_predict_function(model, use.data, "softmax", "head"),
    use.arrays,
    jax.ShapeDtypeStruct((2, 32, 32, 3), np.uint8),
  )
  assert {name: shape.shape for name, shape in shapes.items()} == {"features": (2, 64), "finite/features": (2,)}
