"""The subject of evaluations: programs are shared, identity follows from the weights."""

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import build, config, measure, mesh, models, schema
from vit_jax.data import catalog
from vit_jax.prepare import prepare
from vit_jax.schema import Choice


@pytest.fixture(scope="module")
def run():
  prepare("digits")
  return runs.run()


def bound(args):
  """The digits at 32 px, as an evaluation has them."""
  return schema.bind(Choice("digits", {"image_size": 32, **args}), schema.lookup(catalog.EVAL_DATA, "digits"))


def test_evaluations_of_images_that_are_normalised_alike_share_a_program(run):
  grid = mesh.make(run.mesh, jax.devices()[:2])
  given = measure.subject(
    models.Description(run.model, 32, 10), grid, run.data, 16, catalog.open_split, lambda normalise: None
  )
  other = bound({"test": "train[:50]"})
  gray = bound({"mean": (0.4, 0.4, 0.4)})
  assert given.predict(None, False) is given.predict(other, False)
  assert given.predict(None, False) is not given.predict(None, True)
  assert given.features(None) is not given.features(gray)
  assert given.size(None) == 16
  with pytest.raises(schema.ConfigError, match=r"config.evals.x.batch: 15 does not"), schema.at("config.evals.x"):
    given.size(15)


def test_identity_follows_from_the_model_and_its_weights(run):
  parts = build.build(run, jax.devices()[:2])
  description = models.Description(run.model, 32, 10)

  def identity(params, description=description, devices=2):
    grid = mesh.make(run.mesh, jax.devices()[:devices])
    return measure.subject(description, grid, run.data, 16, catalog.open_split, None).identity(params)

  params = jax.device_get(parts.init().params)
  changed = params | {"norm/bias": params["norm/bias"] + 1e-3}
  assert identity(params) == identity(params, devices=1)
  assert len({identity(params), identity(changed), identity(params, description.replaced(image_size=48))}) == 3


def test_weights_are_measured_at_the_size_that_is_asked_for(run):
  description = models.Description(run.model, 32, 10)
  arrays = {path: np.asarray(value) for path, value in models.functional(description).init(jax.random.key(0)).items()}
  evals = {"digits": {"name": "fewshot", "data": {"name": "digits"}}}
  for size in (None, 48):
    wanted = config.resolve(config.measurement(evals=evals, image_size=size), config.Measurement)
    found = measure.of_weights(wanted, description, arrays, jax.devices()[:1])
    tokens = ((size or 32) // 4) ** 2
    assert found.params["position/table"].shape == (tokens, 16)
    assert any("resampled" in note for note in found.notes) == bool(size)
    assert not any(path.startswith("head") for path in found.params)
