"""Tests of timm's ViT files: position tables, registers and hints. The round trip of the table is in test_layout."""

import numpy as np
import pytest

from tests import modules
from tests.importers.test_layout import SMALL, example
from vit_jax import importers, models
from vit_jax.importers import layout
from vit_jax.schema import ConfigError


def test_deit3_position_table_has_rows_for_patches_only():
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"layer_scale": 1e-4}, 32, 3)
  arrays["position/table"][0] = 0
  tensors = layout.write(written, arrays, description)
  assert tensors["pos_embed"].shape == (1, 16, 64)
  found = importers.recognise(tensors, {"heads": 2})
  assert found.description.settings()["position"] == "learned_patches"
  np.testing.assert_array_equal(found.read()["position/table"], arrays["position/table"][1:])
  assert found.description.arguments()["layer_scale"] > 0
  # A file that vit_jax exports states that its model has a row for the class token.
  ours = importers.recognise(tensors, {"description": description.to_json()})
  assert ours.description == description
  np.testing.assert_array_equal(ours.read()["position/table"], arrays["position/table"])


@pytest.mark.parametrize(("size", "pool"), [((24, 40), "cls"), ((32, 48), "cls"), ((16, 56), "distilled")])
def test_image_size_distinguishes_rectangular_grids_from_squares(size, pool):
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"pool": pool}, size, 3)
  found = importers.recognise(layout.write(written, arrays, description), {"heads": 2, "image_size": list(size)})
  assert found.description.image_size == size
  np.testing.assert_array_equal(found.read()["position/table"], arrays["position/table"])


@pytest.mark.parametrize(
  ("name", "gelu"),
  [
    ("vit_so400m_patch16_siglip_256.safetensors", "tanh"),
    ("timm/vit_giantopt_patch16_siglip_gap_384", "tanh"),
    ("vit_base_patch16_siglip_224.safetensors", "erf"),
    ("model.safetensors", "erf"),
  ],
)
def test_timm_names_with_the_tanh_gelu_are_known(name, gelu):
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"pool": "map"}, 32, 0)
  found = importers.recognise(layout.write(written, arrays, description), {"heads": 2, "name": name})
  assert found.description.arguments()["gelu"] == gelu


@pytest.mark.parametrize(("hint", "heads"), [({}, 1), ({"heads": 4}, 4)])
def test_packed_heads_have_width_64_without_a_hint(hint, heads):
  written, description, arrays = example("timm", "ViT-S/8", SMALL, 32, 3)
  found = importers.recognise(layout.write(written, arrays, description), hint)
  assert layout.compute_shapes(found.description)["blocks/0/attention/query/kernel"] == (64, heads, 64 // heads)


REGISTERS = SMALL | {"gelu": "erf", "layer_scale": 1e-4, "registers": 3}


@pytest.mark.heavy
@pytest.mark.parametrize("pool", ["cls", "gap"])
def test_files_with_registers_have_position_rows_for_patches_only(pool):
  written, description, arrays = example("timm", "ViT-S/8", REGISTERS | {"pool": pool}, 32, 3)
  tensors = layout.write(written, arrays, description)
  np.testing.assert_array_equal(tensors["reg_token"], arrays["registers"][None])
  assert tensors["pos_embed"].shape == (1, 16, 64)
  found = importers.recognise(tensors, {"heads": 2})
  assert (found.description.arguments()["registers"], found.description.arguments()["head"].name) == (3, pool)
  back = found.read()
  assert found.description.settings()["position"] == "learned_patches"
  if pool == "cls":  # the token includes its position
    np.testing.assert_array_equal(back["cls"], arrays["cls"] + arrays["position/table"][0])
    np.testing.assert_array_equal(back["position/table"], arrays["position/table"][1:])
  images = modules.images(32, 2)
  both = ((description, arrays), (found.description, back))
  logits = [np.asarray(models.make_functional(described).create(values)(images)) for described, values in both]
  np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


def test_registers_may_have_positions():
  # timm's table has rows for registers unless `no_embed_class` is set.
  written, description, arrays = example("timm", "ViT-S/8", REGISTERS | {"position": "learned_all"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  assert tensors["pos_embed"].shape == (1, 1 + 3 + 16, 64)
  found = importers.recognise(tensors, {"heads": 2})
  assert found.description.settings()["position"] == "learned_all"
  np.testing.assert_array_equal(found.read()["position/table"], arrays["position/table"])


@pytest.mark.parametrize("name", ["vit_jax", "big_vision", "hf"])
def test_other_layouts_cannot_store_registers(name):
  written, description, arrays = example(name, "ViT-S/8", SMALL | {"registers": 2}, 32, 3)
  with pytest.raises(ConfigError, match=f"'{name}' cannot store registers"):
    layout.write(written, arrays, description)
