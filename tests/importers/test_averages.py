"""Tests that find averaged weights in a file. The choice between raw and averaged weights is in test_subtrees."""

import numpy as np
import pytest

from tests import small_weights
from tests.importers.test_subtrees import AVERAGE, HEAD, RAW, read, saved, under
from vit_jax import importers
from vit_jax.importers import averages
from vit_jax.importers.layout import Layout
from vit_jax.schema import ConfigError


def find_layouts(tensors) -> list[Layout]:
  return [layout for layout in importers.load_layouts() if layout.recognises(tensors)]


@pytest.mark.parametrize(
  ("root", "averaged"),
  [("ema.", True), ("state_dict_ema.", True), ("net/EMA_params/", True), ("schema.", False), ("teacher.", False)],
)
def test_words_in_a_prefix_mark_averaged_weights(root, averaged):
  assert averages.is_averaged(root, [root, ""]) == averaged
  assert averages.is_averaged("teacher.", ["teacher.", "student."])


def remove_tensors(*starts):
  return {name: tensor for name, tensor in AVERAGE.items() if not name.startswith(starts)}


PARTIAL = {
  "a block": (remove_tensors("blocks.1."), r"it lacks blocks\.1\.attn\.proj\.bias, .* \(12"),
  "biases": ({n: t for n, t in AVERAGE.items() if not n.endswith("qkv.bias")}, r"it lacks blocks\.0\.attn\.qkv\.bias"),
  "a norm": (remove_tensors("norm."), r"it lacks norm\.bias, norm\.weight"),
  "more": (AVERAGE | {"blocks.0.ls1.gamma": AVERAGE["norm.bias"]}, r"it also has blocks\.0\.ls1\.gamma"),
  "classes": (AVERAGE | {n: t[:2] for n, t in HEAD.items()}, r"head\.\w+ has the shape \(2,.*instead of \(7,"),
}


@pytest.mark.parametrize("partial", PARTIAL)
@pytest.mark.parametrize(
  ("raw", "averaged"), [("", "ema."), ("state_dict.", "state_dict_ema."), ("student.", "teacher.")]
)
def test_average_without_some_parameters_is_an_error_with_their_names(tmp_path, partial, raw, averaged):
  tensors, message = PARTIAL[partial]
  both = under(raw) | under(averaged, tensors)
  for ema in (None, True):
    with pytest.raises(ConfigError, match=rf"'{averaged}' cannot be the average of .*: {message}") as error:
      read(tmp_path, both, ema=ema)
    assert "Choose one: --no-ema for the raw weights, or --prefix=NAME" in str(error.value)
  assert read(tmp_path, both, ema=False)[0] == 0


def test_partial_average_selected_by_prefix_is_read_with_a_note(tmp_path):
  both = under("model.") | under("ema.", PARTIAL["a block"][0])
  weights = importers.read(saved(tmp_path, both), {"heads": 2}, prefix="ema")
  assert not any("blocks/1/" in path for path in weights.arrays)
  assert any("'ema.' cannot be the average of 'model.': it lacks blocks.1." in note for note in weights.notes)


@pytest.mark.parametrize("layout", ["timm", "hf", "vit_jax", "big_vision"])
def test_blocks_are_compared_in_every_layout(layout):
  description = small_weights.described(gelu="erf", eps=1e-6)
  raw = importers.export_tensors(small_weights.arrays(description), description, layout)
  assert averages.find_difference(raw, raw, find_layouts) is None
  fewer = {
    name: tensor for name, tensor in raw.items() if not {"1", "encoderblock_1"} & set(name.replace("/", ".").split("."))
  }
  assert len(fewer) < len(raw)
  assert "it lacks" in averages.find_difference(fewer, raw, find_layouts)
  headless = {name: tensor for name, tensor in raw.items() if not name.startswith(("head", "classifier"))}
  assert len(headless) == len(raw) - 2 and averages.find_difference(headless, raw, find_layouts) is None


def test_buffers_are_ignored_in_the_comparison():
  buffers = {"relative_position_index": np.zeros(3, np.int64), "extra.state": np.zeros((), np.float32)}
  assert averages.find_difference(RAW, RAW | buffers, find_layouts) is None
  assert averages.find_difference(RAW | buffers, RAW, find_layouts) is None
