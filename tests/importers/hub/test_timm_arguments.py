"""Tests that timm's arguments for a ViT are written, and read back as the same model."""

import json

import pytest

from tests.importers.originals import shown
from tests.importers.test_layout import DINOV3, ERF, EVA02, NORMED, TURNED, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.importers.hub import hf_configs, metadata, timm_arguments
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.schema import Choice, ConfigError

GAP = {"pool": "gap", "class_token": True}
DESCRIBED = [
  ERF | GAP,
  ERF | GAP | {"norm_pooled": True},
  ERF | {"registers": 3, "position": "learned_all"},
  ERF | {"layer_scale": 1e-4, "mlp": "swiglu"},
  ERF | {"position": "none"},
  ERF | {"qkv_bias": "none", "qk_norm": "layer"},
  ERF | GAP | {"norm_order": "parallel", "layer_scale": 1e-4},
  ERF | {"rotary": Choice("axial", {"temperature": 50.0})},
  ERF | GAP | {"rotary": Choice("axial", {"temperature": 100.0, "first": "columns", "reference": 7})},
  TURNED | {"rotary": modern.MIXED},
  DINOV3 | {"qkv_bias": "none", "rotary": Choice("dinov3", {"temperature": 30.0})},
  DINOV3 | GAP | {"qkv_bias": "query_value", "mlp": "swiglu"},
  EVA02 | NORMED,
  EVA02 | {"mlp": "swiglu_normed", "context_norm": True},
  ERF | {"norm_order": "post"},
]


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", DESCRIBED, ids=lambda arguments: str(len(str(arguments))))
def test_written_arguments_describe_the_same_model(tmp_path, arguments):
  written, description, arrays = example("timm", "ViT-S/8", arguments, 32, 3)
  (config,) = hf_configs.create_sidecar_files(written, description, ImageMetadata()).values()
  (tmp_path / "config.json").write_text(json.dumps(config))
  hints = metadata.read_hints(tmp_path / "model.safetensors")
  found = importers.recognise(layout.write(written, arrays, description), hints)
  assert shown(found.description) == shown(description)
  assert layout.compute_shapes(found.description) == layout.compute_shapes(description)


@pytest.mark.parametrize(
  ("name", "image_size", "arguments"),
  [
    ("vit_small_patch16_dinov3", 256, {}),
    ("vit_small_patch16_dinov3", 96, {"img_size": 96}),
    ("vit_wee_patch16_reg1_gap_256", 256, {}),
    ("eva02_tiny_patch14_224", 224, {}),
  ],
)
def test_published_name_needs_only_its_image_size(name, image_size, arguments):
  assert timm_arguments.create_arguments(Description(Choice(name), image_size, 5)) == Choice(name, arguments)


@pytest.mark.parametrize(
  "arguments",
  [
    {"norm": "rms"},
    {"rotary": Choice("axial", {"registers": 100.0}), "registers": 4},
    {"rotary": modern.DINOV3, "eps": 1e-5},  # without the layer scale of its architecture
    {"mlp": "swiglu"},  # without the layer scale of its architecture
    {"rotary": modern.EVA02, "gelu": "tanh"},
    {"pool": "seqpool"},
  ],
)
def test_model_that_timm_cannot_build_has_no_arguments(arguments):
  description = Description(Choice("ViT-S/8", ERF | {"layer_scale": None} | arguments), 32, 5)
  assert timm_arguments.create_arguments(description) is None


@pytest.mark.parametrize(
  ("arguments", "rotary"),
  [
    ({}, None),
    ({"use_rot_pos_emb": False}, Choice("none")),
    ({"use_rot_pos_emb": True}, Choice("axial", {"temperature": 10_000.0})),
    ({"use_rot_pos_emb": True, "ref_feat_shape": [16, 16]}, modern.EVA02),
    ({"use_rot_pos_emb": True, "rope_temperature": 100, "rope_grid_indexing": "xy"}, modern.ROPE_VIT),
    (
      {"use_rot_pos_emb": True, "rope_type": "mixed", "rope_temperature": 10.0, "rope_grid_indexing": "xy"},
      modern.MIXED,
    ),
    (
      {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True},
      modern.DINOV3,
    ),
  ],
)
def test_timm_arguments_select_the_rotary_positions(arguments, rotary):
  assert timm_arguments.find_rotary(arguments) == rotary


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"rope_temperature": 3.0}, "rope_temperature=3.0, but not use_rot_pos_emb"),
    ({"use_rot_pos_emb": True, "rope_type": "mrope"}, "rope_type='mrope'"),
    ({"use_rot_pos_emb": True, "rope_type": ["cat"]}, "rope_type="),
    ({"use_rot_pos_emb": True, "rope_rotate_half": True}, "rope_rotate_half=True"),
    ({"use_rot_pos_emb": True, "rope_type": "mixed"}, "rope_grid_indexing='ij'"),
    ({"use_rot_pos_emb": True, "ref_feat_shape": [16, 8]}, r"ref_feat_shape=\[16, 8\]"),
    ({"use_rot_pos_emb": True, "rope_temperature": "hot"}, "rope_temperature='hot'"),
  ],
)
def test_unsupported_rotary_arguments_are_errors(arguments, message):
  with pytest.raises(ConfigError, match=message):
    timm_arguments.find_rotary(arguments)
