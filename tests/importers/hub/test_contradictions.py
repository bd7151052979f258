"""Tests that statements in files next to weights must agree with the tensors."""

import json

import pytest
import safetensors.numpy

from tests import hostile
from vit_jax import importers
from vit_jax.schema import ConfigError

VIT = {"image_processor_type": "ViTImageProcessor"}


def folder(path, prepared, config=None, model="hf"):
  safetensors.numpy.save_file(hostile.good(model), path / "model.safetensors")
  (path / "preprocessor_config.json").write_text(json.dumps(prepared))
  (path / "config.json").write_text(json.dumps(config or {}))
  return path


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"size": {"height": 16, "width": 64}}, "makes images of 16 x 64 px"),
    ({"size": {"height": 32, "width": 64}}, "makes images of 32 x 64 px"),
    ({"size": 16}, "makes images of 16 px"),
    ({"size": 64, "do_center_crop": True, "crop_size": 48}, "makes images of 48 px"),
  ],
)
def test_image_size_that_contradicts_the_model_is_an_error(tmp_path, changes, message):
  with pytest.raises(ConfigError) as error:
    importers.inspect(folder(tmp_path, VIT | changes))
  assert f"preprocessor_config.json next to it {message}, but the tensors are those of a model for 32 px" in str(
    error.value
  )


@pytest.mark.parametrize("changes", [{"size": 32}, {"size": None}, {"size": 64, "do_resize": False}])
def test_consistent_or_missing_image_size_is_accepted(tmp_path, changes):
  recognised = importers.inspect(folder(tmp_path, VIT | changes | {"do_normalize": False, "gamma": 2}))
  assert recognised.image_metadata.normalised == {"mean": (0.0,) * 3, "std": (1.0,) * 3}
  assert "preprocessor_config.json has keys that are not read: gamma" in recognised.notes


# config.json. The tensors belong to a ViT of width 64, depth 2, hidden 96, patch 8, 32 px and 3 classes.

SIZES = {"embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 1.5, "patch_size": 8, "img_size": 32, "in_chans": 3}
TIMM = {"architecture": "vit_small_patch8_224", "num_classes": 3, "model_args": SIZES}
HF = {"model_type": "vit", "hidden_size": 64, "num_attention_heads": 2}


def inspected(folder, config, model="timm"):
  safetensors.numpy.save_file(hostile.good(model), folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(config))
  return importers.inspect(folder)


def arguments(**changes):
  return TIMM | {"model_args": SIZES | changes}


@pytest.mark.parametrize(
  ("model", "config"),
  [
    ("timm", TIMM),
    ("timm", TIMM | {"pretrained_cfg": {"num_classes": 1000}}),  # like older exports with a new head
    ("timm", TIMM | {"architecture": "timm/vit_custom_patch8_32.my_tag"}),
    ("timm", arguments(num_classes=3, class_token=True, qkv_bias=True, qk_norm=False, init_values=None, reg_tokens=0)),
    ("timm", {"model_type": "timm_wrapper", "architecture": "vit_small_patch8_224", "model_args": SIZES}),
    ("hf", HF | {"num_labels": 3}),
    *(("hf", HF | {"model_type": kind}) for kind in ("vit", "vit_mae", "vit_msn", None)),
  ],
  ids=str,
)
def test_true_statements_are_read_without_a_note(tmp_path, model, config):
  assert inspected(tmp_path, config, model).notes == []


FALSE = [
  ("timm", TIMM | {"num_classes": 5}, "states classes=5"),
  ("timm", TIMM | {"num_classes": 0}, "states classes=0"),
  ("timm", {"pretrained_cfg": {"num_classes": 5}}, "states classes=5"),
  ("timm", arguments(embed_dim=128), "states width=128"),
  ("timm", arguments(depth=3), "states depth=3"),
  ("timm", arguments(mlp_ratio=4.0), "states mlp_ratio=4.0"),
  ("timm", arguments(patch_size=16), "states patch=16"),
  ("timm", arguments(img_size=64), "states image_size=64"),
  ("timm", arguments(in_chans=1), "states channels=1"),
  ("timm", arguments(reg_tokens=4), "states registers=4"),
  ("timm", arguments(init_values=1e-5), "states has_layer_scale=True"),
  ("timm", arguments(qkv_bias=False), "states has_qkv_bias=False"),
  ("timm", arguments(qk_norm=True), "states has_qk_norm=True"),
  ("timm", arguments(class_token=False), "states has_class_token=False"),
  *(
    ("timm", TIMM | {"architecture": name}, f"states architecture='{name}'")
    for name in ("swin_tiny_patch4_window7_224", "mixer_b16_224", "resnet50.a1_in1k", "convnext_tiny", "cct_7_3x1_32")
  ),
  ("hf", HF | {"num_labels": 7}, "states classes=7"),
  *(
    ("hf", HF | {"model_type": kind}, f"states model_type='{kind}'")
    for kind in ("bert", "swin", "audio-spectrogram-transformer", "dinov2", "dinov3_vit", "siglip")
  ),
]


@pytest.mark.parametrize(
  ("model", "config", "message"), FALSE, ids=[f"{model} {expected_message}" for model, _, expected_message in FALSE]
)
def test_statements_that_contradict_the_tensors_are_errors_of_one_line(tmp_path, model, config, message):
  with pytest.raises(ConfigError) as error:
    inspected(tmp_path, config, model)
  assert f"config.json next to it {message}" in str(error.value) and "\n" not in str(error.value)
  assert str(error.value).endswith("Correct or remove config.json")


NONSENSE = [
  (TIMM | {"model_args": SIZES | {"num_classes": 5}}, "it states both classes=5 and classes=3"),
  (TIMM | {"num_labels": 5}, "it states both classes=5 and classes=3"),
  (TIMM | {"global_pool": "token", "model_args": {"global_pool": "avg"}}, "both pool='gap' and pool='cls'"),
  ({"num_classes": -1}, "num_classes is -1. Allowed: a whole number from 0"),
  ({"num_labels": "3"}, "num_labels is '3'"),
  ({"architecture": ["vit"]}, "architecture is ['vit']. Allowed: a name of timm"),
  ({"model_type": ["vit"]}, "model_type is ['vit']. Allowed: a name"),
  (arguments(qkv_bias="yes"), "qkv_bias is 'yes'. Allowed: true or false"),
  (arguments(mlp_ratio="4"), "mlp_ratio is '4'. Allowed: a number above 0"),
  *(
    ({"pretrained_cfg": {key: values}}, f"{key} is {expected_message}")
    for key, values, expected_message in (
      ("mean", [123.7, 116.3, 103.5], "123.7 for pixels of 0..1. Allowed: from 0 to 1. Divide values"),
      ("mean", [0.5, -0.5, 0.5], "-0.5 for pixels of 0..1. Allowed: from 0 to 1"),
      ("std", [58.4, 57.1, 57.4], "58.4 for pixels of 0..1. Allowed: from 0.001 to 10. Divide values"),
      ("std", [0.5, 1e-30, 0.5], "1e-30 for pixels of 0..1. Allowed: from 0.001 to 10"),
    )
  ),
]


@pytest.mark.parametrize(("config", "message"), NONSENSE, ids=[expected_message for _, expected_message in NONSENSE])
def test_invalid_values_in_config_json_are_errors_with_the_file(tmp_path, config, message):
  with pytest.raises(ConfigError) as error:
    inspected(tmp_path, config)
  assert f"{tmp_path / 'config.json'}: " in str(error.value) and message in str(error.value)


@pytest.mark.parametrize(
  ("key", "values", "message"),
  [
    ("image_mean", [123.7, 116.3, 103.5], "image_mean is 123.7"),
    ("image_std", [1e-30, 0.5, 0.5], "image_std is 1e-30"),
  ],
)
def test_preprocessor_mean_and_std_must_suit_pixels_of_0_to_1(tmp_path, key, values, message):
  prepared = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3} | {key: values}
  with pytest.raises(ConfigError, match=rf"preprocessor_config\.json: {message}"):
    importers.inspect(folder(tmp_path, prepared))


@pytest.mark.parametrize("names", [{"label_names": ["a", "b", "a"]}, {"id2label": {"0": "a", "1": "b", "2": "a"}}])
def test_names_shared_by_several_classes_are_noted(tmp_path, names):
  recognised = inspected(tmp_path, names)
  assert "config.json gives several classes the same name: 'a' (0, 2)" in recognised.notes
  assert recognised.image_metadata.labels == ("a", "b", "a")


def test_top_level_names_override_those_of_pretrained_cfg(tmp_path):
  config = {"label_names": ["a", "b", "c"], "pretrained_cfg": {"label_names": ["x", "y", "z"]}}
  assert inspected(tmp_path, config).image_metadata.labels == ("a", "b", "c")


def test_missing_head_is_noted(tmp_path):
  body = {name: tensor for name, tensor in hostile.good("timm").items() if not name.startswith("head.")}
  safetensors.numpy.save_file(body, tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps(TIMM))
  assert "config.json states 3 classes, but the weights have no head" in importers.inspect(tmp_path).notes


@pytest.mark.parametrize(
  ("config", "sizes"),
  [
    (
      TIMM | {"model_args": {"embed_dim": 64, "mlp_ratio": 1.5, "num_heads": 2}},
      "depth=12, but the weights have depth=2",
    ),
    (
      {"architecture": "vit_base_patch16_224"},
      "width=768, depth=12, heads=12, hidden=3072, patch=16, but the",
    ),
  ],
)
def test_sizes_implied_by_the_architecture_name_are_noted(tmp_path, config, sizes):
  (note,) = inspected(tmp_path, config).notes
  assert note.startswith(f"config.json names the architecture {config['architecture']!r} with {sizes}")


def test_explicit_number_of_heads_overrides_the_architecture(tmp_path):
  config = {"architecture": "vit_base_patch16_224", "model_args": {"embed_dim": 64, "num_heads": 4}}
  assert inspected(tmp_path, config).description.arguments()["heads"] == 4
