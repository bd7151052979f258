"""Tests that models saved by Transformers, or by torch.save from memory, give the same outputs after import."""

import numpy as np
import pytest

from tests import peers
from vit_jax import convert, importers, models

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
TOWER = SIZES | {"intermediate_size": 96}
SWIN = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 4}
GATED = {"use_gated_mlp": True, "hidden_act": "silu", "query_bias": False, "value_bias": False, "rope_theta": 50.0}
# Models of Transformers with their config classes and arguments.
THEIRS = {
  "ViTForImageClassification": ("ViTConfig", TOWER | {"num_labels": 5}),
  "ViTModel": ("ViTConfig", TOWER),
  "DeiTForImageClassification": ("DeiTConfig", TOWER | {"num_labels": 5}),
  "DeiTForImageClassificationWithTeacher": ("DeiTConfig", TOWER | {"num_labels": 5}),
  "DeiTModel": ("DeiTConfig", TOWER),
  "Dinov2Model": ("Dinov2Config", SIZES | {"mlp_ratio": 2}),
  "Dinov2Model of a giant": ("Dinov2Config", SIZES | {"use_swiglu_ffn": True, "layer_norm_eps": 1e-5}),
  "Dinov2WithRegistersModel": ("Dinov2WithRegistersConfig", SIZES | {"mlp_ratio": 2, "qkv_bias": False}),
  "DINOv3ViTModel": ("DINOv3ViTConfig", TOWER | {"num_register_tokens": 4}),
  "DINOv3ViTModel with a gate": ("DINOv3ViTConfig", TOWER | GATED),
  "SiglipVisionModel": ("SiglipVisionConfig", TOWER),
  "SwinForImageClassification": ("SwinConfig", SWIN | {"num_labels": 5}),
  "SwinModel": ("SwinConfig", SWIN),
  "SiglipForImageClassification": (
    "SiglipConfig",
    {"vision_config": TOWER | {"vision_use_head": False}, "num_labels": 5},
  ),
}
# Models that are read, but exported under another model class.
OTHERS = {
  "ViTMAEModel": ("ViTMAEConfig", TOWER | {"mask_ratio": 0.0}),
  "ViTMSNModel": ("ViTMSNConfig", TOWER),
}
BOTH = THEIRS | OTHERS


def make_model(case):
  """Returns the class, a model with random parameters, and images of a case."""
  transformers = peers.transformers()
  import torch

  config, arguments = BOTH[case]
  kind = getattr(transformers, case.split()[0])
  model = kind(getattr(transformers, config)(**arguments)).eval()
  draw = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
  return kind, model, torch.randn((2, 3, 32, 32), generator=draw)


def compute_outputs(model, images):
  """Returns the logits of a model of Transformers, else its pooled features, else the class token."""
  import torch

  with torch.no_grad():
    output = model(pixel_values=images)
  for name in ("logits", "pooler_output"):
    if output.get(name) is not None:
      return output[name].numpy()
  return output.last_hidden_state[:, 0].numpy()


@pytest.mark.sample(2)
@pytest.mark.heavy
@pytest.mark.parametrize("case", BOTH)
def test_outputs_match_transformers_before_and_after_export(tmp_path, case):
  kind, model, images = make_model(case)
  expected = compute_outputs(model, images)
  model.save_pretrained(tmp_path / "theirs")
  description, arrays = importers.load(tmp_path / "theirs")
  ours = models.make_functional(description).create(arrays)(images.permute(0, 2, 3, 1).numpy())
  np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
  if case in OTHERS:
    return
  (tmp_path / "ours").mkdir()
  convert.convert(tmp_path / "theirs", tmp_path / "ours/model.safetensors", "hf", {})
  back, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(report.values())
  np.testing.assert_array_equal(compute_outputs(back.eval(), images), expected)


@pytest.mark.parametrize("case", BOTH)
def test_state_dicts_in_memory_are_read_like_saved_files(tmp_path, case):
  _, model, _ = make_model(case)
  import torch

  model.save_pretrained(tmp_path / "files")
  description, arrays = importers.load(tmp_path / "files")
  torch.save(model.state_dict(), tmp_path / "memory.pth")
  args = description.settings()
  words = {"norm_eps": "norm.eps", "gelu": "gelu", "turning": "position.rotary"}
  hints = {"heads": 4, "image_size": 32} | {hint: args[key] for hint, key in words.items() if key in args}
  known, found = importers.load(tmp_path / "memory.pth", hints)
  assert known.settings() == args and known.classes == description.classes and found.keys() == arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(found[path], array, err_msg=path)
