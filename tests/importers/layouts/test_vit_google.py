"""Tests of the generations of names in Google's files. The round trips of the tables are in test_layout."""

import numpy as np
import pytest

from tests.importers.test_layout import SMALL, example, hints_of
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.importers.layouts import vit
from vit_jax.models import Description
from vit_jax.schema import Choice


@pytest.mark.parametrize("prefix", ["params/", "opt/target/", "params/img/", "img/"])
def test_prefixes_of_google_and_other_tensors_are_omitted(prefix):
  written, description, arrays = example("big_vision", "ViT-S/8", SMALL | {"pool": "map"}, 32, 0)
  tensors = {prefix + name: array for name, array in layout.write(written, arrays, description).items()}
  if "img" in prefix:
    tensors |= {prefix.replace("img", "txt") + "head/bias": np.zeros(3), prefix.replace("img/", "t"): np.zeros(1)}
  found = importers.recognise(tensors, hints_of(description))
  assert found.read().keys() == arrays.keys()


def test_scanned_stacks_of_big_vision_are_unstacked():
  written, description, arrays = example("big_vision", "ViT-S/8", SMALL | {"pool": "gap"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  stacked = {name: array for name, array in tensors.items() if "encoderblock_" not in name}
  for name in [name for name in tensors if "encoderblock_0/" in name]:
    layers = [tensors[name.replace("encoderblock_0", f"encoderblock_{i}")] for i in range(2)]
    stacked[name.replace("encoderblock_0", "encoderblock")] = np.stack(layers)
  back = importers.recognise(stacked).read()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)


def test_oldest_names_of_attention_pooling_have_no_prefix():
  written, description, arrays = example("big_vision", "ViT-S/8", SMALL | {"pool": "map"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  old = {name.removeprefix("MAPHead_0/"): array for name, array in tensors.items()}
  back = importers.recognise(old).read()
  np.testing.assert_array_equal(back["pool/probe"], arrays["pool/probe"])


def test_newer_names_of_vit_jax_are_read_and_published_names_written():
  written, description, arrays = example("vit_jax", "ViT-S/8", SMALL, 32, 3)
  tensors = layout.write(written, arrays, description)
  assert "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel" in tensors
  newer = {}
  for name, array in tensors.items():
    for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("MlpBlock_3", "MlpBlock_0")):
      name = name.replace(old, new)
    newer[name] = array
  assert newer.keys() != tensors.keys()
  back = importers.recognise(newer).read()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)


def test_big_vision_class_token_gets_and_loses_a_zero_position():
  written, description, arrays = example("big_vision", "ViT-S/8", SMALL, 32, 3)
  arrays["position/table"][0] = 0
  tensors = layout.write(written, arrays, description)
  assert tensors["pos_embedding"].shape == (1, 16, 64)
  back = importers.recognise(tensors).read()
  np.testing.assert_array_equal(back["position/table"], arrays["position/table"])
  arrays["position/table"][0] = 1
  folded = layout.write(written, arrays, description)
  np.testing.assert_array_equal(folded["cls"], tensors["cls"] + 1)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(
  "place", ["Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding", "pos_embedding"]
)
def test_every_generation_of_position_tables_is_read(place, counted):
  written, description, arrays = example("vit_jax", "ViT-S/8", SMALL, 32, 3)
  tensors = layout.write(written, arrays, description)
  table = tensors.pop("Transformer/posembed_input/pos_embedding")
  back = importers.recognise(tensors | {place: table if counted else table[:, 1:]}).read()
  expected = arrays["position/table"].copy()
  expected[0] *= counted
  np.testing.assert_array_equal(back["position/table"], expected)
  np.testing.assert_array_equal(back["cls"], arrays["cls"])


def test_folding_a_zero_position_keeps_the_bits_of_the_token():
  cls, table = np.full((1, 1, 2), -0.0, np.float32), np.zeros((1, 4, 2), np.float32)
  folded, rest = vit.fold_token(cls, table)
  assert np.signbit(folded).all() and rest.shape == (1, 3, 2)


@pytest.mark.parametrize("stages", [(), (1,), (2, 1, 3)])
def test_hybrids_of_any_stages_are_described(stages):
  case = ("vit_jax", "ViT-S/1", SMALL | {"stages": stages}, 64, 3)
  written, description, arrays = example(*case)
  found = importers.recognise(layout.write(written, arrays, description), hints_of(description))
  assert found.description.arguments()["stages"] == stages
  assert layout.compute_shapes(found.description) == layout.compute_shapes(description)


def test_published_hybrid_is_recognised_under_its_name():
  description = Description(Choice("R26+S/32", {"depth": 2}), 64, 3)
  _, _, arrays = example("vit_jax", "R26+S/32", {"depth": 2}, 64, 3)
  found = importers.recognise(importers.export_tensors(arrays, description, "vit_jax"))
  assert found.description.model == Choice("R26+S/32", {"depth": 2})
