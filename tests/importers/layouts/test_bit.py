"""Tests of the two layouts of BiT files."""

import re

import numpy as np
import pytest

from vit_jax import models
from vit_jax.importers import layout
from vit_jax.importers.layouts import bit as importer
from vit_jax.models.published import bit as published
from vit_jax.schema import Choice


class Shape:
  """A tensor that has only a shape."""

  def __init__(self, shape):
    self.shape = shape


def tensors(chosen, description):
  """Returns random parameters, and the tensors of their file in this layout."""
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(shape, np.float32) for path, shape in layout.compute_shapes(description).items()}
  return arrays, layout.write(chosen, arrays, description)


@pytest.mark.heavy
@pytest.mark.parametrize("chosen", importer.LAYOUTS, ids=lambda chosen: chosen.name)
@pytest.mark.parametrize(
  ("name", "arguments", "classes", "channels"),
  [
    ("R26x1", {}, 7, 1),
    ("R26x1", {"width_factor": 1.5}, 7, 3),
    ("R26x1", {"stages": (2, 11)}, 2, 3),
    ("R26x1", {"width_factor": 0.5, "stages": (2, 1)}, 0, 3),
  ],
)
def test_file_is_described_and_read_back(chosen, name, arguments, classes, channels):
  described = models.Description(Choice(name, arguments), 160, classes, channels)
  arrays, file = tensors(chosen, described)
  shapes = {name: Shape(tensor.shape) for name, tensor in file.items()}
  assert [other.name for other in importer.LAYOUTS if other.recognises(shapes)] == [chosen.name]
  assert chosen.describe(shapes, {"image_size": 160}) == described
  back = layout.read(chosen, file, described)
  assert back.keys() == arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, err_msg=path)


def test_published_sizes_are_recognised_with_224_pixels():
  for name, (factor, stages) in published.SIZES.items():
    shapes = {
      "root_block/conv_root/kernel": Shape((7, 7, 3, 64 * factor)),
      "head/kernel": Shape((2048 * factor, 21843)),
    }
    shapes |= {
      f"block{i}/unit{j + 1:02}/gn1/scale": Shape(()) for i, units in enumerate(stages, 1) for j in range(units)
    }
    assert importer.LAYOUTS[0].describe(shapes, {}) == models.Description(Choice(name, {}), 224, 21843, 3)


def test_tensor_names_match_the_two_original_codes():
  _, one = tensors(importer.LAYOUTS[0], models.Description(Choice("R50x1", {"stages": (12,)}), 32, 5, 3))
  assert one["block1/unit12/gn3/scale"].shape == (1, 1, 1, 64)
  assert one["block1/unit01/conv_proj/kernel"].shape == (1, 1, 64, 256)
  assert one["norm-pre-head/bias"].shape == (1, 1, 1, 256) and one["head/kernel"].shape == (256, 5)
  _, two = tensors(importer.LAYOUTS[1], models.Description(Choice("R50x1", {"stages": (12,)}), 32, 5, 3))
  assert two["resnet/block1/unit12/c/group_norm/gamma"].shape == (64,)
  assert two["resnet/block1/unit01/a/proj/standardized_conv2d/kernel"].shape == (1, 1, 64, 256)
  assert two["resnet/group_norm/beta"].shape == (256,) and two["resnet/head/conv2d/kernel"].shape == (1, 1, 256, 5)
  assert len(one) == len(two)


def test_numbers_in_convolution_names_are_removed():
  chosen = importer.LAYOUTS[1]
  described = models.Description(Choice("R26x1", {"stages": (2, 1)}), 224, 5, 3)
  _, file = tensors(chosen, described)
  numbered = {
    re.sub(r"/standardized_conv2d/", f"/standardized_conv2d_{i}/", name): tensor
    for i, (name, tensor) in enumerate(file.items())
  }
  assert numbered.keys() != file.keys() and chosen.recognises(numbered)
  assert chosen.describe(numbered, {}).model.args == {"stages": (2, 1)}
  found = chosen.canonical(numbered, {})
  assert found.keys() == file.keys() and all(found[name] is file[name] for name in file)
