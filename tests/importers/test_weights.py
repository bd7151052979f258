"""Tests of vit_jax/importers: lazy import of layouts, and the layouts that can store a model."""

import subprocess
import sys

import numpy as np
import pytest

from tests.importers.test_layout import SMALL, example
from vit_jax import checkpoints, convert, importers
from vit_jax.importers import layout
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy


def test_no_layout_is_imported_before_a_file_is_read():
  code = """
import sys
from vit_jax import checkpoints, convert, importers
names = {"bit", "compact", "efficientnet", "mixer", "swin", "vit", "vit_google", "vit_torch", "vit_eva", "vit_hf"}
print(sorted(names & {name.rpartition(".")[2] for name in sys.modules if name.startswith("vit_jax.importers.")}))
print({one.family for one in importers.load_layouts()} == {"vit", "compact", "mixer", "bit", "swin", "efficientnet"})
"""
  printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
  assert printed.splitlines() == ["[]", "True"]


def test_norm_after_pooling_is_distinguished_from_a_norm_of_all_tokens():
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"gelu": "erf", "pool": "gap"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  theirs = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: t for name, t in tensors.items()}
  for some, path in ((theirs, "pool_norm/scale"), (tensors, "norm/scale")):
    found = importers.recognise(some, {"heads": 2})
    assert found.description.settings()["norm.pooled"] == (path == "pool_norm/scale")
    assert np.array_equal(found.read()[path], arrays["norm/scale"])


MODELS = {
  "dinov3": Description(Choice("vit_small_patch16_dinov3_qkvb", {"width": 64, "depth": 2, "heads": 2}), 32, 0),
  "dinov2": Description(Choice("vit_small_patch14_dinov2", {"width": 64, "depth": 2, "heads": 2}), 28, 0),
  "plain": Description(Choice("ViT-S/8", SMALL), 32, 3),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_allowed_layouts_are_those_that_can_store_the_model(model):
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(shape).astype(np.float32) for path, shape in layout.compute_shapes(model).items()}
  allowed = [one.name for one in importers.find_layouts(model)]
  assert "timm" in allowed
  for one in importers.load_layouts():
    if one.family != "vit" or not one.holds(model):
      continue
    if layout.check_writable(one, model) is None:
      assert one.name in allowed and layout.write(one, arrays, model)
      continue
    with pytest.raises(ConfigError) as refused:
      layout.write(one, arrays, model)
    assert str(refused.value) == layout.check_writable(one, model)
    with pytest.raises(ConfigError, match=f". Allowed: {', '.join(dict.fromkeys(allowed))}$"):
      importers.find_layout(model, one.name)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_default_layout_of_convert_can_store_the_model(tmp_path, model, suffix):
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(shape).astype(np.float32) for path, shape in layout.compute_shapes(model).items()}
  checkpoints.write_weights(tmp_path / "run", arrays, {"model": model.to_json()})
  output = convert.convert(tmp_path / "run", tmp_path / f"a.{suffix}", None, {})
  assert "Choice(" not in output
  described, stored = importers.load(tmp_path / f"a.{suffix}")
  assert described.bind().model.args == model.bind().model.args
  assert all(np.allclose(stored[path], arrays[path]) for path in arrays)
