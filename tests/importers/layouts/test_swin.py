"""Tests of Swin files with timm's and Microsoft's names."""

import numpy as np
import pytest

from vit_jax import models, schema
from vit_jax.importers import layout
from vit_jax.importers.layouts import swin as importer
from vit_jax.models.published import swin as published

TINY = "swin_tiny_patch4_window7_224"


SIZE = {"image_size": 24, "classes": 5, "width": 8, "depths": (2, 2), "heads": (2, 4), "window": 3}


LAYOUT = importer.LAYOUTS[0]


def make_tensors():
  """Returns tensors by timm's names, parameters by path, and the description of a small model."""
  arguments = {key: SIZE[key] for key in ("width", "depths", "heads", "window")}
  description = models.Description(schema.Choice(TINY, arguments), 24, 5)
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(shape, np.float32) for path, shape in layout.compute_shapes(description).items()}
  return layout.write(LAYOUT, arrays, description), arrays, description


def test_written_tensors_are_described_and_read_back():
  tensors, arrays, description = make_tensors()
  assert LAYOUT.recognises(tensors)
  # Without a hint, the map of the last stage is assumed to be one window.
  assert LAYOUT.describe(tensors, {}) == description
  assert LAYOUT.describe(tensors, {"image_size": 48}).image_size == 48
  found = layout.read(LAYOUT, tensors, description)
  assert set(found) == set(arrays) and all(np.array_equal(found[path], arrays[path]) for path in arrays)


def test_files_with_microsofts_names_and_buffers_give_the_same_model():
  tensors, arrays, description = make_tensors()
  theirs = {name.replace("head.fc", "head").replace("layers.1.down", "layers.0.down"): t for name, t in tensors.items()}
  assert "head.weight" in theirs and "layers.0.downsample.reduction.weight" in theirs
  theirs["layers.0.blocks.1.attn_mask"] = np.zeros((4, 9, 9), np.float32)
  theirs["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((9, 9), np.int64)
  assert LAYOUT.recognises(theirs)
  named = LAYOUT.canonical(theirs, {})
  assert LAYOUT.describe(named, {}) == description
  found = layout.read(LAYOUT, named, description)
  assert all(np.array_equal(found[path], arrays[path]) for path in arrays)


def test_packed_rows_contain_query_key_and_value_by_head():
  tensors, arrays, _ = make_tensors()
  packed = tensors["layers.1.blocks.0.attn.qkv.weight"]
  for i, part in enumerate(("query", "key", "value")):
    kernel = arrays[f"stages/1/blocks/0/attention/{part}/kernel"]
    np.testing.assert_array_equal(packed[16 * i : 16 * (i + 1)].T.reshape(16, 4, 4), kernel)


@pytest.mark.parametrize("name", published.VARIANTS)
def test_published_sizes_are_recognised_without_overrides(name):
  size, window, image_size = published.VARIANTS[name]
  width, depths, heads = published.SIZES[size]
  tensors = {"patch_embed.proj.weight": np.empty((width, 3, 4, 4))}
  for stage, depth in enumerate(depths):
    for block in range(depth):
      table = np.empty(((2 * window - 1) ** 2, heads[stage]))
      tensors[f"layers.{stage}.blocks.{block}.attn.relative_position_bias_table"] = table
  assert LAYOUT.describe(tensors, {}) == models.Description(schema.Choice(name, {}), image_size, 0, 3)
