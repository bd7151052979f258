"""Tests of the values that are read from JSON files next to weights. Rejected files are in test_hostile."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy

from tests import hostile, runs
from tests.image_files import encode, picture
from vit_jax import convert, evaluate, importers, predict
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError


@pytest.mark.parametrize(
  ("message", "gelu"),
  [
    *((name, "erf") for name in ("gelu", "gelu_python")),
    *((name, "tanh") for name in ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate")),
  ],
)
def test_supported_activations_of_transformers_are_read(tmp_path, message, gelu):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(
    json.dumps({"hidden_act": message, "num_attention_heads": 2, "hidden_size": 64})
  )
  assert importers.inspect(tmp_path).description.arguments()["gelu"] == gelu


def test_heads_of_config_json_that_contradict_the_run_are_an_error(tmp_path):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
  have = importers.inspect(tmp_path).description
  assert importers.load_fitted(str(tmp_path), have)[0]
  want = have.replace(model=type(have.model)(have.model.name, {**have.model.args, "heads": 2}))
  with pytest.raises(ConfigError, match=r"the file contains ViT-.* heads=4.*, but this model is ViT-") as error:
    importers.load_fitted(str(tmp_path), want)
  assert "config.json" not in str(error.value) and "--config.model.heads=4" in str(error.value)


def test_run_of_another_width_is_an_error_about_the_model(tmp_path):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "hidden_size": 64}))
  want = Description(Choice("ViT-Ti/16"), 32, 3)
  with pytest.raises(ConfigError, match=r"the file contains ViT-.*, but this model is ViT-Ti/16") as error:
    importers.load_fitted(str(tmp_path), want)
  assert "config.json" not in str(error.value)


def test_another_normalisation_is_noted_with_its_flag(tmp_path):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "preprocessor_config.json").write_text(
    json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.5] * 3})
  )
  recognised = importers.inspect(tmp_path)
  assert recognised.image_notes() == ["its images were normalised with --config.data.mean='(0.4,0.5,0.6)'"]
  assert recognised.image_notes()[0] in importers.load_fitted(str(tmp_path), recognised.description)[1]


@pytest.mark.parametrize(
  ("name", "values", "message"),
  [
    ("config.json", {"layer_norm_eps": 10**400}, "layer_norm_eps is 1000"),
    ("preprocessor_config.json", {"image_mean": [10**400] * 3}, "image_mean is [1000"),
    ("preprocessor_config.json", {"resample": [3], "size": 224}, "resample is [3]"),
  ],
)
def test_invalid_values_next_to_weights_are_errors_with_the_file(tmp_path, name, values, message):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / name).write_text(json.dumps(values))
  with pytest.raises(ConfigError) as error:
    importers.inspect(tmp_path)
  assert str(tmp_path / name) in str(error.value) and message in str(error.value)


def test_true_statements_of_config_json_are_accepted(tmp_path):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  true = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "patch_size": [8, 8],
  }
  true |= {"num_channels": 3, "image_size": 32, "qkv_bias": True, "layer_norm_eps": 1e-6, "pooler_act": "tanh"}
  true |= {"hidden_dropout_prob": 0.5, "global_pool": "token", "model_args": {"img_size": 32, "act_layer": "gelu"}}
  (tmp_path / "config.json").write_text(json.dumps(true))
  assert importers.inspect(tmp_path).description.settings()["norm.eps"] == 1e-6


@pytest.mark.parametrize("leads", ["../blobs/gone", "config.json"])
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.json"])
def test_broken_link_next_to_weights_is_an_error(tmp_path, name, leads):
  weights = tmp_path / ("model.npz" if name == "model.json" else "model.safetensors")
  if name == "model.json":
    np.savez(weights, **hostile.good("vit_jax"))
  else:
    safetensors.numpy.save_file(hostile.good("hf"), weights)
  importers.inspect(weights)
  (tmp_path / name).symlink_to(leads.replace("config.json", name))
  with pytest.raises(ConfigError, match=f"{name} is a link to .*, which does not exist"):
    importers.inspect(weights)


DAMAGED = {
  "truncated": b'{"vit_jax": {"use": {"mean": [0.1',
  "duplicate keys": b'{"vit_jax": {}, "vit_jax": {}}',
  "array": b"[]",
  "empty": b"",
  "nested": b'{"vit_jax": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
  "binary": b"\xff\xfe\x00",
  "directory": None,
  "fifo": None,
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("verb", ["convert", "predict", "evaluate"])
def test_damaged_json_next_to_an_npz_is_an_error_of_one_line(tmp_path, verb, name):
  np.savez(tmp_path / "model.npz", **hostile.good("vit_jax"))
  sidecar = tmp_path / "model.json"
  if name == "fifo":
    os.mkfifo(sidecar)
  elif name == "directory":
    sidecar.mkdir()
  else:
    sidecar.write_bytes(DAMAGED[name])
  prepare_dataset("digits")
  (tmp_path / "a.png").write_bytes(encode(picture(32, 32)))
  weights = tmp_path / "model.npz"
  module, words = {
    "convert": (convert, [str(weights), "--inspect"]),
    "predict": (predict, [f"--weights={weights}", str(tmp_path / "a.png")]),
    "evaluate": (evaluate, [f"--weights={weights}", f"--config={runs.ROOT / 'configs/finetune.py'}:digits"]),
  }[verb]
  with pytest.raises(ConfigError) as error:
    module.main(words)
  message = str(error.value)
  assert f"{sidecar} " in message and "Fix or remove it" in message and "\n" not in message


@pytest.mark.parametrize("values", [{}, {"name": "of another program"}])
def test_json_of_another_program_next_to_an_npz_is_ignored(tmp_path, values):
  np.savez(tmp_path / "model.npz", **hostile.good("vit_jax"))
  alone = importers.inspect(tmp_path / "model.npz")
  (tmp_path / "model.json").write_text(json.dumps(values))
  assert importers.inspect(tmp_path / "model.npz").description == alone.description
