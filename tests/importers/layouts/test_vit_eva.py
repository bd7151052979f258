"""Tests of files of timm's EVA class: rotary positions and norms. The round trip of the table is in test_layout."""

import numpy as np
import pytest

from tests.importers.test_layout import DINOV3, EVA02, NORMED, TURNED, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.models.published import modern

GAP = {"pool": "gap", "class_token": True}


@pytest.mark.parametrize(
  ("arguments", "rotary"),
  [
    (TURNED | {"position": "none"}, modern.ROPE_VIT),
    (TURNED | {"position": "none", "rotary": modern.MIXED}, modern.MIXED),
    (DINOV3 | GAP | {"qkv_bias": "query_value"}, modern.DINOV3),
    (DINOV3 | GAP | {"qkv_bias": "none"}, modern.DINOV3),
    (EVA02 | NORMED, modern.EVA02),
    (EVA02 | {"mlp": "swiglu"}, modern.EVA02),
    (EVA02 | {"layer_scale": 1e-4, "registers": 2, "position": "none", "pool": "gap"}, modern.EVA02),
    (EVA02 | {"rotary": modern.Choice("none")}, modern.Choice("none")),
  ],
)
def test_rotary_positions_are_inferred_from_the_tensors(arguments, rotary):
  written, description, arrays = example("timm", "ViT-S/8", arguments, 32, 0)
  found = importers.recognise(layout.write(written, arrays, description), {"heads": 2, "image_size": 32})
  there = found.description.settings()["position.rotary"]
  assert there.name == rotary.name and there.args.items() >= rotary.args.items()


def test_neighbouring_channel_pairs_are_split_by_half_a_head():
  written, description, arrays = example("timm", "ViT-S/8", TURNED | {"position": "none"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  theirs = tensors["blocks.0.attn.qkv.weight"].reshape(3, 2, 32, 64)  # query, key, value; heads; channels; inputs
  for i, part in enumerate(("query", "key", "value")):
    ours = arrays[f"blocks/0/attention/{part}/kernel"]
    np.testing.assert_array_equal(theirs[i, 1, 6], ours[:, 1, 3])
    np.testing.assert_array_equal(theirs[i, 1, 7], ours[:, 1, 16 + 3])
  np.testing.assert_array_equal(
    tensors["blocks.0.attn.proj.weight"][:, 32 + 7], arrays["blocks/0/attention/out/kernel"][1, 16 + 3]
  )


def test_frequencies_of_all_layers_are_stored_in_one_tensor():
  written, description, arrays = example("timm", "ViT-S/8", TURNED | {"rotary": modern.MIXED}, 32, 3)
  whole = layout.write(written, arrays, description)["rope.freqs"]
  assert whole.shape == (2, 2, 2, 16)
  np.testing.assert_array_equal(whole[:, 1], arrays["blocks/1/attention/frequencies"])


@pytest.mark.parametrize(("name", "order"), [("eva02_enormous_patch14_clip_224", "post"), ("model.safetensors", "pre")])
def test_order_of_norms_is_inferred_from_the_model_name(name, order):
  arguments = EVA02 | {"rotary": modern.Choice("none")}
  written, description, arrays = example("timm", "ViT-S/8", arguments, 32, 3)
  found = importers.recognise(layout.write(written, arrays, description), {"heads": 2, "name": name})
  assert found.description.settings()["norm.order"] == order
