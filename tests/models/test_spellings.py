"""Tests of suggestions for model names in the spellings of other libraries."""

import pytest

from vit_jax import models, schema
from vit_jax.models import spellings, table


@pytest.mark.parametrize(
  ("name", "ours"),
  [
    ("vit_tiny", "ViT-Ti/16"), ("vit_base", "ViT-B/16"), ("vit-b-16", "ViT-B/16"), ("vit_b_16", "ViT-B/16"),
    ("vit_l_32", "ViT-L/32"), ("vit_h_14", "ViT-H/14"), ("vit_huge", "ViT-H/14"), ("ViT-B-16", "ViT-B/16"),
    ("ViT-L-14", "ViT-L/14"), ("ViT-bigG-14", "ViT-G/14"), ("ViTB/16", "ViT-B/16"), ("vitb16", "ViT-B/16"),
    ("ViT-B", "ViT-B/16"), ("openai/clip-vit-base-patch16", "ViT-B/16"), ("mae_vit_base_patch16", "ViT-B/16"),
    ("beit_base_patch16_224", "ViT-B/16"), ("deit_small", "deit_small_patch16_224"),
    ("deit-tiny-patch16-224", "deit_tiny_patch16_224"),
    ("facebook/deit-base-distilled-patch16-224", "deit_base_distilled_patch16_224"),
    ("deit_base_distilled", "deit_base_distilled_patch16_224"), ("deit3_base", "deit3_base_patch16_224"),
    ("dinov2_vits14", "vit_small_patch14_dinov2"), ("dinov2_vitb14_reg", "vit_base_patch14_reg4_dinov2"),
    ("facebook/dinov2-base", "vit_base_patch14_dinov2"),
    ("facebook/dinov2-with-registers-small", "vit_small_patch14_reg4_dinov2"),
    ("facebook/dinov3-vits16-pretrain-lvd1689m", "vit_small_patch16_dinov3"),
    ("google/siglip-so400m-patch14-384", "vit_so400m_patch14_siglip_384"), ("resnet50", "R50x1"),
    ("resnet18", "R26x1"), ("wide_resnet50_2", "R50x1"), ("swin_t", "swin_tiny_patch4_window7_224"),
    ("microsoft/swin-base-patch4-window7-224", "swin_base_patch4_window7_224"), ("efficientnetb0", "efficientnet_b0"),
    ("efficientnet-b3", "efficientnet_b3"), ("mlp_mixer_base", "Mixer-B/16"), ("mixer_l16", "Mixer-L/16"),
    ("hf_hub:timm/vit_tiny_patch16_224", "vit_tiny_patch16_224"),
  ],
)  # fmt: skip
def test_name_of_another_library_suggests_the_nearest_model(name, ours):
  assert spellings.find_nearest(name, table.TABLE) == ours
  assert models.lookup(ours) is not None
  with pytest.raises(schema.ConfigError, match="unknown name") as error:
    models.lookup(name)
  assert f"Did you mean {ours!r}?" in str(error.value)


@pytest.mark.parametrize("name", ["google/vit-base-patch16-224", "timm/vit_base_patch16_224.augreg_in21k"])
def test_published_spelling_finds_its_model(name):
  assert models.find(name) is not None


@pytest.mark.parametrize("name", ["", "xyz", "convnext_tiny", "resnet", "dinov2_vitx14", "bert-base-uncased"])
def test_name_of_an_unknown_family_has_no_suggestion(name):
  assert spellings.find_nearest(name, table.TABLE) is None


def test_every_name_is_its_own_nearest_with_any_separators():
  for name in table.TABLE:
    found = spellings.find_nearest(name, table.TABLE)
    plain, own = (each.removeprefix("google/").replace("-", "_").lower() for each in (found, name))
    assert plain == own
