"""Tests of vit_jax/inference/inspection.py: the table that describes a weight file, and hints that contradict it."""

import shlex

import numpy as np
import pytest

from tests.test_convert import SMALL, VIT, written
from vit_jax.importers import layout
from vit_jax.inference import inspection
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError


def test_inspection_lists_layout_sizes_and_parameters(tmp_path):
  written(tmp_path / "a.npz")
  output = inspection.inspect_weights(tmp_path / "a.npz", {})
  rows = dict(line.split(maxsplit=1) for line in output.splitlines())
  assert rows["layout"].startswith("vit_jax names (.npz), 40 tensors")
  assert (rows["family"], rows["patch"], rows["pool"], rows["classes"]) == ("vit", "8", "cls", "3")
  assert rows["size"] == "width 64, depth 2, heads 2, hidden 96"
  assert rows["resolution"] == "32 px, 3 channels"
  assert rows["config"].startswith("--config.model.name=ViT-")
  assert int(rows["parameters"].replace(",", "")) == sum(np.prod(s) for s in layout.compute_shapes(VIT).values())


def test_inspection_lists_forward_flops_and_the_resampling_rule(tmp_path):
  written(tmp_path / "a.npz")
  rows = dict(line.split(maxsplit=1) for line in inspection.inspect_weights(tmp_path / "a.npz", {}).splitlines())
  assert rows["arithmetic"].endswith(" GFLOP per image (forward pass)")
  tokens, width, hidden = 17, 64, 96
  macs = 16 * 8 * 8 * 3 * width + 2 * (4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * hidden)
  assert float(rows["arithmetic"].split()[0]) == pytest.approx(2 * (macs + width * 3) / 1e9, rel=5e-3)
  assert rows["resampling"] == "zoom"
  with pytest.raises(ConfigError, match="--resampling=bicubic: the weights are of"):
    inspection.check_hints(VIT, {"resampling": "bicubic"})


def test_flags_of_an_inspection_build_the_same_model(tmp_path):
  described = Description(Choice("R26+S/32", SMALL | {"stages": (1, 2), "pre_logits": 6}), 64, 3)
  written(tmp_path / "a.npz", "vit_jax", described)
  lines = dict(line.split(maxsplit=1) for line in inspection.inspect_weights(tmp_path / "a.npz", {}).splitlines())
  words = shlex.split(lines["config"])
  arguments = {word.split("=")[0].rpartition(".")[2]: word.split("=")[1] for word in words}
  name = arguments.pop("name")
  from vit_jax.schema import Text

  again = Description(Choice(name, {k: Text(v) for k, v in arguments.items()}), 64, 3)
  assert layout.compute_shapes(again) == layout.compute_shapes(described)
