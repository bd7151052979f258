"""Tests of vit_jax/importers/unused.py, which omits and lists tensors that only training uses."""

import numpy as np
import pytest

from tests import small_weights
from tests.importers.test_layout import SIGLIP, example
from tests.importers.test_subtrees import ARRAYS, BODY, HINTS, RAW, under
from vit_jax import importers
from vit_jax.importers import layout, unused
from vit_jax.schema import ConfigError

TOKEN = {"mask_token": np.ones((1, 1, 64), np.float32)}


def same(found, arrays):
  read = found.read()
  return read.keys() == arrays.keys() and all(np.array_equal(read[path], arrays[path]) for path in arrays)


def test_unused_names_are_grouped_by_reason():
  names = ["a", "mask_token", "x.mask_token", "params/masked_embed", "unmask_token", "lm_head.bias", "b"]
  found = unused.find_unused(names, r"lm_head\..*", {"because of b": ["b"], "never": []})
  assert found == {
    "used only in training": ["mask_token", "x.mask_token", "params/masked_embed", "lm_head.bias"],
    "because of b": ["b"],
  }
  assert unused.describe_unused(found)[1] == "left out, because of b: b"


DECODER = {
  "decoder_pos_embed": (1, 17, 32),
  "decoder_embed.weight": (32, 64),
  "decoder_blocks.0.norm1.weight": (32,),
}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_mae_file_is_read_without_decoder_and_mask_token(prefix):
  # The mask token of MAE belongs to the decoder and has the decoder's width.
  training = {name: np.ones(shape, np.float32) for name, shape in DECODER.items()}
  training["mask_token"] = np.ones((1, 1, 32), np.float32)
  found = importers.recognise(under(prefix, BODY | training), HINTS)
  assert found.description.classes == 0
  assert same(found, {path: array for path, array in ARRAYS.items() if not path.startswith("head/")})
  assert "used only in training: mask_token" in found.notes
  listed = next(note for note in found.notes if "not part of this model" in note).partition(": ")[2].split(", ")
  assert listed == [prefix + name for name in DECODER]


@pytest.mark.parametrize("name", ["mask_token", "masked_embed"])
def test_mask_tokens_are_omitted_and_listed(name):
  assert same(importers.recognise(RAW | {name: TOKEN["mask_token"]}, HINTS), ARRAYS)
  found = importers.recognise(RAW | {name: TOKEN["mask_token"]}, HINTS)
  assert found.notes == [f"used only in training: {name}"]
  with pytest.raises(ConfigError, match=rf"left over \(1\): {name}s"):
    importers.recognise(RAW | {f"{name}s": TOKEN["mask_token"]}, HINTS).read()


CASES = [
  ("timm", "swin_tiny_patch4_window7_224", {"width": 8, "depths": (1, 1), "heads": (2, 4)}, 56, 3),  # SimMIM's Swin
  ("timm", "mixer_s16_224", {"width": 16, "depth": 2, "hidden": 8, "token_hidden": 6}, 32, 3),
  ("timm", "ViT-S/8", {"width": 64, "depth": 2, "heads": 2, "hidden": 96, "gelu": "erf", "layer_scale": 1e-4}, 32, 0),
  ("hf", "ViT-S/8", {"width": 64, "depth": 2, "heads": 2, "hidden": 96, "gelu": "erf", "eps": 1e-12}, 32, 3),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
@pytest.mark.parametrize("prefix", ["", "encoder."])
def test_every_layout_omits_and_lists_a_mask_token(case, prefix):
  written, description, arrays = example(*case)
  tensors = layout.write(written, arrays, description) | TOKEN
  heads = {"heads": 2} if case[1] == "ViT-S/8" else {}
  found = importers.recognise(under(prefix, tensors), heads | {"image_size": description.image_size})
  assert same(found, arrays) and "used only in training: mask_token" in found.notes


def test_pooling_that_the_classifier_does_not_read_is_listed():
  def tensors_of(arguments, classes):
    written, description, arrays = example("hf", "ViT-S/8", arguments, 32, classes)
    return layout.write(written, arrays, description), arrays

  tensors, arrays = tensors_of(SIGLIP | {"pool": "gap"}, 3)
  pooling = {name: tensor for name, tensor in tensors_of(SIGLIP, 0)[0].items() if ".head." in name}
  found = importers.recognise(tensors | pooling, {"heads": 2})
  assert found.description.settings()["head"] == "gap" and same(found, arrays)
  assert len(pooling) == 11
  assert found.notes == [f"left out, because the classifier reads the mean of the patches: {', '.join(pooling)}"]
  assert importers.recognise(tensors, {"heads": 2}).notes == []


def test_exported_files_have_no_unused_tensors():
  described = small_weights.described()
  tensors = importers.export_tensors(small_weights.arrays(described), described, "vit_jax")
  assert importers.recognise(tensors, {"heads": 2}).notes == []
