"""Tests of the JSON files that hubs read next to weights, against the hubs' documented keys."""

import pytest

from vit_jax import importers, schema
from vit_jax.data import crops
from vit_jax.importers.hub import hf_configs
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.models import Description
from vit_jax.schema import Choice

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write_sidecars(layout, name, size=224, labels=("cat", "dog"), **arguments):
  described = Description(Choice(name, arguments), size, 2).bind()
  crop = schema.bind(Choice("torchvision", {"ratio": 0.9}), (crops.torchvision,))
  metadata = ImageMetadata({"mean": MEAN, "std": STD}, crop, size, labels, "softmax")
  return hf_configs.create_sidecar_files(importers.find_layout(described, layout), described, metadata)


@pytest.mark.parametrize(
  ("name", "architecture", "classifier"),
  [
    ("ViT-B/16", "vit_base_patch16_224", "head"),
    ("deit_tiny_distilled_patch16_224", "deit_tiny_distilled_patch16_224", ["head", "head_dist"]),
    ("Mixer-B/16", "mixer_b16_224", "head"),
    ("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224", "head.fc"),
    ("tf_efficientnet_b0", "tf_efficientnet_b0", "classifier"),
  ],
)
def test_timm_config_has_architecture_preprocessing_and_classes(name, architecture, classifier):
  config = write_sidecars("timm", name)["config.json"]
  prepared = config["pretrained_cfg"]
  assert (config["architecture"], config["num_classes"], config["label_names"]) == (architecture, 2, ["cat", "dog"])
  assert (prepared["input_size"], prepared["crop_pct"], prepared["crop_mode"]) == ([3, 224, 224], 0.9, "center")
  assert (prepared["mean"], prepared["std"], prepared["interpolation"]) == (list(MEAN), list(STD), "bicubic")
  assert (prepared["num_classes"], prepared["classifier"]) == (2, classifier)


def test_timm_config_has_every_size_of_a_vit():
  config = write_sidecars("timm", "ViT-S/8", 64, width=64, depth=2, heads=2, hidden=96, pool="gap")["config.json"]
  arguments = config["model_args"]
  assert [arguments[key] for key in ("img_size", "patch_size", "embed_dim", "depth", "num_heads")] == [64, 8, 64, 2, 2]
  assert int(64 * arguments["mlp_ratio"]) == 96
  assert (arguments["global_pool"], arguments["class_token"], arguments["act_layer"]) == ("avg", False, "gelu_tanh")


def test_model_that_timm_cannot_build_has_no_architecture_name():
  described = Description(Choice("swin_tiny_patch4_window7_224", {"depths": (2, 2), "heads": (3, 6)}), 56, 2)
  assert hf_configs.find_architecture(described) is None


def test_transformers_config_has_names_both_ways_and_a_processor():
  files = write_sidecars("hf", "ViT-Ti/16")
  config, prepared = files["config.json"], files["preprocessor_config.json"]
  assert config["id2label"] == {"0": "cat", "1": "dog"} and config["label2id"] == {"cat": 0, "dog": 1}
  assert config["problem_type"] == "single_label_classification"
  assert prepared["size"] == {"shortest_edge": 248} and prepared["crop_size"] == {"height": 224, "width": 224}
  assert (prepared["image_mean"], prepared["image_std"], prepared["resample"]) == (list(MEAN), list(STD), 3)


def test_classes_without_names_get_the_default_labels_of_transformers():
  assert write_sidecars("hf", "ViT-Ti/16", labels=())["config.json"]["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}


def test_duplicate_class_names_are_noted_for_label2id():
  described = Description(Choice("ViT-Ti/16"), 224, 3).bind()
  hf, timm = (importers.find_layout(described, layout) for layout in ("hf", "timm"))
  same, others = ImageMetadata(labels=("same", "b", "same")), ImageMetadata(labels=("a", "b", "c"))
  note = hf_configs.describe_unsaved(hf, described, same)[0]
  assert "called 'same'" in note and "label2id" in note and "id2label contains every class" in note
  assert not any("label2id" in note for note in hf_configs.describe_unsaved(hf, described, others))
  assert not any("label2id" in note for note in hf_configs.describe_unsaved(timm, described, same))


@pytest.mark.parametrize(("pool", "expected"), [("gap", True), ("cls", False)])
def test_note_explains_that_transformers_pools_the_class_token(pool, expected):
  described = Description(Choice("vit_small_patch16_dinov3", {"pool": pool}), 256, 0).bind()
  notes = hf_configs.describe_unsaved(importers.find_layout(described, "hf"), described, ImageMetadata())
  assert any("pooler_output of Transformers is the normalised class token" in note for note in notes) == expected
  timm = hf_configs.describe_unsaved(importers.find_layout(described, "timm"), described, ImageMetadata())
  assert not any("pooler_output" in note for note in timm)
