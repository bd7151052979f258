"""Tests of exported models: running only the exported file gives the outputs of the model."""

import json
import sys

import jax
import numpy as np
import onnxruntime
import pytest
from jax import export

import vit_jax
from tests import small_weights
from vit_jax import convert, models
from vit_jax.importers import layout
from vit_jax.inference import exported, stored
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy


def test_stablehlo_file_gives_the_logits_of_any_number_of_images(tmp_path):
  labels = {str(i): name for i, name in enumerate(small_weights.CLASSES)}
  source = small_weights.file(tmp_path, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4], id2label=labels)
  output = convert.convert(source, tmp_path / "a.stablehlo", "stablehlo", {})
  assert "cpu, cuda, tpu" in output and "apart" in output
  program = export.deserialize(bytearray((tmp_path / "a.stablehlo").read_bytes()))
  assert program.platforms == ("cpu", "cuda", "tpu")
  use = stored.load(source)
  model = models.make_functional(use.description)
  for count in (1, 5):
    images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    normalised = ((images / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]).astype(np.float32)
    logits = jax.jit(model.outputs)(use.arrays, normalised)[0].logits
    np.testing.assert_allclose(program.call(images), logits, atol=1e-4 * float(np.abs(logits).max()))
  about = json.loads((tmp_path / "a.json").read_text())
  assert about["classes"] == list(small_weights.CLASSES) and about["mean"] == [0.4, 0.5, 0.6]
  assert about["image_size"] == 32 and about["test_crop"]["name"] == "resize"
  with pytest.raises(ConfigError, match="already exists"):
    convert.convert(source, tmp_path / "a.stablehlo", None, {})
  with pytest.raises(ConfigError, match=r"a\.json already exists"):
    (tmp_path / "a.stablehlo").unlink()
    (tmp_path / "a.json").write_text("{}")  # an unrelated file
    convert.convert(source, tmp_path / "a.stablehlo", None, {})


@pytest.mark.parametrize("names", [("a.npz", "a.stablehlo"), ("a.stablehlo", "a.npz")], ids=str)
def test_outputs_with_one_stem_do_not_replace_each_other_s_json(tmp_path, names):
  source = small_weights.file(tmp_path, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])
  convert.convert(source, tmp_path / "out" / names[0], None, {})
  before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
  with pytest.raises(ConfigError, match=rf"a\.json already exists, and {names[1]} needs a file of this name"):
    convert.convert(source, tmp_path / "out" / names[1], None, {})
  assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
  assert set(before) == {names[0], "a.json"}


def test_onnx_file_gives_the_logits_and_contains_its_metadata(tmp_path):
  labels = {str(i): name for i, name in enumerate(small_weights.CLASSES)}
  source = small_weights.file(tmp_path, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4], id2label=labels)
  output = convert.convert(source, tmp_path / "a.onnx", "onnx", {})
  assert "ONNX Runtime" in output and "apart" in output and not (tmp_path / "a.json").exists()
  session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
  model = vit_jax.load(source)
  for count in (1, 5):
    images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    logits = model.logits(model.params, np.stack(list(map(model.preprocess, images))))
    (found,) = session.run(["logits"], {"images": images})
    np.testing.assert_allclose(found, logits, atol=1e-4 * float(np.abs(logits).max()))
  about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
  assert about["classes"] == list(small_weights.CLASSES) and about["std"] == [0.2, 0.3, 0.4]
  assert about["image_size"] == 32 and about["test_crop"]["name"] == "resize"
  with pytest.raises(ConfigError, match="already exists"):
    convert.convert(source, tmp_path / "a.onnx", None, {})


# The smallest name of each family, and each part that is computed differently.
FAMILIES = {
  "ViT-Ti/32": {"pool": "map", "registers": 2, "dtype": "bfloat16"},
  "deit_tiny_distilled_patch16_224": {"depth": 1},
  "ViT-S/8": {"width": 64, "depth": 1, "heads": 2, "hidden": 96, "position": "sincos2d", "pool": "gap"},
  "ViT-Ti/8": {"depth": 2, "position": "factored", "position_at": "shared", "registers": 2},
  "R+Ti/16": {"depth": 1},
  "cct_2_3x2_32": {},
  "cct_2_3x2_32_sine": {},
  "cvt_2_4_32": {},
  "vit_2_4_32": {},
  "Mixer-S/32": {"depth": 2},
  "R26x1": {"stages": (1, 1, 1, 1)},
  "swin_tiny_patch4_window7_224": {"depths": (2, 2), "heads": (3, 6)},
  "tf_efficientnet_b0": {},
}


def test_every_family_is_covered():
  of = models.table.find
  assert {of(name).family for name in FAMILIES} == {row.family for row in models.table.TABLE.values()}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_exported_as_onnx(tmp_path, name):
  size = 56 if models.table.find(name).family == "swin" else 32
  described = models.Description(Choice(name, FAMILIES[name]), size, 5).bind()
  draw, arrays = np.random.default_rng(0), {}
  for path, shape in layout.compute_shapes(described).items():
    spread = draw.normal(0, 0.1, shape).astype(np.float32)
    arrays[path] = np.abs(spread) + 0.5 if path.endswith(("scale", "var")) else spread
  use = stored.StoredWeights(described, arrays, stored.complete_preprocessing(size), tuple("abcde"), "softmax", [])
  assert exported.export_model(use, tmp_path / "a.onnx") < 1e-4
  assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


def test_weights_above_the_size_limit_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(exported, "LARGEST", 1000)
  with pytest.raises(ConfigError, match=r"bytes of weights are too many.*1,000.*OUT\.stablehlo"):
    convert.convert(small_weights.file(tmp_path), tmp_path / "a.onnx", None, {})
  assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_error_without_the_extra_contains_the_install_command(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "onnxruntime", None)
  with pytest.raises(ConfigError, match=r"pip install -e '\.\[onnx\]'"):
    convert.convert(tmp_path / "none.npz", tmp_path / "a.onnx", None, {})


@pytest.mark.parametrize("suffix", ["stablehlo", "onnx"])
def test_program_with_other_outputs_is_not_kept(tmp_path, monkeypatch, suffix):
  monkeypatch.setattr(exported, "_measure_difference", lambda *_: float("nan"))
  with pytest.raises(ConfigError, match="outputs of the model"):
    convert.convert(small_weights.file(tmp_path), tmp_path / f"a.{suffix}", None, {})
  assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
  ("name", "layout"),
  [
    ("a.npz", "stablehlo"),
    ("a.stablehlo", "timm"),
    ("a", "stablehlo"),
    ("a.npz", "onnx"),
    ("a.onnx", "hf"),
    ("a.onnx", "stablehlo"),
  ],
)
def test_layout_and_suffix_must_match(tmp_path, name, layout):
  with pytest.raises(ConfigError, match=f"--layout={layout}"):
    convert.convert(tmp_path / "none.npz", tmp_path / name, layout, {})
