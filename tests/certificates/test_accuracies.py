"""vit_jax/certificates/accuracies.py: published accuracies of weights."""

import json

import pytest

from vit_jax import models
from vit_jax.certificates import accuracies
from vit_jax.importers.hub import metadata

NAME = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
CROP = {"name": "torchvision", "ratio": 0.9, "interpolation": "bicubic"}


def published():
  return accuracies.find_accuracy(["model", NAME])


def test_every_row_belongs_to_a_known_model():
  content = json.loads(accuracies.FILE.read_text())
  known = set(models.names())
  assert len(content["weights"]) > 150
  for name, (top1, size, ratio, interpolation) in content["weights"].items():
    assert name.partition(".")[0] in known and 50 < top1 < 95 and 100 < size < 1000
    assert 0.5 < ratio <= 1 and interpolation in ("bicubic", "bilinear")


def test_weights_are_found_by_their_name():
  found = published()
  assert found.name == NAME and found.top1 == pytest.approx(0.85108)
  assert accuracies.find_accuracy(["vit_base_patch16_224", "model.safetensors"]) is None


def test_names_are_those_of_the_hub_the_folder_and_the_file(tmp_path):
  folder = tmp_path / "weights"
  folder.mkdir()
  (folder / "config.json").write_text(
    json.dumps({"architecture": "vit_base_patch16_224", "pretrained_cfg": {"tag": "augreg2_in21k_ft_in1k"}})
  )
  assert accuracies.find_accuracy(metadata.list_names(folder / "model.safetensors")).name == NAME
  assert accuracies.find_accuracy(metadata.list_names(tmp_path / NAME / "model.safetensors")).name == NAME
  assert accuracies.find_accuracy(metadata.list_names(tmp_path / f"{NAME}.safetensors")).name == NAME
  assert accuracies.find_accuracy(metadata.list_names(tmp_path / "other.safetensors")) is None


@pytest.mark.parametrize("text", ["[1, 2]", "{", "", '{"pretrained_cfg": 3}'])
def test_odd_config_next_to_weights_is_ignored(tmp_path, text):
  (tmp_path / "config.json").write_text(text)
  names = metadata.list_names(tmp_path / f"{NAME}.npz")
  assert accuracies.find_accuracy(names).name == NAME


def test_folder_of_weights_is_named_by_its_own_config(tmp_path):
  (tmp_path / "hf").mkdir()
  for folder, architecture in ((tmp_path, "deit_small_patch16_224"), (tmp_path / "hf", "vit_base_patch16_224")):
    tag = "fb_in1k" if folder == tmp_path else "augreg2_in21k_ft_in1k"
    (folder / "config.json").write_text(json.dumps({"architecture": architecture, "pretrained_cfg": {"tag": tag}}))
  assert accuracies.find_accuracy(metadata.list_names(tmp_path / "hf")).name == NAME


@pytest.mark.parametrize(
  ("top1", "images", "crop", "words"),
  [
    (0.8505, 50_000, CROP, "as published"),
    (0.8470, 50_000, CROP, "below the published accuracy"),
    (0.8530, 50_000, CROP, "above the published accuracy"),
    (0.8505, 49_920, CROP, "not compared, because 49,920 of 50,000 validation images were measured"),
    (0.8505, 50_000, {"name": "centre", "resize": 248, "interpolation": "bicubic"}, "as published"),
    (0.8505, 50_000, {"name": "centre", "resize": 256, "interpolation": "bicubic"}, "crop ratio 0.875 instead of"),
    (0.8505, 50_000, CROP | {"interpolation": "area"}, "interpolation area instead of bicubic"),
    (0.8505, 50_000, {"name": "resize", "interpolation": "bicubic"}, "crop without ratio instead of ratio 0.9"),
  ],
)
def test_comparison_names_the_verdict_or_the_reason(top1, images, crop, words):
  found = published()
  line = found.format_comparison(top1, images, found.list_differences(224, crop))
  assert words in line and "published 85.11" in line
  assert "image size 384 instead of 224" in found.format_comparison(top1, 50_000, found.list_differences(384, CROP))
