"""Tests of Hugging Face's Swin files: names, configs and errors. The round trip of the table is in test_layout."""

import json

import numpy as np
import pytest
import safetensors.numpy

from tests.importers.test_layout import SWIN, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.schema import ConfigError

TINY = "swin_tiny_patch4_window7_224"


def tensors_of(classes=3):
  written, description, arrays = example("hf", TINY, SWIN, 56, classes)
  return layout.write(written, arrays, description), description, arrays


def same(tensors, arrays):
  found = importers.recognise(tensors, {"image_size": 56})
  back = found.read()
  assert found.layout.name == "hf"
  return back.keys() == arrays.keys() and all(np.array_equal(back[path], arrays[path]) for path in arrays)


def test_downsampling_belongs_to_the_previous_stage():
  tensors, _, arrays = tensors_of()
  reduction = tensors["swin.encoder.layers.0.downsample.reduction.weight"]
  np.testing.assert_array_equal(reduction.T, arrays["stages/1/downsample/reduction/kernel"])
  assert not any(".layers.1.downsample." in name for name in tensors)


def test_index_tensors_of_older_files_and_other_prefixes_are_accepted():
  tensors, _, arrays = tensors_of()
  index = {"swin.encoder.layers.0.blocks.0.attention.self.relative_position_index": np.zeros((49, 49), np.int64)}
  assert same(tensors | index, arrays)
  tensors, _, arrays = tensors_of(0)
  assert same({name.removeprefix("swin."): tensor for name, tensor in tensors.items()}, arrays)
  assert same({f"model.{name}": tensor for name, tensor in tensors.items()}, arrays)


def write_folder(folder, **changes):
  tensors, description, _ = tensors_of()
  written = importers.find_layout(description, "hf")
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(written.create_config(description) | changes))
  return folder


def test_config_gives_the_image_size_and_the_class_names(tmp_path):
  found = importers.inspect(write_folder(tmp_path, id2label={"0": "cat", "1": "dog", "2": "owl"}, label2id={}))
  assert found.description.image_size == 56 and found.image_metadata.labels == ("cat", "dog", "owl")


@pytest.mark.parametrize(
  ("key", "value"),
  [
    ("hidden_act", "relu"),
    ("layer_norm_eps", 1e-6),
    ("mlp_ratio", 3.0),
    ("qkv_bias", False),
    ("use_absolute_embeddings", True),
    ("patch_size", 2),
    ("image_size", "56"),
  ],
)
def test_config_of_another_model_is_an_error(tmp_path, key, value):
  with pytest.raises(ConfigError, match=rf"config\.json: {key} is "):
    importers.inspect(write_folder(tmp_path, **{key: value}))


def test_swin_has_the_layouts_timm_and_hf():
  _, description, _ = tensors_of()
  assert {one.name for one in importers.find_layouts(description)} == {"timm", "hf"}
