"""Tests of the heads of Vision Transformers: their parameters, and their logits against NumPy."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models
from vit_jax.models.vit import vit
from vit_jax.models.vit_heads import HEAD
from vit_jax.schema import Choice, Text

FLAT = {"class_token": None, "pre_logits": None, "head_bias": 0.0, "head_std": 0.0}
PREFIX = {"cls": {"cls": 1}, "gap": {}, "map": {}, "seqpool": {}, "distilled": {"cls": 1, "distillation": 1}}


def abstract(head):
  """Returns a model with the given head and shapes instead of values."""
  return nnx.eval_shape(lambda: models.create("ViT-mu/8", image_size=16, classes=3, head=head))


def test_vit_has_21_keyword_arguments():
  keywords = [each for each in inspect.signature(vit).parameters.values() if each.kind is each.KEYWORD_ONLY]
  assert len(keywords) == 21


@pytest.mark.parametrize("name", HEAD)
def test_head_determines_the_prefix_tokens(name):
  assert abstract(name).prefix == PREFIX[name]


@pytest.mark.parametrize("name", ["gap", "map", "seqpool"])
def test_pooling_head_may_have_a_class_token(name):
  assert abstract({"name": name, "class_token": True}).prefix == {"cls": 1}


@pytest.mark.parametrize("name", HEAD)
def test_flat_arguments_select_the_same_head(name):
  nested = models.bind(Choice("ViT-mu/8", {"head": name}))
  assert models.bind(Choice("ViT-mu/8", {"pool": name, **FLAT})) == nested
  flags = {"pool": Text(name), "class_token": Text("none"), "pre_logits": Text("none"), "head_bias": Text("0")}
  assert models.bind(Choice("ViT-mu/8", flags)) == nested


def test_flat_arguments_override_a_published_head():
  name = "vit_small_patch16_dinov3"  # pools the patches, with a class token
  without = models.bind(Choice(name, {"class_token": False})).args["head"]
  assert (without.name, without.args["class_token"]) == ("gap", False)
  token = models.bind(Choice(name, {"pool": "cls", "class_token": True})).args["head"]
  assert token == models.bind(Choice(name, {"head": "cls"})).args["head"]
  plain = models.bind(Choice("google/vit-base-patch16-224-in21k", {"pre_logits": None})).args["head"]
  assert (plain.name, plain.args["pre_logits"]) == ("cls", None)


@pytest.mark.heavy
def test_the_last_layers_have_the_stated_initial_values():
  head = {"name": "gap", "pre_logits": 96, "bias": -6.9, "std": 0.02}
  model = models.create("ViT-mu/8", image_size=16, classes=50, head=head)
  assert model.pre_logits.kernel.shape[-1] == 96 and not model.pre_logits.bias[...].any()
  assert (model.head.bias[...] == np.float32(-6.9)).all()
  np.testing.assert_allclose(np.std(model.head.kernel[...]), 0.02, rtol=0.1)


@pytest.mark.heavy
def test_pre_logits_layer_applies_tanh_before_the_head():
  model = modules.model(head={"name": "gap", "pre_logits": 12, "std": 0.02}, depth=1)
  outputs = model.outputs(jnp.asarray(modules.images()), None)
  tokens = np.asarray(outputs.tokens).mean(1)
  hidden = np.tanh(tokens @ model.pre_logits.kernel[...] + model.pre_logits.bias[...])
  expected = hidden @ model.head.kernel[...] + model.head.bias[...]
  np.testing.assert_allclose(outputs.logits, expected, atol=1e-5)
