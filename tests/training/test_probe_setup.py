"""The assembly of a measurement: weights of a file fitted to it, what cannot be measured."""

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import config, models
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.schema import ConfigError
from vit_jax.training import probe_setup

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def weights():
  """A narrow CCT for 32 px with parameters as they are drawn."""
  prepare_dataset("digits")
  description = models.Description(runs.run().model, 32, 10)
  return description, jax.device_get(models.make_functional(description).init(jax.random.key(0)))


def measurement(**fields):
  evals = {"digits": {"name": "fewshot", "data": {"name": "digits"}}}
  return config.resolve(config.measurement(**({"evals": evals} | fields)), config.Measurement)


@pytest.mark.parametrize("size", [None, 48])
def test_weights_are_measured_at_the_size_that_is_asked_for(weights, size):
  parts = probe_setup.build(measurement(image_size=size), *weights, jax.devices()[:1])
  assert parts.params["position/table"].shape == (((size or 32) // 4) ** 2, 16)
  assert any("resampled" in note for note in parts.notes) == bool(size)
  told = parts.notes[0]
  assert f"images of {size or 32} px" in told and ("--config.image_size=" in told) == (size is None)
  assert not any(path.startswith("head") for path in parts.params)
  assert all(np.isfinite(value).all() for value in parts.params.values())


def test_accuracy_is_for_another_verb(weights):
  with pytest.raises(ConfigError) as error:
    probe_setup.build(measurement(evals={"a": {"name": "accuracy"}}), *weights, jax.devices()[:1])
  assert error.value.place == "config.evals.a.name"
  assert "vit_jax.evaluate" in str(error.value)


def test_oblong_weights_need_a_size(weights):
  description, arrays = weights
  with pytest.raises(ConfigError) as error:
    probe_setup.build(measurement(), description.replace(image_size=(32, 64)), arrays, jax.devices()[:1])
  assert "config.image_size" in str(error.value)
