"""Tests of reading and writing MLP-Mixer files."""

import numpy as np
import pytest

from vit_jax import models, schema
from vit_jax.importers import layout
from vit_jax.importers.layouts import mixer as importer

SIZE = {"width": 12, "depth": 2, "token_hidden": 10, "hidden": 14}


def make_tensors(name, which, image_size=64, arguments=SIZE):
  """Returns the layout, the tensors and the parameters by path of a small model."""
  chosen = next(one for one in importer.LAYOUTS if one.name == which)
  description = models.Description(schema.Choice(name, arguments), image_size, 5)
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(shape, np.float32) for path, shape in layout.compute_shapes(description).items()}
  return chosen, layout.write(chosen, arrays, description), arrays


@pytest.mark.parametrize(("which", "name"), [("vit_jax", "Mixer-S/16"), ("timm", "mixer_s16_224")])
def test_written_tensors_are_described_and_read_back(which, name):
  chosen, tensors, arrays = make_tensors(name, which)
  assert [one.name for one in importer.LAYOUTS if one.recognises(tensors)] == [which]
  description = chosen.describe(tensors, {})
  assert description == models.Description(schema.Choice(name, SIZE), 64, 5, 3)
  found = layout.read(chosen, tensors, description)
  assert set(found) == set(arrays) and all(np.array_equal(found[path], arrays[path]) for path in arrays)


def test_torch_matrices_are_transposed():
  _, tensors, arrays = make_tensors("mixer_s16_224", "timm")
  np.testing.assert_array_equal(tensors["blocks.1.mlp_tokens.fc1.weight"], arrays["blocks/1/tokens/up/kernel"].T)
  np.testing.assert_array_equal(tensors["stem.proj.weight"], arrays["embedding/kernel"].transpose(3, 2, 0, 1))


def test_published_size_is_recognised_without_overrides():
  chosen, tensors, _ = make_tensors("Mixer-S/32", "vit_jax", arguments={})
  del tensors["head/kernel"], tensors["head/bias"]
  assert chosen.describe(tensors, {}) == models.Description(schema.Choice("Mixer-S/32", {}), 64, 0, 3)
  other = chosen.describe(tensors, {"gelu": "erf", "norm_eps": 1e-5}).model
  assert other == schema.Choice("mixer_s32_224", {"eps": 1e-5})


def test_patch_without_a_timm_name_keeps_the_gelu_of_torch():
  chosen, tensors, _ = make_tensors("Mixer-H/14", "timm", image_size=28)
  model = chosen.describe(tensors, {}).model
  assert model.name == "Mixer-H/14" and model.args["gelu"] == "erf"


def test_rectangular_images_need_a_hint():
  chosen, tensors, _ = make_tensors("Mixer-S/16", "vit_jax", image_size=(32, 48))
  with pytest.raises(schema.ConfigError, match=r"made for 6 patches, which do not form a square. Give the image size"):
    chosen.describe(tensors, {"image_size": 224})
  assert chosen.describe(tensors, {"image_size": (32, 48)}).image_size == (32, 48)


def test_patch_without_a_model_name_is_an_error():
  chosen, tensors, _ = make_tensors("Mixer-S/16", "vit_jax")
  tensors["stem/kernel"] = np.zeros((8, 8, 3, 12), np.float32)
  with pytest.raises(schema.ConfigError, match=r"patch 8. Allowed: 14, 16, 32"):
    chosen.describe(tensors, {})
