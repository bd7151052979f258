"""Tests of vit_jax/importers/hub/timm_names.py: sizes and families of timm's architecture names."""

import pytest

from tests import peers
from vit_jax.importers.hub import contradictions, timm_names
from vit_jax.models import Description, table
from vit_jax.schema import Choice, ConfigError


@pytest.mark.parametrize(
  "name",
  ["vit_tiny_patch16_224", "eva02_tiny_patch14_224", "vit_small_patch14_dinov2", "vit_wee_patch16_reg1_gap_256"],
)
def test_sizes_of_a_name_match_its_model(name):
  facts = contradictions.collect_facts(Description(Choice(name), table.TABLE[name].image_size, 0), {})
  expected = timm_names.find_sizes({"architecture": name}, {})
  assert len(expected) == 5 and expected == {key: facts[key] for key in expected}


def test_mlp_ratio_removes_the_hidden_width_of_the_name():
  assert "hidden" not in timm_names.find_sizes({"architecture": "vit_tiny_patch16_224"}, {"mlp_ratio": 4.0})
  assert (
    timm_names.find_sizes({}, {}) == timm_names.find_sizes({"architecture": "swin_tiny_patch4_window7_224"}, {}) == {}
  )
  with pytest.raises(ConfigError, match=r"architecture is 3. Allowed: a name of timm"):
    timm_names.find_sizes({"architecture": 3}, {})


def test_timm_names_have_the_family_of_their_module():
  peers.timm()
  from timm.models import list_models

  modules = {"vision_transformer": "vit", "eva": "vit", "deit": "vit", "vision_transformer_hybrid": "vit"}
  modules |= {"swin_transformer": "swin", "resnetv2": "bit"}
  for module, family in modules.items():
    assert {timm_names.find_family(name) for name in list_models(module=module)} == {family}, module
  for module in ("resnet", "convnext", "cait", "xcit", "efficientformer", "maxxvit", "tiny_vit", "gcvit", "levit"):
    assert {timm_names.find_family(name) for name in list_models(module=module)} == {None}, module


@pytest.mark.parametrize(
  ("name", "family"),
  [
    ("vit_tiny_patch16_224.augreg_in21k", "vit"),
    ("timm/mixer_b16_224", "mixer"),
    ("tf_efficientnet_b0.ns_jft_in1k", "efficientnet"),
    ("efficientvit_b0", None),
    ("swinv2_tiny_window8_256", None),
    ("", None),
  ],
)
def test_tags_and_hub_prefixes_of_names_are_ignored(name, family):
  assert timm_names.find_family(name) == family
