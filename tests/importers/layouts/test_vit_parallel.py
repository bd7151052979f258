"""Tests of files with parallel blocks. The round trip of the table is in test_layout."""

import numpy as np

from tests.importers.test_layout import ERF, example
from vit_jax import importers
from vit_jax.importers import layout


def test_input_matrix_contains_the_mlp_then_query_key_and_value():
  arguments = ERF | {"norm_order": "parallel", "layer_scale": 1e-4}
  written, description, arrays = example("timm", "ViT-S/8", arguments, 32, 3)
  tensors = layout.write(written, arrays, description)
  whole = tensors["blocks.1.in_proj.weight"]
  assert whole.shape == (96 + 3 * 64, 64)
  np.testing.assert_array_equal(whole[:96], arrays["blocks/1/mlp/up/kernel"].T)
  np.testing.assert_array_equal(whole[96 : 96 + 64], arrays["blocks/1/attention/query/kernel"].reshape(64, 64).T)
  assert tensors["blocks.1.in_proj.bias"].shape == (288,)
  assert {"blocks.0.ls.gamma", "blocks.0.attn_out_proj.bias", "blocks.0.mlp_out_proj.weight"} <= tensors.keys()
  found = importers.recognise(tensors, {"heads": 2})
  assert found.description.settings()["norm.order"] == "parallel"
