"""Models as functions, and the subject of evaluations: programs are shared, features are what goes into the head."""

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import build, config, importers, measure, mesh, models, schema
from vit_jax.data import catalog
from vit_jax.prepare import prepare
from vit_jax.schema import Choice


@pytest.fixture(scope="module")
def run():
  prepare("digits")
  return runs.run()


@pytest.mark.parametrize("name", ["ViT-S/16", "cct_2_3x2_32", "Mixer-S/16", "swin_tiny_patch4_window7_224"])
def test_features_are_what_the_head_is_a_product_of(name):
  small = {"width": 16, "hidden": 16, "heads": 2, "depth": 1}
  if name.startswith("Mixer"):
    small = {"width": 16, "depth": 1}
  if name.startswith("swin"):
    small = {"width": 16, "depths": (1, 1), "heads": (1, 2)}
  model = schema.bind(Choice(name, small), (models.lookup(name),), "model")
  size = 56 if name.startswith("swin") else 32
  whole, headless = (measure.functional(model, size, classes) for classes in (5, 0))
  params = whole.parameters(jax.random.key(0))
  images = np.random.default_rng(0).standard_normal((2, size, size, 3), np.float32)
  params["head/kernel"] = jax.random.normal(jax.random.key(1), params["head/kernel"].shape)
  features = np.asarray(headless.apply(params, images, None)[0])
  logits = features @ np.asarray(params["head/kernel"]) + np.asarray(params["head/bias"])
  np.testing.assert_allclose(whole.apply(params, images, None)[0], logits, rtol=1e-4, atol=1e-4)


def test_evaluations_of_images_that_are_normalised_alike_share_a_program(run):
  grid = mesh.make(run.mesh, jax.devices()[:2])
  given = measure.subject(
    importers.Description(run.model, 32, 10), grid, run.data, 16, catalog.open_split, lambda normalise: None
  )
  other = catalog.bind(Choice("digits", {"image_size": 32, "test": "train[:50]"}))
  gray = catalog.bind(Choice("digits", {"image_size": 32, "mean": (0.4, 0.4, 0.4)}))
  assert given.predict(None, False) is given.predict(other, False)
  assert given.predict(None, False) is not given.predict(None, True)
  assert given.features(None) is not given.features(gray)
  assert given.size(None, "here") == 16
  with pytest.raises(schema.ConfigError, match=r"here.batch: 15 does not divide over 2 devices"):
    given.size(15, "here")


def test_identity_follows_from_the_model_and_its_weights(run):
  parts = build.build(run, jax.devices()[:2])
  description = importers.Description(run.model, 32, 10)

  def identity(params, description=description, devices=2):
    grid = mesh.make(run.mesh, jax.devices()[:devices])
    return measure.subject(description, grid, run.data, 16, catalog.open_split, None).identity(params)

  params = jax.device_get(parts.init().params)
  changed = params | {"norm/bias": params["norm/bias"] + 1e-3}
  assert identity(params) == identity(params, devices=1)
  assert len({identity(params), identity(changed), identity(params, description._replace(image_size=48))}) == 3


def test_weights_are_measured_at_the_size_that_is_asked_for(run):
  description = importers.Description(run.model, 32, 10)
  arrays = {
    path: np.asarray(value)
    for path, value in measure.functional(run.model, 32, 10).parameters(jax.random.key(0)).items()
  }
  evals = {"digits": {"name": "fewshot", "data": {"name": "digits"}}}
  for size in (None, 48):
    wanted = config.resolve(config.measurement(evals=evals, image_size=size), config.Measurement)
    found = measure.of_weights(wanted, description, arrays, jax.devices()[:1])
    tokens = ((size or 32) // 4) ** 2
    assert found.params["position/table"].shape == (tokens, 16)
    assert any("resampled" in note for note in found.notes) == bool(size)
    assert not any(path.startswith("head") for path in found.params)
