"""EVA-02, rope-vit, DeiT III and ViT-5, whose round trip is in test_layout."""

import numpy as np
import pytest

from tests.importers import originals
from tests.importers.test_layout import ERF, VIT5, example
from vit_jax import importers
from vit_jax.importers import layout


def same(found, description, arrays):
  """Whether what was recognised is the described model with these parameters, number by number."""
  back = found.read()
  assert originals.shown(found.description) == originals.shown(description)
  assert back.keys() == arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_files_of_eva02_hold_the_parameters_of_timms(normed, masked):
  description, arrays, tensors = originals.eva02(normed, masked)
  found = importers.recognise(tensors, {"heads": 2})
  assert found.layout.name == "eva02"
  same(found, description, arrays)
  assert bool(found.notes) == masked


def test_files_of_rope_vit_hold_the_parameters_of_timms():
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
def test_deit3_and_rope_vit_with_a_table_are_told_by_the_name_of_the_file(name, which, rotary, noted):
  arguments = ERF | {"layer_scale": 1e-4, "position": "learned_patches"}
  written, description, arrays = example("deit3", "ViT-S/8", arguments, 32, 3)
  tensors = layout.write(written, arrays, description)
  assert {"blocks.0.gamma_1", "blocks.1.gamma_2"} <= tensors.keys() and tensors["pos_embed"].shape == (1, 16, 64)
  found = importers.recognise(tensors, {"heads": 2, "name": name})
  assert (found.layout.name, found.description.settings()["position.rotary"].name) == (which, rotary)
  assert any("rope-vit with fixed frequencies" in note for note in found.notes) == noted


def test_files_of_vit5_have_the_frequencies_of_both_temperatures_in_every_block():
  written, description, arrays = example("vit5", "ViT-S/8", VIT5 | {"qkv_bias": "none", "qk_norm": "rms"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  for name, theta in (("rope", 10_000), ("rope_reg", 100)):
    found = tensors[f"blocks.1.attn.{name}.freqs"]
    np.testing.assert_allclose(found, theta ** (-np.arange(0, 16, 2) / 16), rtol=1e-6)
  # Their pairs of channels are neighbours, ours half a head apart.
  norm = tensors["blocks.0.attn.q_norm.weight"]
  np.testing.assert_array_equal(arrays["blocks/0/attention/query_norm/scale"], np.concatenate([norm[::2], norm[1::2]]))
