"""Tests of the default normalisation of each publisher against the table in docs/models/index.md."""

import pathlib
import re

import pytest

from vit_jax import models
from vit_jax.importers import normalisation
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError

PAGE = pathlib.Path(__file__).parents[2] / "docs/models/index.md"


@pytest.mark.parametrize(
  ("layout", "name", "arguments", "classes", "mean"),
  [
    ("vit_jax", "ViT-B/16", {}, 1000, 0.5),
    ("big_vision", "ViT-B/16", {}, 1000, 0.5),
    ("bit", "R50x1", {}, 1000, 0.5),
    ("timm", "ViT-B/16", {}, 1000, 0.5),
    ("hf", "ViT-B/16", {}, 1000, 0.5),
    ("timm", "Mixer-B/16", {}, 1000, 0.5),
    ("timm", "ViT-B/16", {"layer_scale": 1e-4}, 1000, 0.485),
    ("timm", "deit_tiny_patch16_224", {}, 1000, 0.485),
    ("timm", "deit3_base_patch16_224", {}, 1000, 0.485),
    ("timm", "vit_small_patch14_reg4_dinov2", {}, 0, 0.485),
    ("dinov3", "vit_small_patch16_dinov3", {"pool": "cls"}, 0, 0.485),
    ("timm", "vit_small_patch16_rope_mixed_224", {}, 1000, 0.485),
    ("vit5", "vit5_small", {}, 1000, 0.485),
    ("timm", "vit_base_patch16_siglip_224", {}, 0, 0.5),
    ("timm", "vit_wee_patch16_reg1_gap_256", {}, 1000, 0.5),
    ("timm", "vit_medium_patch16_rope_reg1_gap_256", {}, 1000, 0.5),
    ("timm", "vit_betwixt_patch16_rope_reg4_gap_256", {}, 1000, 0.48145466),
    ("timm", "eva02_tiny_patch14_224", {}, 0, 0.48145466),
    ("timm", "eva02_base_patch16_clip_224", {}, 512, 0.48145466),
    ("timm", "eva02_enormous_patch14_clip_224", {}, 1024, 0.48145466),
    ("timm", "swin_tiny_patch4_window7_224", {}, 1000, 0.485),
    ("timm", "efficientnet_b0", {}, 1000, 0.485),
    ("compact", "cct_14_7x2_224", {}, 1000, 0.485),
    ("compact", "cct_7_3x1_32", {}, 10, 0.4914),
    ("compact", "cct_7_3x1_32", {}, 100, 0.5071),
    ("compact", "cct_7_7x2_224_sine", {}, 102, 0.4353),
  ],
)
def test_default_normalisation_is_that_of_the_publisher(layout, name, arguments, classes, mean):
  usual = normalisation.find_usual_normalisation(
    layout, Description(Choice(name, arguments), models.find(name).image_size, classes)
  )
  assert usual["mean"][0] == mean
  chapter = re.search(r"## Images(.*?)\n## ", PAGE.read_text(), re.DOTALL)[1]
  for values in usual.values() if mean != 0.5 else ():
    stated = [tuple(map(float, text.split(","))) for text in re.findall(r"`\(([\d.,]+)\)`", chapter)]
    assert values in stated


@pytest.mark.parametrize(
  ("key", "value"), [("mean", 5), ("std", ["a"]), ("test_crop", 7), ("test_crop", {"name": []}), ("image_size", "x")]
)
def test_invalid_values_in_the_config_of_a_workdir_are_errors_with_their_key(tmp_path, key, value):
  about = {"identity": {"config": {"data": {"name": "digits", "mean": [0.5], key: value}}}}
  with pytest.raises(ConfigError, match=f"{tmp_path}: data of its config: .*{key}"):
    normalisation.read_workdir_image_metadata(tmp_path, about)
