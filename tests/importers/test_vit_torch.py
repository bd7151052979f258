"""vit_jax/importers/vit_torch.py: timm and Hugging Face besides their rows, whose round trip is in test_layout."""

import numpy as np
import pytest

from tests.importers.test_layout import SMALL, example
from vit_jax import importers
from vit_jax.importers import layout


def test_deit_3_has_places_for_patches_only_here_and_there():
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"layer_scale": 1e-4}, 32, 3)
  arrays["position/table"][0] = 0
  tensors = layout.write(written, arrays, description)
  assert tensors["pos_embed"].shape == (1, 16, 64)
  found = importers.recognise(tensors, {"heads": 2})
  np.testing.assert_array_equal(found.read()["position/table"], arrays["position/table"])
  assert found.description.arguments()["layer_scale"] > 0


@pytest.mark.parametrize(("size", "head"), [((24, 40), "cls"), ((32, 48), "cls"), ((16, 56), "distilled")])
def test_oblong_grids_that_look_like_squares_are_told_by_the_image_size(size, head):
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"head": head}, size, 3)
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
def test_the_few_names_of_timm_with_the_tanh_form_are_known(name, gelu):
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"head": "map"}, 32, 0)
  found = importers.recognise(layout.write(written, arrays, description), {"heads": 2, "name": name})
  assert found.description.arguments()["gelu"] == gelu


@pytest.mark.parametrize(("hint", "heads"), [({}, 1), ({"heads": 4}, 4)])
def test_packed_heads_are_of_width_64_unless_said(hint, heads):
  written, description, arrays = example("timm", "ViT-S/8", SMALL, 32, 3)
  found = importers.recognise(layout.write(written, arrays, description), hint)
  assert layout.shapes(found.description)["blocks/0/attention/query/kernel"] == (64, heads, 64 // heads)


def test_hugging_face_files_without_a_head_have_no_prefix():
  written, description, arrays = example("hf", "ViT-S/8", SMALL | {"pre_logits": 64}, 32, 0)
  bare = {name.removeprefix("vit."): array for name, array in layout.write(written, arrays, description).items()}
  found = importers.recognise(bare, {"heads": 2})
  assert found.description.classes == 0 and found.description.arguments()["eps"] == 1e-12
  assert all(np.array_equal(found.read()[path], arrays[path]) for path in arrays)
