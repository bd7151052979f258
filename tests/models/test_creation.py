"""Tests of models.create, which builds modules for interactive use."""

import jax
import numpy as np
import pytest

from vit_jax import models, rng
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy


def test_arguments_override_the_published_size_and_classes():
  model = models.create("ViT-mu/8", image_size=32, classes=3, depth=1)
  assert model(np.zeros((2, 32, 32, 3), np.float32), None).shape == (2, 3)


def test_initial_values_depend_only_on_the_keys():
  first, same, other = (models.create("ViT-mu/8", 32, classes=3, depth=1, rngs=rngs) for rngs in (
    None, rng.Keys(rng.make_key(0)), rng.Keys(rng.make_key(1))))  # fmt: skip
  kernels = [jax.device_get(model.embedding.kernel[...]) for model in (first, same, other)]
  np.testing.assert_array_equal(kernels[0], kernels[1])
  assert np.abs(kernels[0] - kernels[2]).max() > 0


def test_unknown_model_name_or_argument_is_an_error():
  with pytest.raises(ConfigError, match="Did you mean"):
    models.create("ViT-BB/16")
  with pytest.raises(ConfigError, match="depht"):
    models.create("ViT-B/16", depht=2)
