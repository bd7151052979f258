"""Tests of Hugging Face's SigLIP files: towers, pooling and errors. The round trip of the table is in test_layout."""

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
  """Returns whether tensors are read as these parameters."""
  back = importers.recognise(tensors, {"heads": 2}).read()
  return back.keys() == arrays.keys() and all(np.array_equal(back[path], arrays[path]) for path in arrays)


def test_vision_tower_saved_alone_has_no_prefix():
  tensors, arrays = tensors_of()
  assert same({name.removeprefix("vision_model."): tensor for name, tensor in tensors.items()}, arrays)


def test_vision_tower_is_read_from_a_file_with_both_towers():
  tensors, arrays = tensors_of()
  text = {"text_model.embeddings.token_embedding.weight": (50, 64), "text_model.head.weight": (64, 64)}
  others = text | {"logit_scale": (1,), "logit_bias": (1,), "vision_model.embeddings.position_ids": (1, 16)}
  assert same({**tensors, **{name: np.zeros(shape, np.float32) for name, shape in others.items()}}, arrays)


def test_classifier_pools_the_mean_and_ignores_stored_pooling():
  tensors, arrays = tensors_of(SIGLIP | {"pool": "gap"}, 3)
  pooling = {name: tensor for name, tensor in tensors_of()[0].items() if ".head." in name}
  assert pooling and same(tensors | pooling, arrays)


def test_pooling_packs_queries_keys_and_values_in_order():
  tensors, arrays = tensors_of()
  parts = [arrays[f"pool/attention/{part}/kernel"].reshape(64, 64).T for part in ("query", "key", "value")]
  np.testing.assert_array_equal(tensors["vision_model.head.attention.in_proj_weight"], np.concatenate(parts))


def test_naflex_models_are_an_error_with_an_alternative():
  tensors, _ = tensors_of()
  name = "vision_model.embeddings.patch_embedding.weight"
  with pytest.raises(ConfigError, match=r"NaFlex.*google/siglip2-base-patch16-224"):
    importers.recognise(tensors | {name: tensors[name].reshape(64, -1)})


def test_gelu_and_epsilon_have_the_authors_defaults():
  tensors, _ = tensors_of()
  bound = importers.recognise(tensors, {"heads": 2}).description.settings()
  assert (bound["gelu"], bound["norm.eps"], bound["head"]) == ("tanh", 1e-6, "map")
