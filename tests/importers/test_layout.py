"""Tests of vit_jax/importers/layout.py and all layout tables: written tensors are recognised and read back exactly."""

import itertools
import re

import numpy as np
import pytest

from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.importers.layout import Tensor, TensorRow
from vit_jax.models import Description, positions
from vit_jax.models.published import modern
from vit_jax.schema import Choice, ConfigError

SMALL = {"width": 64, "depth": 2, "heads": 2, "hidden": 96}
COMPACT = {"width": 64, "depth": 2, "hidden": 32, "heads": 1}
MODERN = SMALL | {"hidden": 128, "gelu": "erf", "layer_scale": 1e-5}
GIANT = MODERN | {"hidden": 88, "mlp": "swiglu"}
HF_DINOV3 = MODERN | {"rotary": modern.DINOV3, "position": "none", "registers": 4, "qkv_bias": "query_value"}
SIGLIP = SMALL | {"pool": "map"}
SWIN = {"width": 8, "depths": (1, 1), "heads": (2, 4)}
ERF = SMALL | {"gelu": "erf"}
TURNED = ERF | {"layer_scale": 1e-4, "rotary": modern.ROPE_VIT}
DINOV3 = ERF | {"layer_scale": 1e-4, "rotary": modern.DINOV3, "position": "none", "registers": 4, "eps": 1e-5}
EVA02 = ERF | {"rotary": modern.EVA02, "qkv_bias": "query_value"}
NORMED = {"mlp": "swiglu_normed", "pool": "gap", "class_token": True, "norm_pooled": True}
VIT5 = ERF | {"layer_scale": 1e-4, "rotary": modern.VIT5, "registers": 4, "position": "learned_patches", "norm": "rms"}
EXAMPLES = [  # layout, model, image size, classes
  ("vit_jax", "ViT-S/8", SMALL, 32, 3),
  ("vit_jax", "ViT-S/8", SMALL | {"pool": "gap", "pre_logits": 6}, 32, 3),
  ("vit_jax", "R26+S/32", SMALL | {"stages": (1, 2)}, 32, 3),
  ("vit_jax", "R+Ti/16", SMALL, 32, 3),
  ("vit_jax", "ViT-S/8", SMALL | {"pre_logits": 6}, 32, 0),
  ("big_vision", "ViT-S/8", SMALL | {"pool": "map"}, 32, 0),
  ("big_vision", "ViT-S/8", SMALL | {"pool": "gap", "position": "sincos2d", "pre_logits": 6}, 224, 3),
  ("big_vision", "ViT-S/8", SMALL | {"pool": "gap"}, (16, 40), 3),
  ("timm", "ViT-S/8", SMALL | {"gelu": "erf"}, 32, 3),
  ("timm", "ViT-S/8", SMALL | {"gelu": "erf", "pool": "distilled"}, 32, 3),
  ("timm", "ViT-S/8", SMALL | {"gelu": "erf", "pool": "map"}, 32, 0),
  ("timm", "ViT-S/8", SMALL | {"gelu": "erf", "pool": "gap"}, 32, 3),
  ("timm", "ViT-S/8", SMALL | {"gelu": "erf", "layer_scale": 1e-4}, 32, 3),
  ("timm", "ViT-S/8", ERF | {"layer_scale": 1e-4, "position": "learned_patches"}, 32, 3),
  ("timm", "ViT-S/8", ERF | {"layer_scale": 1e-4, "mlp": "swiglu"}, 32, 0),
  ("timm", "ViT-S/8", ERF | {"registers": 1, "pool": "gap", "norm_pooled": True, "position": "learned_patches"}, 32, 3),
  ("timm", "ViT-S/8", ERF | {"registers": 4, "pool": "map", "position": "learned_all"}, 32, 3),
  ("timm", "ViT-S/8", ERF | {"qkv_bias": "none", "qk_norm": "layer", "pool": "gap"}, 32, 3),
  ("timm", "ViT-S/8", ERF | {"norm_order": "parallel", "layer_scale": 1e-4, "pool": "gap", "norm_pooled": True}, 32, 3),
  ("timm", "ViT-S/8", TURNED | {"position": "none"}, 32, 3),
  ("timm", "ViT-S/8", TURNED | {"position": "none", "rotary": modern.MIXED}, (32, 16), 3),
  ("timm", "ViT-S/8", TURNED | {"position": "learned_patches", "rotary": modern.MIXED}, 32, 3),
  ("timm", "ViT-S/8", DINOV3 | {"pool": "gap", "class_token": True, "qkv_bias": "none"}, 32, 0),
  ("timm", "ViT-S/8", DINOV3 | {"pool": "gap", "class_token": True, "qkv_bias": "query_value", "mlp": "swiglu"}, 32, 0),
  ("timm", "ViT-S/8", EVA02 | NORMED | {"mlp": "swiglu"}, 32, 3),
  ("timm", "ViT-S/8", EVA02 | NORMED, 32, 3),
  ("timm", "ViT-S/8", EVA02 | {"mlp": "swiglu_normed", "context_norm": True}, 32, 3),
  ("dinov2", "ViT-S/8", ERF | {"layer_scale": 1e-4}, 32, 0),
  ("dinov2", "ViT-S/8", ERF | {"layer_scale": 1e-4, "registers": 4, "mlp": "swiglu"}, 32, 0),
  ("dinov3", "ViT-S/8", DINOV3 | {"qkv_bias": "query_value"}, 32, 0),
  ("dinov3", "ViT-S/8", DINOV3 | {"qkv_bias": "none", "mlp": "swiglu"}, 32, 0),
  ("eva02", "ViT-S/8", EVA02 | NORMED | {"mlp": "swiglu"}, 32, 3),
  ("eva02", "ViT-S/8", EVA02 | NORMED, 32, 3),
  ("rope_vit", "ViT-S/8", TURNED | {"position": "none", "rotary": modern.MIXED}, 32, 3),
  ("deit3", "ViT-S/8", ERF | {"layer_scale": 1e-4, "position": "learned_patches"}, 32, 3),
  ("vit5", "ViT-S/8", VIT5 | {"qkv_bias": "none", "qk_norm": "rms"}, 32, 3),
  ("hf", "ViT-S/8", SMALL | {"gelu": "erf", "eps": 1e-12}, 32, 3),
  ("hf", "ViT-S/8", SMALL | {"gelu": "erf", "eps": 1e-12, "pre_logits": 64}, 32, 0),
  ("hf", "ViT-S/8", SMALL | {"gelu": "erf", "eps": 1e-12, "pool": "distilled"}, 32, 3),
  ("hf", "ViT-S/8", SMALL | {"gelu": "erf", "eps": 1e-12, "registers": 1, "position": "learned_all"}, 32, 3),
  ("compact", "cct_7_3x1_32", {}, 32, 10),
  ("compact", "cct_2_3x2_32_sine", {}, 32, 10),
  ("compact", "cct_2_3x2_32", COMPACT | {"position": "none"}, 32, 7),
  ("compact", "cct_14_7x2_384_fl", {"depth": 1}, 384, 102),
  ("compact", "cvt_4_4_32", COMPACT, 32, 10),
  ("compact", "vit_6_4_32", COMPACT, 64, 10),
  ("compact", "vit_7_4_32", COMPACT | {"kernel": 8}, 32, 10),
  ("vit_jax", "Mixer-S/16", {"width": 16, "depth": 2, "hidden": 8, "token_hidden": 6}, 32, 3),
  ("timm", "mixer_s16_224", {"width": 16, "depth": 2, "hidden": 8, "token_hidden": 6}, 32, 3),
  ("big_vision", "R50x1", {"stages": (1, 2)}, 224, 3),
  ("bit", "R50x1", {"stages": (2, 1)}, 224, 3),
  ("timm", "swin_tiny_patch4_window7_224", SWIN, 56, 3),
  ("hf", "swin_tiny_patch4_window7_224", SWIN, 56, 3),
  ("timm", "tf_efficientnet_b0", {}, 224, 1000),
  ("timm", "efficientnet_b3", {}, 300, 10),
  ("hf", "ViT-S/8", MODERN, 32, 0),
  ("hf", "ViT-S/8", MODERN | {"registers": 3, "qkv_bias": "none"}, 32, 0),
  ("hf", "ViT-S/8", GIANT, 32, 0),
  ("hf", "ViT-S/8", GIANT | {"registers": 4}, 32, 0),
  ("hf", "ViT-S/8", HF_DINOV3 | {"eps": 1e-5}, 32, 0),
  ("hf", "ViT-S/8", HF_DINOV3 | {"eps": 1e-5, "mlp": "swiglu", "qkv_bias": "none", "registers": 0}, (32, 48), 0),
  ("hf", "ViT-S/8", HF_DINOV3 | {"eps": 1e-5, "qkv_bias": "all"}, 32, 0),
  ("hf", "ViT-S/8", SIGLIP, 32, 0),
  ("hf", "ViT-S/8", SIGLIP | {"pool": "gap"}, 32, 0),
  ("hf", "ViT-S/8", SIGLIP | {"pool": "gap"}, 32, 3),
]


def example(name, model, arguments, image_size, classes, seed=0):
  """Returns a layout, a description, and random parameters by path."""
  description = Description(Choice(model, arguments), image_size, classes)
  rng = np.random.default_rng(seed)
  arrays = {
    path: rng.standard_normal(shape).astype(np.float32) for path, shape in layout.compute_shapes(description).items()
  }
  family = description.published.family
  known = [
    one for one in importers.load_layouts() if (one.name, one.family) == (name, family) and one.holds(description)
  ]
  return known[-1], description, arrays


def hints_of(description):
  """Returns the facts about a model that its tensors do not show."""
  return {
    "heads": description.model.args.get("heads"),
    "image_size": description.image_size,
    "name": description.model.name,
  }


@pytest.mark.sample(1, each=lambda case: case[0])
@pytest.mark.heavy
@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: f"{case[0]}-{case[1]}-{len(str(case[2]))}")
def test_written_tensors_are_recognised_and_read_back(case):
  written, description, arrays = example(*case)
  tensors = layout.write(written, arrays, description)
  found = importers.recognise(tensors, hints_of(description))
  assert found.layout.name == written.name and found.layout.family == written.family
  # Another name of the same model is accepted if shapes and arguments are equal.
  assert layout.compute_shapes(found.description) == layout.compute_shapes(description)
  words = ("pool", "head", "registers", "position", "gelu", "eps", "norm_order", "padding", "mlp", "norm")
  words += ("norm.eps", "norm.order", "position.rotary", "attention", "attention.bias", "attention.output")
  theirs, ours = found.description.settings(), description.settings()
  chosen = {word: ours[word] for word in words if ours.get(word) is not None}
  assert {word: theirs[word] for word in chosen} == chosen
  assert (found.description.classes, found.description.channels) == (description.classes, 3)
  assert found.description.image_size == description.image_size
  back = found.read()
  assert back.keys() == arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)
  again = layout.write(found.layout, back, found.description)
  assert again.keys() == tensors.keys()
  assert all(np.array_equal(again[name], tensors[name]) for name in tensors)


def test_every_layout_of_every_family_has_an_example():
  families = {(case[0], Description(Choice(case[1]), case[3], case[4]).published.family) for case in EXAMPLES}
  assert families == {(one.name, one.family) for one in importers.load_layouts()}


def test_fixed_position_table_is_stored_in_a_layout_that_learns_it():
  _, description, arrays = example("big_vision", "ViT-S/8", SMALL | {"position": "sincos2d"}, 32, 3)
  tensors = layout.write(importers.find_layout(description, "timm"), arrays, description)
  found = importers.recognise(tensors, {"heads": 2})
  table = np.pad(positions.compute_sincos2d(4, 4, 64), ((1, 0), (0, 0)))  # zero position for the class token
  np.testing.assert_array_equal(found.read()["position/table"], table)


def test_missing_extra_and_misshapen_tensors_are_listed_without_reading():
  written, description, arrays = example("timm", "ViT-S/8", SMALL, 32, 3)

  def refuse():
    raise AssertionError("was read")

  tensors = {
    name: Tensor(array.shape, array.dtype, refuse) for name, array in layout.write(written, arrays, description).items()
  }
  del tensors["blocks.1.attn.proj.bias"]
  tensors["blocks.0.attn.gate"] = np.zeros(3)
  tensors["blocks.0.mlp.fc2.weight"] = np.zeros((64, 95))
  with pytest.raises(ConfigError) as error:
    importers.recognise(tensors, {"heads": 2}).read()
  for words in (
    "missing (1): blocks.1.attn.proj.bias",
    "left over (1): blocks.0.attn.gate",
    r"of another shape (1): blocks.0.mlp.fc2.weight (64, 95) instead of (64, 96)",
  ):
    assert words in str(error.value)


def test_tensors_of_an_unknown_model_are_an_error():
  with pytest.raises(ConfigError, match=r"no known model: 2 tensors, such as a, b\. Known: .*vit \(timm\)"):
    importers.recognise({"a": np.zeros(1), "b": np.zeros(1)})


def test_similar_layout_with_a_missing_tensor_is_an_error():
  tensors = {"patch_embed.proj.weight": np.zeros((8, 3, 4, 4)), "blocks.0.attn.qkv.weight": np.zeros((24, 8))}
  with pytest.raises(ConfigError, match=r"look like a vit of timm, but lack 'blocks.0.mlp.fc1.weight'"):
    importers.recognise(tensors)


@pytest.mark.parametrize("case", EXAMPLES[:50:4], ids=lambda case: f"{case[0]}-{case[1]}-{len(str(case[2]))}")
def test_tensor_of_any_other_shape_is_an_error(case):
  written, description, arrays = example(*case)
  tensors = layout.write(written, arrays, description)
  unread = {name for names in layout.find_ignored(written, tensors).values() for name in names}
  shapes = ((), (3,), (0, 0, 0, 0), (9999999, 1))
  for name, shape in itertools.product(list(tensors)[:: max(len(tensors) // 5, 1)], shapes):
    if tensors[name].shape != shape and name not in unread and not re.fullmatch(written.ignored, name):
      with pytest.raises(ConfigError):
        importers.recognise({**tensors, name: Tensor(shape, np.float32, None)}, hints_of(description)).check()


def test_integer_weights_are_an_error():
  written, description, arrays = example("timm", "ViT-S/8", SMALL, 32, 3)
  tensors = layout.write(written, arrays, description)
  tensors["norm.bias"] = tensors["norm.bias"].astype(np.int32)
  with pytest.raises(ConfigError, match=r"norm.bias contains int32. Allowed: floating-point"):
    importers.recognise(tensors, {"heads": 2}).read()


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("vit_jax", {"layer_scale": 0.1}, r"'vit_jax' cannot store blocks/0/layer_scale1"),
    ("hf", {"pool": "map"}, r"'hf' implies head=cls, but this model has map"),
    ("hf", {"pool": "gap", "class_token": True}, r"'hf' implies head=cls, but this model has gap"),
    ("hf", MODERN | {"norm": "rms"}, r"'hf' implies norm=layer, but this model has rms"),
    ("hf", MODERN | {"registers": 3, "position": "learned_all"}, r"'hf' implies position=learned or sincos2d"),
    ("hf", HF_DINOV3 | {"rotary": Choice("axial", {})}, r"'hf' implies position.rotary=none, but this model has axial"),
    ("hf", {"pre_logits": 6}, r"'hf' cannot store pre_logits before a head"),
    ("timm", {"position": "factored"}, r"'timm' cannot store position/"),
    ("vit_jax", {"position": "relative"}, r"cannot store blocks/0/attention/offsets"),
  ],
)
def test_models_that_a_layout_cannot_store_are_errors(name, arguments, message):
  written, description, arrays = example(name, "ViT-S/8", SMALL | arguments, 32, 3)
  with pytest.raises(ConfigError, match=message):
    layout.write(written, arrays, description)


def test_compact_layout_cannot_store_another_norm_order():
  written, description, arrays = example("compact", "cvt_2_4_32", COMPACT | {"norm_order": "pre"}, 32, 10)
  with pytest.raises(ConfigError, match="implies norm_order=official, but this model has pre"):
    layout.write(written, arrays, description)


def test_row_packs_parameters_in_order_and_may_count_from_one():
  one = TensorRow("stage{i1}.qk", ("s/{i}/q", "s/{i}/k"), "(t h) d -> t d h")
  made = layout.Layout("x", "vit", (one,), bool, bool)
  ours = {"s/0/k": (2, 3), "s/0/q": (2, 3), "s/1/q": (2, 4), "s/1/k": (2, 4)}
  first, second = layout.list_entries(made, ours)
  assert (first.name, first.shape, first.paths) == ("stage1.qk", (6, 2), ("s/0/q", "s/0/k"))
  assert (second.name, second.shape) == ("stage2.qk", (8, 2))


@pytest.mark.parametrize("value", [1e300, -1e39])
def test_value_that_overflows_float32_is_an_error_with_its_tensor(value):
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"gelu": "erf"}, 32, 3)
  tensors = {name: tensor.astype(np.float64) for name, tensor in layout.write(written, arrays, description).items()}
  layout.read(written, tensors, description)
  tensors["blocks.1.attn.qkv.bias"][5] = value
  with pytest.raises(
    ConfigError, match=rf"blocks\.1\.attn\.qkv\.bias'? has values as large as {abs(value):.3g}".replace("+", r"\+")
  ):
    layout.read(written, tensors, description)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_tensor_that_is_not_finite_is_an_error_with_its_index(value):
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"gelu": "erf"}, 32, 3)
  tensors = {name: np.array(tensor) for name, tensor in layout.write(written, arrays, description).items()}
  tensors["blocks.1.attn.qkv.bias"][7] = value
  with pytest.raises(ConfigError) as error:
    layout.read(written, tensors, description)
  assert f"tensor blocks.1.attn.qkv.bias is not finite at [7] ({value})" in str(error.value)
