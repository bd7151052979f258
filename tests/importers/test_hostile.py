"""Weights that are damaged, lie or attack are one short error before anything is allocated or run."""

import json
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy

from tests import hostile
from vit_jax import importers
from vit_jax.schema import ConfigError


def refused(path):
  """The error that reading the file ends with, after little memory."""
  tracemalloc.start()
  try:
    with pytest.raises(ConfigError) as caught:
      importers.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**27
  finally:
    tracemalloc.stop()
  said = str(caught.value)
  assert len(said) < 2500 and said.count("\n") <= 3
  assert not set(said) & set("\x1b\x07")
  return said


@pytest.mark.parametrize("name", hostile.WEIGHTS)
def test_hostile_weights_are_one_error_that_names_the_file(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  if name.startswith("pth"):
    pytest.importorskip("torch")
  path = hostile.weights(tmp_path, name)
  assert path.name in refused(path)
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", hostile.HUB)
def test_a_config_of_another_code_that_means_another_model_is_refused(tmp_path, name):
  assert "config.json" in refused(hostile.hub(tmp_path, name))


@pytest.mark.parametrize(
  ("says", "gelu"),
  [
    *((name, "erf") for name in ("gelu", "gelu_python")),
    *((name, "tanh") for name in ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate")),
  ],
)
def test_the_activations_of_transformers_that_are_built_are_taken(tmp_path, says, gelu):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps({"hidden_act": says, "num_attention_heads": 2, "hidden_size": 64}))
  assert importers.inspect(tmp_path).description.arguments()["gelu"] == gelu


def test_heads_of_a_config_json_are_not_those_that_a_run_would_like(tmp_path):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
  have = importers.inspect(tmp_path).description
  assert importers.fitted(str(tmp_path), have)[0]
  want = have.replaced(model=type(have.model)(have.model.name, {**have.model.args, "heads": 2}))
  with pytest.raises(ConfigError, match="says heads=4"):
    importers.fitted(str(tmp_path), want)


def test_other_normalisations_of_the_images_are_said(tmp_path):
  safetensors.numpy.save_file(hostile.good("hf"), tmp_path / "model.safetensors")
  (tmp_path / "preprocessor_config.json").write_text(
    json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.5] * 3})
  )
  recognised = importers.inspect(tmp_path)
  assert recognised.notes == ["its images were normalised with --config.data.mean=(0.4,0.5,0.6)"]
  assert recognised.notes[0] in importers.fitted(str(tmp_path), recognised.description)[1]


def test_bfloat16_and_float16_are_read_as_before(tmp_path):
  arrays = {name: array.astype(np.float16) for name, array in hostile.good("vit_jax").items()}
  np.savez_compressed(tmp_path / "a.npz", **arrays)
  assert all(array.dtype == np.float32 for array in importers.load(tmp_path / "a.npz")[1].values())
