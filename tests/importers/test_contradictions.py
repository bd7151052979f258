"""vit_jax/importers/contradictions.py: what files next to weights state must be true of the tensors."""

import json

import pytest
import safetensors.numpy

from tests import hostile
from vit_jax import importers
from vit_jax.schema import ConfigError

VIT = {"image_processor_type": "ViTImageProcessor"}


def folder(path, prepared, config=None, model="hf"):
  safetensors.numpy.save_file(hostile.good(model), path / "model.safetensors")
  (path / "preprocessor_config.json").write_text(json.dumps(prepared))
  (path / "config.json").write_text(json.dumps(config or {}))
  return path


@pytest.mark.parametrize(
  ("changes", "says"),
  [
    ({"size": {"height": 16, "width": 64}}, "makes images of 16 x 64 px"),
    ({"size": {"height": 32, "width": 64}}, "makes images of 32 x 64 px"),
    ({"size": 16}, "makes images of 16 px"),
    ({"size": 64, "do_center_crop": True, "crop_size": 48}, "makes images of 48 px"),
  ],
)
def test_a5_a_size_that_is_not_that_of_the_model_is_refused(tmp_path, changes, says):
  with pytest.raises(ConfigError) as error:
    importers.inspect(folder(tmp_path, VIT | changes))
  assert f"preprocessor_config.json next to it {says}; the tensors are those of a model for 32 px" in str(error.value)


@pytest.mark.parametrize("changes", [{"size": 32}, {"size": None}, {"size": 64, "do_resize": False}])
def test_a5_a_size_that_is_that_of_the_model_or_not_stated_is_read(tmp_path, changes):
  recognised = importers.inspect(folder(tmp_path, VIT | changes | {"do_normalize": False, "gamma": 2}))
  assert recognised.beside.normalised == {"mean": (0.0,) * 3, "std": (1.0,) * 3}
  assert "preprocessor_config.json has keys that are not read: gamma" in recognised.notes
