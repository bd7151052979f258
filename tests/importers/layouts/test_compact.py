"""Tests of files of compact transformers: their published name, and the facts in their position table."""

import numpy as np
import pytest

from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.importers.layouts import compact
from vit_jax.models import Description, positions
from vit_jax.models.published.compact import VARIANTS
from vit_jax.schema import Choice, ConfigError

LAYOUT = compact.LAYOUTS[0]
TABLE = "classifier.positional_emb"


def make_tensors(name, image_size, classes, **arguments):
  """Returns tensors by the official names, and parameters by path."""
  description = Description(Choice(name, arguments), image_size, classes)
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(shape, np.float32) for path, shape in layout.compute_shapes(description).items()}
  return layout.write(LAYOUT, arrays, description), arrays


@pytest.mark.parametrize(
  "name", ["vit_2_4_32", "cvt_6_4_32", "cct_4_3x2_32_sine", "cct_7_3x1_32", "cct_7_3x1_32_c100", "cct_7_7x2_224"]
)
def test_file_is_recognised_under_its_published_name(name):
  variant, _ = VARIANTS[name]
  tensors, _ = make_tensors(name, variant.image_size, variant.classes)
  found = importers.recognise(tensors).description
  assert (found.model.name, found.classes, found.image_size) == (name, variant.classes, variant.image_size)
  assert found.model.args == {}


def test_sine_table_of_any_length_is_recognised_by_its_values():
  tensors, arrays = make_tensors("cct_7_3x2_32_sine", 32, 10)
  np.testing.assert_allclose(tensors[TABLE][0], positions.compute_sine(64, 256))
  for tokens in (64, 196):  # one published file contains a longer table
    found = importers.recognise(tensors | {TABLE: positions.compute_sine(tokens, 256)[None]})
    assert found.description.model.name == "cct_7_3x2_32_sine" and found.read().keys() == arrays.keys()


def test_ambiguous_image_size_defaults_to_the_published_size():
  tensors, _ = make_tensors("cct_7_7x2_224", 224, 10)
  assert importers.recognise(tensors).description.image_size == 224
  assert importers.recognise(tensors, {"image_size": 222}).description.image_size == 222
  assert importers.recognise(tensors, {"image_size": 100}).description.image_size == 224


def test_table_that_is_not_a_square_needs_the_image_size():
  tensors, _ = make_tensors("cct_2_3x2_32", (32, 48), 10)
  with pytest.raises(ConfigError, match=r"96 patches, which no square image has\. .*--image-size=HEIGHT,WIDTH"):
    importers.recognise(tensors)
  assert importers.recognise(tensors, {"image_size": (32, 48)}).description.image_size == (32, 48)


def test_registers_cannot_be_stored():
  with pytest.raises(ConfigError, match="cannot store registers"):
    make_tensors("vit_2_4_32", 32, 10, registers=2)
