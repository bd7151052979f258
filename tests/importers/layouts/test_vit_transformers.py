"""Tests of Hugging Face's DINOv2 and DINOv3 files. The round trips of their tables are in test_layout."""

import numpy as np
import pytest

from tests.importers.test_layout import GIANT, HF_DINOV3, MODERN, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.schema import Choice, ConfigError


def tensors_of(arguments, size=32):
  written, description, arrays = example("hf", "ViT-S/8", arguments, size, 0)
  return layout.write(written, arrays, description), description, arrays


def same(tensors, arrays, hints=None):
  """Returns whether tensors are read as these parameters."""
  back = importers.recognise(tensors, {"heads": 2} | (hints or {})).read()
  return back.keys() == arrays.keys() and all(np.array_equal(back[path], arrays[path]) for path in arrays)


@pytest.mark.parametrize("prefix", ["dinov2.", "dinov2_with_registers."])
def test_dinov2_inside_of_a_model_with_a_head_is_read(prefix):
  tensors, _, arrays = tensors_of(MODERN | {"registers": 2})
  assert same({f"{prefix}{name}": tensor for name, tensor in tensors.items()}, arrays)


def test_dinov2_classifier_is_an_error_with_the_fix():
  tensors, _, _ = tensors_of(MODERN)
  tensors |= {"classifier.weight": np.zeros((3, 128), np.float32), "classifier.bias": np.zeros(3, np.float32)}
  with pytest.raises(ConfigError, match=r"class token and mean of the patches.*Convert the model without it"):
    importers.recognise({name if name.startswith("classifier") else f"dinov2.{name}": t for name, t in tensors.items()})


def test_dinov3_layer_names_of_transformers_5_in_memory_are_read():
  tensors, _, arrays = tensors_of(HF_DINOV3)
  inside = {f"model.{name}" if name.startswith("layer.") else name: tensor for name, tensor in tensors.items()}
  assert inside.keys() != tensors.keys() and same(inside, arrays)
  assert same({f"model.{name}": tensor for name, tensor in tensors.items()}, arrays)  # prefix of a model with a head


@pytest.mark.parametrize("arguments", [MODERN, GIANT | {"registers": 4}, HF_DINOV3, HF_DINOV3 | {"registers": 0}])
def test_mask_token_is_written_as_zeros_like_in_transformers(arguments):
  tensors, _, arrays = tensors_of(arguments)
  token = tensors["embeddings.mask_token"]
  assert token.shape[-1] == 64 and token.ndim == (3 if "rotary" in arguments else 2) and not token.any()
  without = {name: tensor for name, tensor in tensors.items() if name != "embeddings.mask_token"}
  assert same(tensors, arrays) and same(without, arrays)


def test_packed_mlp_of_a_giant_has_the_gate_first():
  tensors, _, arrays = tensors_of(GIANT)
  packed = np.concatenate([arrays[f"blocks/1/mlp/{part}/kernel"].T for part in ("gate", "up")])
  np.testing.assert_array_equal(tensors["encoder.layer.1.mlp.weights_in.weight"], packed)


@pytest.mark.parametrize("arguments", [{"layer_scale": None}, {"registers": 4}, {}])
def test_table_gets_a_zero_class_token_row_and_is_read_back(arguments):
  tensors, description, arrays = tensors_of(MODERN | {"position": "learned_patches"} | arguments)
  table = next(tensor for name, tensor in tensors.items() if name.endswith("position_embeddings"))
  assert table.shape == (1, 17, 64) and not table[:, 0].any()
  assert same(tensors, arrays, {"description": description.to_json()})


def test_hf_files_pool_the_class_token_and_timm_files_the_mean():
  tensors, description, arrays = tensors_of(HF_DINOV3 | {"pool": "gap", "class_token": True})
  assert importers.recognise(tensors, {"heads": 2}).description.settings()["head"] == "cls"
  timm = layout.write(importers.find_layout(description, "timm"), arrays, description)
  found = importers.recognise(timm, {"heads": 2}).description.settings()
  assert (found["head"], found["head.class_token"]) == ("gap", True)


def test_bias_of_keys_alone_is_an_error():
  tensors, _, _ = tensors_of(HF_DINOV3 | {"qkv_bias": "none"})
  tensors |= {f"layer.{i}.attention.k_proj.bias": np.zeros(64, np.float32) for i in range(2)}
  with pytest.raises(ConfigError, match=r"is not supported: key. Allowed: all, query and value, none"):
    importers.recognise(tensors, {"heads": 2})


@pytest.mark.parametrize(
  ("arguments", "size", "message"),
  [
    (MODERN, (32, 48), r"position tables of square images only, not of \(32, 48\)"),
    (MODERN | {"hidden": 96}, 32, r"mlp_ratio, a whole multiple of the width 64, but this model has hidden=96"),
    (GIANT | {"hidden": 96}, 32, r"mlp_ratio, a whole multiple of the width 64, but this model has hidden=96"),
    (HF_DINOV3 | {"rotary": Choice("dinov3", {"normalise": "max"})}, 32, r"normalise=separate, but this model has max"),
  ],
)
def test_models_that_transformers_cannot_express_are_errors(arguments, size, message):
  with pytest.raises(ConfigError, match=message):
    tensors_of(arguments, size)
