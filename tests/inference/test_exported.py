"""A model as a program: what another process makes of the file alone is what the model says."""

import json

import jax
import numpy as np
import pytest
from jax import export

from tests import small_weights
from vit_jax import convert, models
from vit_jax.inference import exported, stored
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy


def test_the_file_alone_gives_the_logits_of_any_number_of_images(tmp_path):
  labels = {str(i): name for i, name in enumerate(small_weights.CLASSES)}
  source = small_weights.file(tmp_path, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4], id2label=labels)
  said = convert.convert(source, tmp_path / "a.stablehlo", "stablehlo", {})
  assert "cpu, cuda, tpu" in said and "apart" in said
  program = export.deserialize(bytearray((tmp_path / "a.stablehlo").read_bytes()))
  assert program.platforms == ("cpu", "cuda", "tpu")
  use = stored.load(source)
  model = models.functional(use.description)
  for count in (1, 5):
    images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    normalised = ((images / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]).astype(np.float32)
    logits = jax.jit(model.outputs)(use.arrays, normalised)[0].logits
    np.testing.assert_allclose(program.call(images), logits, atol=1e-4 * float(np.abs(logits).max()))
  about = json.loads((tmp_path / "a.json").read_text())
  assert about["classes"] == list(small_weights.CLASSES) and about["mean"] == [0.4, 0.5, 0.6]
  assert about["image_size"] == 32 and about["test_crop"]["name"] == "resize"
  with pytest.raises(ConfigError, match="is there already"):
    convert.convert(source, tmp_path / "a.stablehlo", None, {})
  with pytest.raises(ConfigError, match=r"a\.json is there already"):
    (tmp_path / "a.stablehlo").unlink()
    convert.convert(source, tmp_path / "a.stablehlo", None, {})


def test_a_program_that_says_something_else_is_not_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(exported, "_apart", lambda *_: float("nan"))
  with pytest.raises(ConfigError, match="differ by nan"):
    convert.convert(small_weights.file(tmp_path), tmp_path / "a.stablehlo", None, {})
  assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(("name", "layout"), [("a.npz", "stablehlo"), ("a.stablehlo", "timm"), ("a", "stablehlo")])
def test_layout_and_ending_must_agree(tmp_path, name, layout):
  with pytest.raises(ConfigError, match=f"--layout={layout}"):
    convert.convert(tmp_path / "none.npz", tmp_path / name, layout, {})
