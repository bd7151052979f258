"""Tests of vit_jax/models/compact.py: initial distributions, defaults and image sizes of the official code."""

import jax
import numpy as np
import pytest

from tests import modules
from vit_jax import models, schema

pytestmark = pytest.mark.heavy


def test_pre_norm_order_differs_from_the_official_order():
  x = modules.images()
  official, meant = (modules.run(modules.model("cvt_2_4_32", norm_order=order), x) for order in ("official", "pre"))
  assert np.abs(official - meant).max() > 1e-2


def std(parameter):
  return float(np.std(parameter[...]))


def test_initial_values_have_the_official_distributions():
  model = models.create("cct_7_3x2_32", depth=1)
  first, second = model.embedding.convolutions
  np.testing.assert_allclose(std(first.kernel), (2 / 27) ** 0.5, rtol=0.05)
  np.testing.assert_allclose(std(second.kernel), (2 / 576) ** 0.5, rtol=0.02)
  # Not truncated: about 4.6 % of a normal distribution are more than two standard deviations from the mean.
  assert np.mean(np.abs(second.kernel[...]) > 2 * (2 / 576) ** 0.5) > 0.03
  np.testing.assert_allclose(std(model.position.table), 0.2, rtol=0.02)
  block = model.blocks[0]
  for kernel in (block.attention.query, block.attention.key, block.attention.value, block.attention.out, block.mlp.up):
    np.testing.assert_allclose(std(kernel.kernel), 0.02, rtol=0.02)
  np.testing.assert_allclose(std(model.head.kernel), 0.02, rtol=0.05)
  np.testing.assert_allclose(std(model.pool.score.kernel), 0.02, rtol=0.2)
  assert block.attention.query.bias is None
  for bias in (block.attention.out, block.mlp.up, block.mlp.down, model.head, model.pool.score):
    assert not np.any(bias.bias[...])


def test_vit_lite_has_the_uniform_bias_of_torch_and_a_zero_class_token():
  model = models.create("vit_7_4_32", depth=1)
  bias, bound = model.embedding.bias[...], 1 / 48**0.5
  assert np.abs(bias).max() <= bound and np.abs(bias).max() > 0.95 * bound
  np.testing.assert_allclose(np.std(bias), bound / 3**0.5, rtol=0.1)
  np.testing.assert_allclose(std(model.embedding.kernel), (2 / 48) ** 0.5, rtol=0.02)
  assert not np.any(model.cls[...])


def test_defaults_match_the_official_code():
  bound = schema.bind(schema.Choice("cct_2_3x2_32"), (models.lookup("cct_2_3x2_32"),)).args
  assert (bound["attention_dropout"], bound["stochastic_depth"], bound["dropout"]) == (0.1, 0.1, 0.0)
  assert (bound["position"], bound["norm_order"]) == ("learned", "official")
  sine = models.lookup("cct_2_3x2_32_sine")
  assert schema.bind(schema.Choice("cct_2_3x2_32_sine"), (sine,)).args["position"] == "sine"


@pytest.mark.parametrize("image_size", [1, 20, 33, 57])
@pytest.mark.parametrize("name", ["cct_2_3x2_32", "cct_7_7x2_224"])
def test_convolutional_tokenizers_take_any_image_size(name, image_size):
  tiny = {"image_size": image_size, "channels": 1, "classes": 3, "width": 8, "heads": 2, "hidden": 8, "depth": 1}
  images = jax.ShapeDtypeStruct((2, image_size, image_size, 1), np.float32)
  assert jax.eval_shape(lambda x: models.create(name, **tiny)(x), images).shape == (2, 3)


def test_image_size_that_is_not_a_multiple_of_the_patch_is_an_error():
  with pytest.raises(schema.ConfigError, match=r"image size 30 .* patch 4; nearest image sizes: 28, 32"):
    models.create("cvt_2_4_32", image_size=30)


def test_model_without_positions_ignores_the_order_of_tokens():
  x = modules.images()
  x = np.concatenate([x, np.roll(x, 4, axis=1)])  # by one patch
  for position in ("none", "learned", "sine"):
    logits, moved = np.split(modules.run(modules.model("cvt_2_4_32", position=position), x), 2)
    assert (np.abs(logits - moved).max() < 1e-4) == (position == "none")
