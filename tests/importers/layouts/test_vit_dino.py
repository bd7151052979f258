"""Tests of the original files of DINOv2 and DINOv3. The round trip of the tables is in test_layout."""

import numpy as np
import pytest

from tests import modules
from tests.importers import originals
from vit_jax import importers, models
from vit_jax.importers import layout
from vit_jax.schema import Choice, ConfigError


def outputs(description, arrays):
  return np.asarray(models.make_functional(description).create(arrays)(modules.images(32, 2)))


@pytest.mark.heavy
@pytest.mark.parametrize(("registers", "mlp", "chunk"), [(0, "gelu", None), (4, "swiglu", None), (4, "gelu", 1)])
def test_dinov2_files_give_the_same_features_as_timm_files(registers, mlp, chunk):
  description, arrays, tensors = originals.dinov2(registers, mlp, chunk)
  found = importers.recognise(tensors, {"heads": 2})
  assert (found.layout.name, found.description.settings()["position"]) == ("dinov2", "learned")
  assert found.notes == ["used only in training: mask_token"]
  back = found.read()
  np.testing.assert_allclose(outputs(found.description, back), outputs(description, arrays), rtol=2e-4, atol=2e-5)
  again = importers.export_tensors(back, found.description, "dinov2")
  assert {name.replace("blocks.0.0.", "blocks.0.").replace("blocks.1.1.", "blocks.1.") for name in tensors} == set(
    again
  )
  assert not np.any(again["mask_token"])


@pytest.mark.heavy
@pytest.mark.parametrize(("qkv_bias", "mlp"), [("query_value", "gelu"), ("none", "swiglu")])
def test_dinov3_files_give_the_same_parameters_as_timm_files(qkv_bias, mlp):
  description, arrays, tensors = originals.dinov3(qkv_bias, mlp)
  found = importers.recognise(tensors | {"local_cls_norm.weight": np.ones(64, np.float32)}, {"heads": 2})
  assert (found.layout.name, found.description.settings()["norm.eps"]) == ("dinov3", 1e-5)
  assert "mask_token, local_cls_norm.weight" in found.notes[0]
  back = found.read()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)
  assert originals.shown(found.description) == originals.shown(description)
  again = importers.export_tensors(back, found.description, "dinov3")
  assert again.keys() == tensors.keys()
  np.testing.assert_allclose(again["rope_embed.periods"], 100 ** (np.arange(8) / 8), rtol=1e-6)
  if qkv_bias != "none":
    bias, mask = again["blocks.1.attn.qkv.bias"], again["blocks.1.attn.qkv.bias_mask"]
    np.testing.assert_array_equal(bias * mask, tensors["blocks.1.attn.qkv.bias"] * mask)
    assert np.array_equal(mask, tensors["blocks.1.attn.qkv.bias_mask"]) and not np.any(bias[64:128])


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2"])
def test_published_file_gets_the_name_of_the_model_list(name):
  description = models.Description(Choice(name, {"position": "learned"}), 518, 0).bind()
  shapes = layout.compute_shapes(description)
  arrays = {path: np.broadcast_to(np.float32(0), shape) for path, shape in shapes.items()}
  found = importers.recognise(importers.export_tensors(arrays, description, "dinov2"), {})
  assert found.description.model.name == name
  assert found.description.settings()["registers"] == description.settings()["registers"]


@pytest.mark.parametrize("registers", [0, 4])
def test_exported_file_is_read_back_bit_by_bit(registers):
  arguments = originals.ERF | {"layer_scale": 1e-4, "registers": registers, "position": "learned_patches"}
  description, arrays, tensors = originals.timm(arguments, 0)
  theirs = importers.export_tensors(arrays, description, "dinov2")
  found = importers.recognise(theirs, {"description": description.to_json()})
  assert found.description.settings()["position"] == "learned"
  again = importers.export_tensors(found.read(), found.description, "timm")
  assert all(np.array_equal(again[name], array) for name, array in tensors.items())


def test_mask_that_keeps_the_bias_of_keys_is_an_error():
  _, _, tensors = originals.dinov3("query_value", "gelu")
  tensors["blocks.0.attn.qkv.bias_mask"] = np.ones(192, np.float32)
  with pytest.raises(ConfigError, match=r"blocks.0.attn.qkv.bias: expected a mask of zeros and ones"):
    importers.recognise(tensors, {"heads": 2}).read()


def test_models_that_dinov3_cannot_express_are_errors():
  description, arrays, _ = originals.timm(originals.DINOV3 | {"qkv_bias": "none"}, 3)
  with pytest.raises(ConfigError, match=r"'dinov3' cannot store head/"):
    importers.export_tensors(arrays, description, "dinov3")
  description, arrays, _ = originals.timm(originals.TURNED | {"position": "none"}, 0)
  with pytest.raises(ConfigError, match=r"'dinov3' cannot store ViT-S/8.* Allowed: .*timm"):
    importers.export_tensors(arrays, description, "dinov3")
