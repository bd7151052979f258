"""Tests that timm's weights give timm's outputs after import, and that timm loads exported files."""

import json

import numpy as np
import pytest

from tests import peers, small_weights
from vit_jax import convert, importers, models
from vit_jax.importers.formats import containers

pytestmark = pytest.mark.heavy
# One name for each variant that timm builds, here with the sizes of `SMALL`.
NAMES = (
  "vit_tiny_patch16_224",
  "deit_tiny_distilled_patch16_224",
  "deit3_small_patch16_224",
  "vit_small_patch14_dinov2",
  "vit_small_patch14_reg4_dinov2",
  "vit_giant_patch14_dinov2",
  "vit_small_patch16_dinov3",
  "vit_small_plus_patch16_dinov3_qkvb",
  "vit_base_patch16_siglip_224",
  "vit_base_patch16_siglip_gap_256",
  "vit_base_patch32_siglip_256",
  "vit_wee_patch16_reg1_gap_256",
  "vit_pwee_patch16_reg1_gap_256",
  "vit_dwee_patch16_reg1_gap_256",
  "vit_dpwee_patch16_reg1_gap_256",
  "vit_so150m_patch16_reg4_map_256",
  "vit_so150m2_patch16_reg1_gap_256",
  "vit_medium_patch16_gap_256",
  "vit_medium_patch16_rope_reg1_gap_256",
  "vit_mediumd_patch16_rope_reg1_gap_256",
  "vit_small_patch16_rope_224",
  "vit_small_patch16_rope_mixed_224",
  "vit_small_patch16_rope_ape_224",
  "vit_small_patch16_rope_mixed_ape_224",
  "eva02_tiny_patch14_224",
  "eva02_base_patch14_448",
  "eva02_base_patch16_clip_224",
  "eva02_enormous_patch14_clip_224",
)
SMALL = {"embed_dim": 96, "num_heads": 3, "depth": 2}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_match_timm_before_and_after_export(tmp_path, name):
  timm = peers.timm()
  import torch

  torch.manual_seed(0)
  patch = int(name.partition("_patch")[2].partition("_")[0])
  arguments = SMALL | {"img_size": 3 * patch}
  model = timm.create_model(name, num_classes=7, **arguments).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.2 * torch.randn(parameter.shape))
  images = torch.randn(2, 3, 3 * patch, 3 * patch)

  def compute_logits(model):
    with torch.no_grad():
      return model(images).numpy()

  timm.models.save_for_hf(model, tmp_path / "theirs", model_args=arguments, safe_serialization=True)
  description, arrays = importers.load(tmp_path / "theirs")
  expected, ours = compute_logits(model), models.make_functional(description).create(arrays)
  logits = ours(images.permute(0, 2, 3, 1).numpy())
  np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * abs(expected).max())
  (tmp_path / "ours").mkdir()
  convert.convert(tmp_path / "theirs", tmp_path / "ours/model.safetensors", "timm", {})
  config = json.loads((tmp_path / "ours/config.json").read_text())
  back = timm.create_model(
    config["architecture"], num_classes=config["num_classes"], **config.get("model_args", {})
  ).eval()
  back.load_state_dict(timm.models.load_state_dict(tmp_path / "ours/model.safetensors"), strict=True)
  np.testing.assert_array_equal(compute_logits(back), expected)


def test_timm_loads_the_folder_that_convert_writes(tmp_path, monkeypatch):
  timm = peers.timm()
  import torch

  described = small_weights.described(gelu="erf", pool="gap")
  source = small_weights.file(tmp_path, described)
  containers.write(tmp_path / "in.safetensors", containers.read(source)[0], described.to_json())
  monkeypatch.chdir(tmp_path)
  convert.convert(tmp_path / "in.safetensors", tmp_path / "exported/model.safetensors", "timm", {})
  model = timm.create_model("local-dir:exported", pretrained=True).eval()  # the call in docs/guides/export-weights.md
  images = torch.randn(2, 3, 32, 32)
  ours = models.make_functional(described).create(small_weights.arrays(described))
  logits = np.asarray(ours(images.permute(0, 2, 3, 1).numpy()))
  with torch.no_grad():
    np.testing.assert_allclose(model(images).numpy(), logits, rtol=0, atol=2e-5 * abs(logits).max())
