"""Tests of the table of model names: spellings, any patch size, and errors for unknown names and arguments."""

import subprocess
import sys

import pytest
from flax import nnx

from vit_jax import models, schema
from vit_jax.models.published import compact, vit


def test_all_registered_names_are_listed():
  assert set(compact.VARIANTS) <= set(models.names())
  assert {f"ViT-{size}/16" for size in ("Ti", "S", "B", "L", "H", "g", "G")} <= set(models.names())


@pytest.mark.parametrize(
  ("name", "argument", "message"),
  [
    ("vit_2_4_32", "qk_norm", "'attention.qk_norm' is supported by the family of ViT-S/16. Allowed: position,"),
    (
      "Mixer-B/16",
      "registers",
      "It is supported by the family of ViT-S/16, the family of cct_7_3x1_32. Allowed: gelu,",
    ),
    ("ViT-S/16", "kernel", "It is supported by the family of cct_7_3x1_32. Allowed: head,"),
    ("ViT-S/16", "heaad", "Did you mean 'head'? Allowed: head,"),
  ],
)
def test_argument_of_another_family_is_an_error_with_that_family(name, argument, message):
  with pytest.raises(schema.ConfigError) as caught:
    models.bind(schema.Choice(name, {argument: 3}))
  assert caught.value.place == argument
  assert caught.value.message.startswith(f"unknown key for {name!r}, value 3. {message}")


@pytest.mark.heavy
def test_binding_a_model_imports_only_its_family():
  code = """
import sys
from vit_jax import models, schema
models.bind(schema.Choice("vit_2_4_32"))
assert "vit_jax.models.compact" in sys.modules and "vit_jax.models.swin" not in sys.modules
"""
  subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
  ("spelling", "name"),
  [
    ("ViT-B_16", "ViT-B/16"),
    ("B_16", "ViT-B/16"),
    ("R50+ViT-B_16", "R50+B/16"),
    ("R_Ti_16", "R+Ti/16"),
    ("R26_S_32", "R26+S/32"),
    ("Mixer-L_16", "Mixer-L/16"),
    ("BiT-M-R101x3", "R101x3"),
    ("BiT-M-R50x1-ILSVRC2012", "R50x1"),
    ("BiT-R152x4", "R152x4"),
    ("EfficientNet-B7", "tf_efficientnet_b7"),
    ("timm/vit_small_patch16_224.augreg_in21k", "vit_small_patch16_224"),
    ("deit_tiny_patch16_224.fb_in1k", "deit_tiny_patch16_224"),
    ("timm/swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224"),
  ],
)
def test_published_spellings_find_the_same_models(spelling, name):
  assert models.find(spelling) is models.find(name)


def test_name_may_contain_any_patch_size():
  assert models.lookup("ViT-S/7") is not None
  model = nnx.eval_shape(lambda: models.create("ViT-S/7", image_size=21, depth=1))
  assert model.embedding.kernel.shape == (7, 7, 3, 384) and model.position.table.shape == (10, 384)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "ViT-Q/16",
      r"name: 'ViT-Q/16' has unknown size 'Q'.* Allowed: mu, Ti, S, M, B, L, So400m, H, g,",
    ),
    ("ViT-b/16", r"unknown size 'b'"),
    ("ViT-S/0", r"patch '0'. Allowed: a positive integer"),
    ("ViT-S/-4", r"patch '-4'"),
    ("ViT-S/4.5", r"patch '4.5'"),
    ("ViT-S/", r"patch ''"),
    ("ViT-S/1６", r"patch '1６'"),
    ("ViT-S/99999999999999999999", r"patch '9+'"),
    ("cct_2_3x2_33", r"unknown name 'cct_2_3x2_33'. Did you mean 'cct_2_3x2_32'"),
    ("ViT-S16", r"unknown name 'ViT-S16'. Did you mean 'ViT-S/16'"),
    ("cct_14_7x2_224_sine", r"unknown name"),
    (
      "resnet50",
      r"unknown name 'resnet50'. Did you mean 'R50x1'\? Similar: R50x1. All \d+: .*vit_jax.models.names\(\)",
    ),
    ("swin_t", r"Did you mean 'swin_tiny_patch4_window7_224'\? Similar: (swin_[a-z0-9_]*(, )?)*\. All"),
    ("", r"unknown name ''"),
  ],
)
def test_unknown_names_are_errors_with_suggestions(name, message):
  with pytest.raises(schema.ConfigError, match=message):
    models.lookup(name)


def test_widths_match_the_tables():
  assert compact.SIZES[14] == (384, 14, 6, 1152) and vit.SIZES["G"] == (1664, 48, 16, 8192)
  assert all(width // heads == 64 for width, _, heads, _ in compact.SIZES.values())
