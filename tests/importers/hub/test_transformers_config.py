"""Tests of reading and writing config.json of DINOv2, DINOv3 and SigLIP."""

import json

import pytest
import safetensors.numpy

from tests.importers.test_layout import GIANT, HF_DINOV3, MODERN, SIGLIP, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.importers.hub import metadata, transformers_config
from vit_jax.schema import Choice, ConfigError

MODELS = {
  "dinov2": (MODERN, 0),
  "dinov2_giant": (GIANT | {"qkv_bias": "none"}, 0),
  "dinov2_with_registers": (MODERN | {"registers": 3, "eps": 1e-5, "gelu": "tanh"}, 0),
  "dinov3": (HF_DINOV3 | {"eps": 1e-5}, 0),
  "dinov3_gated": (HF_DINOV3 | {"mlp": "swiglu", "qkv_bias": "none", "registers": 0}, 0),
  "dinov3_key": (HF_DINOV3 | {"qkv_bias": "all"}, 0),
  "siglip": (SIGLIP, 0),
  "siglip_gap": (SIGLIP | {"pool": "gap", "gelu": "erf"}, 0),
  "siglip_classes": (SIGLIP | {"pool": "gap"}, 3),
}


def folder(path, model, changes=None):
  """Writes a folder like Transformers with a changed config.json, and returns the original description."""
  arguments, classes = MODELS[model]
  written, description, arrays = example("hf", "ViT-S/8", arguments, 32, classes)
  safetensors.numpy.save_file(layout.write(written, arrays, description), path / "model.safetensors")
  config = transformers_config.create_config(description) | (changes or {})
  (path / "config.json").write_text(json.dumps(config))
  return description


@pytest.mark.parametrize("model", MODELS)
def test_written_config_contains_facts_that_tensors_do_not_show(tmp_path, model):
  wanted = folder(tmp_path, model).settings()
  found = importers.inspect(tmp_path).description
  words = ("head", "registers", "gelu", "norm.eps", "mlp", "attention.bias", "position.rotary", "position")
  assert {word: found.settings()[word] for word in words} == {word: wanted[word] for word in words}
  assert layout.compute_shapes(found)["blocks/0/attention/query/kernel"] == (64, 2, 32)


@pytest.mark.parametrize(
  ("model", "changes", "message"),
  [
    ("dinov2", {"qkv_bias": False}, "qkv_bias='none'"),
    ("dinov2", {"qkv_bias": "no"}, "qkv_bias is 'no'. Allowed: true or false"),
    ("dinov2", {"use_swiglu_ffn": True}, "hidden=88"),
    ("dinov2", {"mlp_ratio": 4}, "hidden=256"),
    ("dinov2", {"mlp_ratio": "4"}, "mlp_ratio is '4'"),
    ("dinov2_giant", {"mlp_ratio": 3}, "hidden=128"),
    ("dinov2", {"image_size": 64}, "image_size=64"),
    ("dinov2_with_registers", {"num_register_tokens": 4}, "registers=4"),
    ("dinov2_with_registers", {"num_register_tokens": -1}, "num_register_tokens is -1"),
    ("dinov3", {"intermediate_size": 96}, "hidden=96"),
    ("dinov3", {"key_bias": True}, "qkv_bias='all'"),
    ("dinov3", {"value_bias": False}, "query_bias=True, key_bias=False, value_bias=False is not supported"),
    ("dinov3", {"proj_bias": False}, "proj_bias is False. Supported: True"),
    ("dinov3", {"mlp_bias": False}, "mlp_bias is False. Supported: True"),
    ("dinov3", {"rope_theta": 0}, "rope_theta is 0. Allowed: a number above 0"),
    ("dinov3", {"pos_embed_rescale": 0.5}, "pos_embed_rescale is 0.5. Allowed: null, or a number from 1 to 1000"),
    (
      "dinov3",
      {"pos_embed_jitter": 1e9},
      "pos_embed_jitter is 1000000000.0. Allowed: null, or a number from 1 to 1000",
    ),
    ("dinov3", {"num_hidden_layers": 10**9}, "is 1000000000. Allowed: a whole number from 1 to 1048575"),
    ("dinov2", {"mlp_ratio": 1024}, "mlp_ratio is 1024, and hidden_size is 64. Allowed: mlp_ratio between 0 and 1024"),
    ("dinov3", {"hidden_act": "relu"}, "hidden_act is 'relu', which is not supported"),
    ("dinov3_gated", {"hidden_act": "gelu"}, "hidden_act is 'gelu' with use_gated_mlp. Supported: 'silu'"),
    ("siglip", {"patch_size": 16}, "patch=16"),
    ("siglip", {"num_attention_heads": None, "hidden_size": 32}, "width=32"),
    ("siglip_classes", {"vision_config": [1]}, "vision_config is [1]"),
    ("siglip_classes", {"vision_config": {"hidden_size": 128, "num_attention_heads": 2}}, "width=128"),
  ],
)
def test_config_of_another_model_is_an_error(tmp_path, model, changes, message):
  folder(tmp_path, model, changes)
  with pytest.raises(ConfigError) as error:
    importers.inspect(tmp_path)
  assert message in str(error.value) and "config.json" in str(error.value)


def test_coordinate_augmentation_is_read_from_the_config(tmp_path):
  changes = {"pos_embed_shift": 0.1, "pos_embed_jitter": 1.5, "pos_embed_rescale": 2, "rope_theta": 50}
  folder(tmp_path, "dinov3", changes)
  turning = importers.inspect(tmp_path).description.settings()["position.rotary"].args
  moved = {"temperature": 50.0, "normalise": "separate", "shift": 0.1, "jitter": 1.5, "rescale": 2.0}
  assert turning == moved
  folder(tmp_path, "dinov3", dict.fromkeys(changes, None) | {"rope_theta": 100.0})
  assert importers.inspect(tmp_path).description.settings()["position.rotary"].args["rescale"] == 1


@pytest.mark.parametrize(
  ("kind", "expected"),
  [
    ("dinov2", {"eps": 1e-6, "gelu": "erf", "heads": 12}),
    ("dinov2_with_registers", {"eps": 1e-6, "gelu": "erf", "heads": 12, "registers": 4}),
    (
      "dinov3_vit",
      {
        "eps": 1e-5,
        "gelu": "erf",
        "heads": 6,
        "registers": 0,
        "rotary": Choice("dinov3", {"temperature": 100.0, "rescale": 2.0}),
      },
    ),
    ("siglip_vision_model", {"eps": 1e-6, "gelu": "tanh", "heads": 12}),
    ("siglip", {"eps": 1e-6, "gelu": "tanh", "heads": 12}),
  ],
)
def test_missing_keys_have_the_defaults_of_transformers(tmp_path, kind, expected):
  (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
  found = metadata.read_hints(tmp_path / "model.safetensors")["stated"]
  assert expected.items() <= found.items()
