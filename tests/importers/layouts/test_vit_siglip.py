"""SigLIP of Hugging Face besides its rows, whose round trip is in test_layout."""

import numpy as np
import pytest

from tests.importers.test_layout import SIGLIP, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.schema import ConfigError


def tensors_of(arguments=SIGLIP, classes=0):
  written, description, arrays = example("hf", "ViT-S/8", arguments, 32, classes)
  return layout.write(written, arrays, description), arrays


def same(tensors, arrays):
  """Whether tensors are read as these parameters."""
  back = importers.recognise(tensors, {"heads": 2}).read()
  return back.keys() == arrays.keys() and all(np.array_equal(back[path], arrays[path]) for path in arrays)


def test_towers_saved_alone_have_no_prefix():
  tensors, arrays = tensors_of()
  assert same({name.removeprefix("vision_model."): tensor for name, tensor in tensors.items()}, arrays)


def test_of_both_towers_that_of_images_is_read():
  tensors, arrays = tensors_of()
  text = {"text_model.embeddings.token_embedding.weight": (50, 64), "text_model.head.weight": (64, 64)}
  others = text | {"logit_scale": (1,), "logit_bias": (1,), "vision_model.embeddings.position_ids": (1, 16)}
  assert same({**tensors, **{name: np.zeros(shape, np.float32) for name, shape in others.items()}}, arrays)


def test_a_classifier_reads_the_mean_whatever_pooling_is_there_too():
  tensors, arrays = tensors_of(SIGLIP | {"pool": "gap"}, 3)
  pooling = {name: tensor for name, tensor in tensors_of()[0].items() if ".head." in name}
  assert pooling and same(tensors | pooling, arrays)


def test_the_pooling_has_queries_keys_and_values_in_this_order():
  tensors, arrays = tensors_of()
  parts = [arrays[f"pool/attention/{part}/kernel"].reshape(64, 64).T for part in ("query", "key", "value")]
  np.testing.assert_array_equal(tensors["vision_model.head.attention.in_proj_weight"], np.concatenate(parts))


def test_models_for_any_shape_are_refused_with_what_to_take():
  tensors, _ = tensors_of()
  name = "vision_model.embeddings.patch_embedding.weight"
  with pytest.raises(ConfigError, match=r"NaFlex.*google/siglip2-base-patch16-224"):
    importers.recognise(tensors | {name: tensors[name].reshape(64, -1)})


def test_gelu_and_epsilon_are_those_of_the_authors():
  tensors, _ = tensors_of()
  bound = importers.recognise(tensors, {"heads": 2}).description.settings()
  assert (bound["gelu"], bound["norm.eps"], bound["head"]) == ("tanh", 1e-6, "map")
