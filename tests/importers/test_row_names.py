"""Tests of vit_jax/importers/row_names.py: tensor names of layouts, and tensors with a wrong number of dimensions."""

import numpy as np
import pytest

from tests.importers.test_layout import SMALL, example
from vit_jax import importers
from vit_jax.importers import layout, row_names
from vit_jax.schema import ConfigError


@pytest.mark.parametrize("name", ["timm", "hf", "vit_jax", "big_vision"])
def test_pattern_matches_every_name_in_the_group_of_its_row(name):
  written, _, arrays = example(name, "ViT-S/8", SMALL, 32, 3)
  named = row_names.compile_pattern(written)
  for entry in layout.list_entries(written, {path: array.shape for path, array in arrays.items()}):
    row = written.rows[named.fullmatch(entry.name).lastindex - 1]
    assert len(row.pattern.split("->")[0].replace("(t f)", "tf").split()) >= len(entry.shape)
  assert not named.fullmatch("blocks.0.attn.qkv.weight.more")


@pytest.mark.parametrize(
  ("name", "tensor", "message"),
  [
    (
      "timm",
      "pos_embed",
      r"tensor pos_embed has the shape \(17, 64\); files of timm have 3 dimensions there: \(1, n, d\)",
    ),
    ("timm", "cls_token", r"tensor cls_token has the shape \(1, 64\); files of timm have 3 dimensions"),
    ("timm", "patch_embed.proj.weight", r"patch_embed\.proj\.weight has the shape \(3, 8, 8\)"),
    ("timm", "head.bias", r"head\.bias has the shape \(\)"),
    ("vit_jax", "Transformer/posembed_input/pos_embedding", r"pos_embedding has the shape \(17, 64\)"),
    ("hf", "vit.embeddings.position_embeddings", r"position_embeddings has the shape \(17, 64\)"),
  ],
)
def test_tensor_with_too_few_dimensions_is_an_error_with_its_shape(name, tensor, message):
  written, description, arrays = example(name, "ViT-S/8", SMALL, 32, 3)
  tensors = layout.write(written, arrays, description)
  assert importers.recognise(tensors, {"heads": 2}).description.image_size == 32
  tensors[tensor] = tensors[tensor][0]
  with pytest.raises(ConfigError, match=message):
    importers.recognise(tensors, {"heads": 2})


def test_position_table_with_an_extra_dimension_is_an_error():
  written, description, arrays = example("timm", "ViT-S/8", SMALL, 32, 3)
  tensors = layout.write(written, arrays, description)
  tensors["pos_embed"] = np.asarray(tensors["pos_embed"])[None]
  with pytest.raises(ConfigError, match=r"pos_embed has the shape \(1, 1, 17, 64\)"):
    importers.recognise(tensors, {"heads": 2})
