"""Tests of EfficientNet files with timm's names."""

import functools

import jax
import numpy as np
import pytest

from tests import modules
from vit_jax import importers, models
from vit_jax.importers import layout
from vit_jax.models import Description
from vit_jax.models.published import efficientnet as published
from vit_jax.schema import Choice, ConfigError

SHRUNK = {"width_factor": 0.3, "stages": (2, 1, 2)}


@functools.cache
def parameters(size):
  """Returns {path: shape} of a published size. This takes seconds."""
  return {path: leaf.shape for path, leaf in modules.shapes(f"efficientnet_{size}").items()}


def describe(model_name, **arguments):
  return Description(Choice(model_name, SHRUNK | arguments), 24, 5)


def tensors_of(description, ours=None):
  """Returns the shapes of a file's tensors, and one of the counters that files also contain."""
  entries = layout.list_entries(importers.find_layout(description, "timm"), ours or layout.compute_shapes(description))
  found = {entry.name: jax.ShapeDtypeStruct(entry.shape, np.float32) for entry in entries}
  return found | {"bn1.num_batches_tracked": jax.ShapeDtypeStruct((), np.int64)}


@pytest.mark.sample(2)
@pytest.mark.heavy
@pytest.mark.parametrize("name", published.NAMES)
def test_every_published_file_is_recognised(name):
  size = models.find(name).image_size
  tensors = tensors_of(Description(Choice(name), size, 1000), parameters(name.rpartition("_")[2]))
  tf = name.startswith("tf_")
  for hints in ({"name": f"{name}.in1k"}, {"padding": "SAME" if tf else "symmetric", "norm_eps": 1e-3 if tf else 1e-5}):
    found = importers.recognise(tensors, hints)
    assert found.layout.name == "timm" and found.description == Description(Choice(name, {}), size, 1000)
  assert importers.recognise(tensors, {"image_size": 64}).description.image_size == 64


@pytest.mark.heavy
@pytest.mark.parametrize(
  "arguments",
  [
    SHRUNK,
    {"width_factor": 0.25, "stages": (1,)},
    {"width_factor": 1.3, "depth_factor": 1.7},
    {"width_factor": 0.625, "depth_factor": 0.2},
    {"stages": (1, 2, 2, 3, 3, 4, 2)},
  ],
)
def test_unpublished_sizes_are_recognised_by_their_shapes(arguments):
  given = Description(Choice("tf_efficientnet_b0", arguments | {"eps": 0.01}), 32, 0, 1)
  found = importers.recognise(tensors_of(given), {"name": "timm/tf_efficientnet", "norm_eps": 0.01}).description
  assert (found.model.name, found.classes, found.channels) == ("tf_efficientnet_b0", 0, 1)
  assert found.model.args["eps"] == 0.01
  assert layout.compute_shapes(found) == layout.compute_shapes(given)


def test_written_file_is_read_back_as_the_same_model():
  given = describe("efficientnet_b0")
  ours = {
    path: np.random.default_rng(0).standard_normal(shape, np.float32)
    for path, shape in layout.compute_shapes(given).items()
  }
  tensors = importers.export_tensors(ours, given, "timm") | {"bn2.num_batches_tracked": np.zeros((), np.int64)}
  assert tensors["blocks.0.1.conv_pw.weight"].shape == (8, 8, 1, 1)
  assert tensors["blocks.2.1.se.conv_reduce.weight"].shape == (4, 96, 1, 1)
  found = importers.recognise(tensors, {"image_size": 24})
  arrays = found.read()
  assert arrays.keys() == ours.keys()
  for path, value in ours.items():
    np.testing.assert_array_equal(arrays[path], value, err_msg=path)


def test_impossible_widths_are_an_error():
  tensors = tensors_of(describe("efficientnet_b0"))
  tensors["conv_stem.weight"] = jax.ShapeDtypeStruct((800, 3, 3, 3), np.float32)
  with pytest.raises(ConfigError, match=r"widths .800, 8, 8, 16, 384. of stem, stages and top"):
    importers.recognise(tensors)


@pytest.mark.parametrize("missing", ["blocks.0.0.se.conv_reduce.weight", "bn2.weight", "blocks.0.0.conv_dw.weight"])
def test_related_networks_with_missing_tensors_are_not_recognised(missing):
  tensors = tensors_of(describe("efficientnet_b0"))
  del tensors[missing]
  with pytest.raises(ConfigError, match="no known model"):
    importers.recognise(tensors)
