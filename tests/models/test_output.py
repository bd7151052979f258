"""Tests of a model's outputs for every family: tokens, features, logits and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models.output import check_shape, classify
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy

TINY = {"width": 16, "hidden": 16, "heads": 2, "depth": 1}
CASES = {  # name -> arguments, image size, tokens
  "ViT-S/16": (TINY, 32, 5),
  "cct_2_3x2_32": (TINY, 32, 64),
  "Mixer-S/16": ({"width": 16, "depth": 1, "hidden": 8, "token_hidden": 8}, 32, 4),
  "swin_tiny_patch4_window7_224": ({"width": 16, "depths": (1, 1), "heads": (1, 2)}, 56, 49),
  "efficientnet_b0": ({"width_factor": 0.25, "stages": (1, 1)}, 32, 64),
  "R50x1": ({"stages": (1, 1)}, 64, 64),
  "deit_tiny_distilled_patch16_224": (TINY, 32, 6),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_logits_are_computed_by_heads_from_features_and_tokens(name):
  arguments, size, tokens = CASES[name]
  description = models.Description(Choice(name, arguments), size, 5)
  whole, headless = (models.make_functional(description.replace(classes=classes)) for classes in (5, 0))
  params = whole.init(jax.random.key(0))
  heads = {path.removesuffix("/kernel") for path in params if path.startswith("head") and path.endswith("kernel")}
  for head in heads:
    params[f"{head}/kernel"] = jax.random.normal(jax.random.key(1), params[f"{head}/kernel"].shape)
  images = np.random.default_rng(0).standard_normal((2, size, size, 3), np.float32)
  output, _ = jax.jit(whole.outputs)(params, images)
  rest = {path: value for path, value in params.items() if not path.startswith("head")}
  bare, _ = jax.jit(headless.outputs)(rest, images)

  assert output.tokens.shape == (2, tokens, output.features.shape[-1])
  assert output.heads.keys() == heads and bare.heads == {}
  np.testing.assert_allclose(bare.logits, output.features, rtol=1e-6)
  np.testing.assert_allclose(output.logits, np.mean([*output.heads.values()], axis=0), rtol=1e-6)
  inputs = dict.fromkeys(heads, output.features)
  if "head_distillation" in heads:
    inputs = {"head": output.tokens[:, 0], "head_distillation": output.tokens[:, 1]}
  for head, x in inputs.items():
    expected = np.asarray(x) @ np.asarray(params[f"{head}/kernel"]) + np.asarray(params[f"{head}/bias"])
    np.testing.assert_allclose(output.heads[head], expected, rtol=1e-4, atol=1e-4)


def test_feature_map_becomes_tokens_row_by_row():
  tokens = jnp.arange(2 * 2 * 3 * 4.0).reshape(2, 2, 3, 4)
  output = classify(tokens, tokens.mean((1, 2)), None)
  np.testing.assert_array_equal(output.tokens[1, 4], tokens[1, 1, 1])


def test_images_of_another_shape_are_rejected():
  images = jnp.zeros((2, 8, 8, 3))
  check_shape(images, (8, 8, 3), None)
  with pytest.raises(ValueError, match=r"images have the shape \(8, 8, 3\) .* was built for \(9, 9, 3\)"):
    check_shape(images, (9, 9, 3), (4, 12))


@pytest.mark.parametrize("name", CASES)
def test_selected_features_are_class_token_patch_mean_or_both(name):
  arguments, size, tokens = CASES[name]
  arguments = arguments | ({"registers": 2} if name == "ViT-S/16" else {})
  model = models.make_functional(models.Description(Choice(name, arguments), size, 0))
  images = np.random.default_rng(0).standard_normal((2, size, size, 3), np.float32)
  output, _ = jax.jit(model.outputs)(model.init(jax.random.key(0)), images)
  kinds = {"ViT-S/16": ("cls", "registers"), "deit_tiny_distilled_patch16_224": ("cls", "distillation")}
  assert tuple(model.prefix) == kinds.get(name, ())
  patches = np.asarray(output.tokens)[:, {"ViT-S/16": 3, "deit_tiny_distilled_patch16_224": 2}.get(name, 0) :]
  assert patches.shape[1] == {"ViT-S/16": 4, "deit_tiny_distilled_patch16_224": 4}.get(name, tokens)
  np.testing.assert_array_equal(model.select_features("head")(output), output.features)
  np.testing.assert_allclose(model.select_features("patches")(output), patches.mean(1), rtol=1e-5, atol=1e-6)
  if not model.prefix:
    with pytest.raises(ConfigError, match=r"'cls_patches' needs a class token.*Use 'patches' or 'head'"):
      model.select_features("cls_patches")
    return
  both = np.concatenate([np.asarray(output.tokens)[:, 0], patches.mean(1)], axis=1)
  np.testing.assert_allclose(model.select_features("cls_patches")(output), both, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(model.select_features("cls")(output), output.tokens[:, 0])
