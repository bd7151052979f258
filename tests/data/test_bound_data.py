"""Tests of bound data choices: their values, and the functions that they call."""

import pickle

import numpy as np
import pytest

from vit_jax import schema
from vit_jax.data import catalog, stream
from vit_jax.data.bound_data import EvalData, TrainData
from vit_jax.data.sources import Source
from vit_jax.data.views import Fields
from vit_jax.schema import Choice

NARROW = {"image_size": 8, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.25, 0.125), "exif": True, "max_bad": 0.5}


def bound(table=catalog.DATA, **args):
  return schema.bind(Choice("digits", NARROW | args), table["digits"], table)


def source():
  return Source("made", "all", ("a", "b"), 6, None, str)


def test_evaluation_data_have_no_training_values():
  assert type(bound()) is TrainData and type(bound(catalog.EVAL_DATA)) is EvalData


def test_values_match_the_config():
  data = bound(flip=False, warp={"name": "affine"})
  assert (data.image_size, data.exif, data.max_bad, data.skips, data.flip) == (8, True, 0.5, False, False)
  assert (data.warp.name, data.mixing.name, data.erasing.name, data.policy.name) == ("affine", "none", "none", "none")
  assert (data.split, data.test_split, data.path, data.parts) == (data.args["train"], data.args["test"], None, ())
  assert data.normalisation == {"mean": NARROW["mean"], "std": NARROW["std"]}


def test_preparation_leaves_out_keys_of_the_dataset():
  data = bound()
  assert "exif" not in data.preparation and "train" not in data.preparation
  assert data.seen.items() <= data.preparation.items()
  assert bound(catalog.EVAL_DATA, **data.preparation).preparation == data.preparation


def test_images_have_the_limits_of_the_choice():
  data = bound(on_error="skip", max_pixels=100, max_aspect=3.0)
  assert data.images(source()).bounds == (100, 3.0, True)
  assert data.skips and not bound().skips


def test_examples_have_the_size_of_the_choice():
  data = bound()
  assert data.eval_examples(source()).shapes["image"] == ((8, 8, 3), np.uint8)
  whole = data.train_examples(source(), 0, Fields(), 2)
  cut = data.train_examples(source(), 0, Fields(4), 2)
  assert isinstance(whole, stream.Examples) and cut.shapes["image"] == ((4, 48), np.uint8)
  assert "threads" not in data.seen and "core" in data.suggest_settings(whole)


@pytest.mark.heavy
def test_denormalise_inverts_normalise():
  images = np.arange(0, 255, 5, np.uint8).reshape(-1, 3)
  normalised = bound().normalise(images)
  np.testing.assert_allclose(normalised, (images / 255 - NARROW["mean"]) / NARROW["std"], atol=1e-5)
  np.testing.assert_allclose(bound().denormalise(normalised), images / 255, atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_worker_processes_receive_the_choice(workers):
  data = bound(workers=workers)
  assert (data.create_workers(source, 6) is not None) == bool(workers)
  assert pickle.loads(pickle.dumps(data)) == data
