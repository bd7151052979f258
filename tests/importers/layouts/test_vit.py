"""Tests that infer a Vision Transformer from shapes and hints, independent of tensor names."""

import numpy as np
import pytest

from vit_jax.importers.layouts import vit
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError


@pytest.mark.parametrize(
  ("rows", "image_size", "usually", "counted"),
  [
    (17, None, False, True),  # 16 is a square number
    (16, None, True, False),
    (15, None, True, True),  # neither 14 nor 15 is a square number
    (15, None, False, False),
    (16, (24, 40), False, True),  # 15 patches of 8 pixels
    (16, (32, 32), True, False),
    (17, (64, 64), False, True),  # a size that fits neither way is ignored
  ],
)
def test_class_token_row_is_detected_by_image_size_then_squares(rows, image_size, usually, counted):
  table = np.zeros((1, rows, 4), np.float32)
  assert vit.has_token_rows(table, 1, 8, {"image_size": image_size}, usually) == counted
  tensors = vit.add_token_rows(
    {"table": table, "cls": 0}, "table", ("cls", "dist"), 8, {"image_size": image_size}, usually
  )
  assert tensors["table"].shape == (1, rows + (not counted), 4)


def test_folded_token_gives_the_blocks_the_same_input():
  rng = np.random.default_rng(0)
  token, table = rng.standard_normal((1, 1, 4)), rng.standard_normal((1, 6, 4))
  patches = rng.standard_normal((1, 5, 4))
  folded, rest = vit.fold_token(token, table)
  once = np.concatenate([token, patches], axis=1) + table
  np.testing.assert_array_equal(np.concatenate([folded, patches + rest], axis=1), once)


@pytest.mark.parametrize(
  ("hints", "heads"),
  [({}, 6), ({"heads": 8}, 8), ({"heads": 8, "width": 384}, 8), ({"heads": 8, "width": 192}, 6)],
)
def test_heads_come_from_a_matching_hint_or_the_published_size(hints, heads):
  assert vit.find_heads(384, 12, 1536, hints) == heads


def test_unpublished_width_has_heads_of_width_64():
  assert vit.find_heads(320, 2, 7, {}) == 5


def test_description_omits_values_that_the_name_implies():
  table, bias = np.zeros((1, 197, 384)), np.zeros(1000)
  common = {"table": table, "classes": bias, "hints": {}, "leading": 1}
  described = vit.describe_vit((16, 16, 3, 384), (384, 12, 6, 1536), **common)
  assert described == Description(Choice("ViT-S/16", {}), 224, 1000, 3)
  other = vit.describe_vit(
    (16, 16, 3, 384), (384, 11, 6, 1536), **common, gelu="erf", settings={"registers": 4, "layer_scale": None}
  )
  assert other.model == Choice("ViT-S/16", {"gelu": "erf", "registers": 4, "depth": 11})


def test_table_that_is_not_a_square_needs_the_image_size():
  arguments = {"classes": None, "leading": 1}
  shape = (16, 16, 3, 384), (384, 12, 6, 1536), np.zeros((1, 7, 384))
  with pytest.raises(ConfigError, match="6 patches, which do not form a square"):
    vit.describe_vit(*shape, hints={}, **arguments)
  assert vit.describe_vit(*shape, hints={"image_size": (32, 48)}, **arguments).image_size == (32, 48)
