"""Tests of every parity fixture, and of the parity command with valid and invalid fixtures."""

import json
import re

import numpy as np
import pytest
import torch

from tests import parity
from tests.parity import models
from tests.parity.__main__ import main
from tests.parity.compare import compare


@pytest.mark.sample(2, each=lambda kind, file: kind)
@pytest.mark.heavy
@pytest.mark.parametrize(
  ("kind", "file"),
  [pytest.param(kind, file, id=f"{kind}-{file.stem}") for kind, file in parity.fixtures(parity.FOLDER)],
)
def test_results_match_the_original_code(kind, file):
  results = list(parity.check(kind, file))
  assert results
  assert not [result for result in results if result.wrong]


SELFSUP = parity.FOLDER.parents[3] / "shared" / "parity-selfsup"  # not part of the repository


@pytest.mark.skipif(not SELFSUP.is_dir(), reason="the numbers of self-distillation are not there")
@pytest.mark.sample(6)
@pytest.mark.heavy
@pytest.mark.parametrize("file", [file for _, file in parity.fixtures(SELFSUP)], ids=lambda file: file.stem)
def test_self_distillation_matches_the_original_code(file):
  results = list(parity.check("selfsup", file))
  assert results
  assert not [result for result in results if result.wrong]


def described():
  """Returns a fixture of a small timm ViT with wrong expected values."""
  width, hidden = 8, 12
  shapes = {
    "cls_token": [1, 1, width],
    "pos_embed": [1, 5, width],
    "patch_embed.proj.weight": [width, 3, 4, 4],
    "patch_embed.proj.bias": [width],
    "norm.weight": [width],
    "norm.bias": [width],
    "head.weight": [3, width],
    "head.bias": [3],
    "blocks.0.norm1.weight": [width],
    "blocks.0.norm1.bias": [width],
    "blocks.0.attn.qkv.weight": [3 * width, width],
    "blocks.0.attn.qkv.bias": [3 * width],
    "blocks.0.attn.proj.weight": [width, width],
    "blocks.0.attn.proj.bias": [width],
    "blocks.0.norm2.weight": [width],
    "blocks.0.norm2.bias": [width],
    "blocks.0.mlp.fc1.weight": [hidden, width],
    "blocks.0.mlp.fc1.bias": [hidden],
    "blocks.0.mlp.fc2.weight": [width, hidden],
    "blocks.0.mlp.fc2.bias": [width],
  }
  return {
    "name": "small",
    "format": "timm_state_dict",
    "image_size": 8,
    "num_classes": 3,
    "config": {"heads": 2},
    "tensors": [{"name": name, "shape": shape, "mean": 0.1, "std": 0.3} for name, shape in shapes.items()],
    "input": {"shape": [2, 3, 8, 8], "layout": "NCHW", "seed": 1},
    "output": {"logits": [[0.0] * 3] * 2, "pre_logits": [[0.0] * width] * 2},
    "tolerance": 1e-5,
  }


@pytest.fixture
def command(monkeypatch, capsys):
  """Returns a function that runs `python -m tests.parity FOLDER` and returns the exit code and the output."""

  def called(folder):
    monkeypatch.setattr("sys.argv", ["parity", str(folder)])
    return main(), "".join(capsys.readouterr())

  return called


@pytest.mark.heavy
def test_command_prints_a_line_per_fixture_and_fails_on_wrong_values(tmp_path, command):
  fixture = described()
  right = tmp_path / "models"
  right.mkdir()
  fixture["output"] = torch_forward(fixture)
  (right / "right.json").write_text(json.dumps(fixture))
  code, printed = command(tmp_path)
  assert code == 0, printed
  assert printed.splitlines()[-1] == "1 passed, 0 failed"

  fixture["output"]["logits"][1][2] += 1e-4
  (right / "wrong.json").write_text(json.dumps(fixture))
  fixture["tensors"].pop()
  (right / "lacking.json").write_text(json.dumps(fixture))
  (right / "zzz.json").write_text("{")
  code, printed = command(right)  # the folder of one kind is accepted too
  lines = {line.split()[0]: line for line in printed.splitlines()[1:]}
  assert code == 1
  assert lines["models/right"].endswith("pass")
  assert re.search("FAIL  logits: difference (0.0001|9.99?e-05), tolerance 1e-05", lines["models/wrong"])
  assert "FAIL" in lines["models/lacking"] and "missing (1): blocks.0.mlp.fc2.bias" in printed
  assert "FAIL  JSONDecodeError" in lines["models/zzz"]
  assert printed.splitlines()[-1] == "1 passed, 3 failed"


def torch_forward(fixture):
  """Computes a ViT with one block in PyTorch from the tensors of the fixture."""
  t = {name: torch.tensor(array) for name, array in models.tensors(fixture).items()}
  functional = torch.nn.functional

  def norm(x, name):
    return functional.layer_norm(x, (x.shape[-1],), t[f"{name}.weight"], t[f"{name}.bias"], 1e-6)

  def linear(x, name):
    return functional.linear(x, t[f"{name}.weight"], t[f"{name}.bias"])

  images = torch.tensor(models.images(fixture)).permute(0, 3, 1, 2)
  x = functional.conv2d(images, t["patch_embed.proj.weight"], t["patch_embed.proj.bias"], 4)
  x = torch.cat([t["cls_token"].expand(2, 1, 8), x.flatten(2).transpose(1, 2)], 1) + t["pos_embed"]
  query, key, value = (
    linear(norm(x, "blocks.0.norm1"), "blocks.0.attn.qkv").reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
  )
  context = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 5, 8)
  x = x + linear(context, "blocks.0.attn.proj")
  x = x + linear(functional.gelu(linear(norm(x, "blocks.0.norm2"), "blocks.0.mlp.fc1")), "blocks.0.mlp.fc2")
  features = norm(x, "norm")[:, 0]
  return {"logits": linear(features, "head").tolist(), "pre_logits": features.tolist()}


def test_folder_without_fixtures_is_an_error(tmp_path, command):
  code, printed = command(tmp_path)
  assert code == 2 and f"no fixtures in {tmp_path}" in printed


def test_fixture_arrays_follow_the_documented_rule():
  z = np.random.default_rng(122658370).standard_normal(4, dtype=np.float32)
  np.testing.assert_allclose(z, [0.7288672, 1.3773246, 0.22950989, -0.31442502], rtol=1e-6)
  tensor = {"name": "head/bias", "shape": [4], "mean": 1.0, "std": 2.0}
  np.testing.assert_allclose(models.tensors({"tensors": [tensor]})["head/bias"], 1 + 2 * z, rtol=1e-6)
  drawn = models.images({"input": {"shape": [2, 3], "layout": "NHWC", "seed": 1234}})
  np.testing.assert_allclose(drawn[0, :2], [-1.9305829, 2.7258918], rtol=1e-6)


def test_comparison_is_absolute_and_fails_for_nan_and_other_shapes():
  assert compare("x", [1.0], [1.0 + 1e-6], 1e-5).wrong == ""
  assert "tolerance" in compare("x", [1.0], [1.1], 1e-5).wrong
  assert compare("x", [np.nan], [1.0], 1e-5).wrong
  assert "shape" in compare("x", [[1.0]], [1.0], 1e-5).wrong
