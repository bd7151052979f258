"""Tests of the original files of EVA-02, rope-vit, DeiT III and ViT-5. The round trips are in test_layout."""

import numpy as np
import pytest

from tests.importers import originals
from tests.importers.test_layout import ERF, VIT5, example
from vit_jax import importers
from vit_jax.importers import layout


def same(found, description, arrays):
  """Checks that the recognised file has this description and exactly these parameters."""
  back = found.read()
  assert originals.shown(found.description) == originals.shown(description)
  assert back.keys() == arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_eva02_files_give_the_same_parameters_as_timm_files(normed, masked):
  description, arrays, tensors = originals.eva02(normed, masked)
  found = importers.recognise(tensors, {"heads": 2})
  assert found.layout.name == "eva02"
  same(found, description, arrays)
  assert bool(found.notes) == masked


def test_rope_vit_files_give_the_same_parameters_as_timm_files():
  description, arrays, tensors = originals.rope_vit()
  found = importers.recognise(tensors, {"heads": 2})
  assert found.layout.name == "rope_vit"
  same(found, description, arrays)
  again = layout.write(found.layout, found.read(), found.description)
  assert {name: array.shape for name, array in again.items()} == {
    name: array.shape for name, array in tensors.items() if "freqs_t" not in name
  }


@pytest.mark.parametrize(
  ("name", "which", "rotary", "noted"),
  [
    ("deit_3_small_224_1k.pth", "deit3", "none", False),
    ("weights.pth", "deit3", "none", True),
    ("vit_small_patch16_rope_ape_224.safetensors", "timm", "axial", False),
    ("rope_axial_ape_deit_small_patch16_LS", "timm", "axial", False),
  ],
)
def test_file_name_distinguishes_deit3_from_rope_vit_with_a_table(name, which, rotary, noted):
  arguments = ERF | {"layer_scale": 1e-4, "position": "learned_patches"}
  written, description, arrays = example("deit3", "ViT-S/8", arguments, 32, 3)
  tensors = layout.write(written, arrays, description)
  assert {"blocks.0.gamma_1", "blocks.1.gamma_2"} <= tensors.keys() and tensors["pos_embed"].shape == (1, 16, 64)
  found = importers.recognise(tensors, {"heads": 2, "name": name})
  assert (found.layout.name, found.description.settings()["position.rotary"].name) == (which, rotary)
  assert any("rope-vit with fixed frequencies" in note for note in found.notes) == noted


def test_vit5_files_have_both_frequency_tables_in_every_block():
  written, description, arrays = example("vit5", "ViT-S/8", VIT5 | {"qkv_bias": "none", "qk_norm": "rms"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  for name, theta in (("rope", 10_000), ("rope_reg", 100)):
    found = tensors[f"blocks.1.attn.{name}.freqs"]
    np.testing.assert_allclose(found, theta ** (-np.arange(0, 16, 2) / 16), rtol=1e-6)
  # In ViT-5, the channels of a pair are neighbours. In vit_jax they are half a head apart.
  norm = tensors["blocks.0.attn.q_norm.weight"]
  np.testing.assert_array_equal(arrays["blocks/0/attention/query_norm/scale"], np.concatenate([norm[::2], norm[1::2]]))
