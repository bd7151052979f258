"""Tests of the context of evaluations: shared programs, and rows in order with one batch computed ahead."""

import contextlib
import dataclasses
import types

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import evals, models, schema
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog, sources
from vit_jax.evals import subject
from vit_jax.parallel import sharding
from vit_jax.schema import Choice
from vit_jax.schema.errors import NotFiniteError
from vit_jax.training import build


class Batches:
  """Row numbers in batches, the last one padded. Records whether it was closed."""

  def __init__(self, length, size, gone=()):
    self.length, self.size, self.gone, self.closed = length, size, gone, False

  def __iter__(self):
    for start in range(0, self.length, self.size):
      row = np.arange(start, start + self.size)
      yield {"row": row, "valid": np.array([r < self.length and r not in self.gone for r in row], np.float32)}

  def close(self):
    self.closed = True


@pytest.mark.parametrize(("length", "size"), [(10, 4), (8, 4), (3, 16), (5, 1)])
def test_rows_are_in_order_without_padding(length, size):
  batches, seen = Batches(length, size, gone={2}), []

  def compute(batch):
    seen.append(len(batch["row"]))
    return {"square": batch["row"] ** 2, "pair": np.stack([batch["row"]] * 2, 1), "valid": batch["valid"]}

  found = subject.compute_rows(compute, batches, lambda: None, size, str)
  expected = np.array([row for row in range(length) if row != 2])
  np.testing.assert_array_equal(found["position"], expected)
  np.testing.assert_array_equal(found["square"], expected**2)
  assert found["pair"].shape == (len(expected), 2)
  assert len(seen) == -(-length // size)
  assert batches.closed


def test_threads_end_if_a_poll_requests_a_stop():
  batches = Batches(10, 4)

  def stop():
    raise InterruptedError

  with pytest.raises(InterruptedError):
    subject.compute_rows(lambda batch: batch, batches, stop, 4, str)
  assert batches.closed


@pytest.mark.parametrize(("length", "size", "counts"), [(10, 4, [4]), (3, 16, []), (20, 4, [4, 4, 4])])
def test_fetched_batches_are_counted_on_the_screen(length, size, counts):
  shown, polls = [], []

  @contextlib.contextmanager
  def screen(*what):
    shown.append(what)
    yield types.SimpleNamespace(add=shown.append)

  source = sources.Source("made", "train", ("a", "b"), length, lambda i: (b"", 0), str)
  for screens, expected in ((None, []), (screen, [("made train", length, size), *counts])):
    measured = evals.EvalContext(None, None, None, size, None, screen=screens)
    with measured.show_progress(source, size, lambda: polls.append(0)) as poll:
      subject.compute_rows(lambda batch: {"valid": batch["valid"]}, Batches(length, size), poll, size, str)
    assert shown == expected
  assert len(polls) == 2 * -(-length // size)


@pytest.fixture(scope="module")
def parts():
  prepare_dataset("digits")
  return build.build(runs.run(), jax.devices()[:2])


def of(parts, devices=2, **changes):
  """Returns the evaluation context of a run's model on some devices."""
  grid = sharding.make_mesh(parts.run.mesh, jax.devices()[:devices])
  model = models.make_functional(parts.model.description.replace(**changes)).place_on(grid)
  return evals.EvalContext(model, grid, parts.run.data, 16, catalog.open_split, parts.task.predict)


def digits(**args):
  return schema.bind(Choice("digits", {"image_size": 32, **args}), catalog.DATA["digits"], catalog.DATA)


@pytest.mark.heavy
def test_evaluations_with_equal_normalisation_share_a_program(parts):
  measured, other, gray = of(parts), digits(test="train[:50]"), digits(mean=(0.4, 0.4, 0.4))
  assert measured.compile_predictions(None, False) is measured.compile_predictions(other, False)
  assert measured.compile_predictions(None, False) is not measured.compile_predictions(None, True)
  assert measured.compile_features(None) is not measured.compile_features(gray)


@pytest.mark.heavy
def test_evaluation_batch_must_divide_over_the_devices(parts):
  assert of(parts).choose_batch_size(None) == 16
  with schema.enter_key("here"), pytest.raises(schema.ConfigError) as error:
    of(parts).choose_batch_size(15)
  assert error.value.place == "here.batch"
  assert all(word in str(error.value) for word in ("15", "2 devices"))


@pytest.mark.heavy
def test_identity_depends_on_model_and_weights_and_not_on_devices(parts):
  params = jax.device_get(parts.create_initial_state().params)
  changed = params | {"norm/bias": params["norm/bias"] + 1e-3}
  measured = of(parts)
  assert measured.compute_identity(params) == of(parts, devices=1).compute_identity(params)
  assert (
    len(
      {
        measured.compute_identity(params),
        measured.compute_identity(changed),
        of(parts, image_size=48).compute_identity(params),
      }
    )
    == 3
  )


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["ViT-S/16", "cct_2_3x2_32", "Mixer-S/16", "swin_tiny_patch4_window7_224"])
def test_logits_are_the_product_of_features_and_head(name):
  small = {"width": 16, "hidden": 16, "heads": 2, "depth": 1}
  if name.startswith("Mixer"):
    small = {"width": 16, "depth": 1}
  if name.startswith("swin"):
    small = {"width": 16, "depths": (1, 1), "heads": (1, 2)}
  size = 56 if name.startswith("swin") else 32
  model = models.make_functional(models.Description(Choice(name, small), size, 5))
  params = model.init(jax.random.key(0))
  params["head/kernel"] = jax.random.normal(jax.random.key(1), params["head/kernel"].shape)
  images = np.random.default_rng(0).standard_normal((2, size, size, 3), np.float32)
  output, _ = model.outputs(params, images)
  logits = np.asarray(output.features) @ np.asarray(params["head/kernel"]) + np.asarray(params["head/bias"])
  np.testing.assert_allclose(output.logits, logits, rtol=1e-4, atol=1e-4)
  np.testing.assert_array_equal(output.heads["head"], output.logits)


@pytest.mark.heavy
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("images", ["one", "all"])
def test_error_of_logits_that_are_not_finite_names_the_image(parts, value, images):
  measured = of(parts)
  fifth = np.asarray(next(iter(measured.open_batches(None, measured.open_images(None, "test[:16]"), 16)))["image"])[5]

  def predict(params, batch, labels, classes):
    rows = parts.task.predict(params, batch, labels, classes)
    chosen = (
      jax.numpy.ones(len(batch), bool) if images == "all" else (abs(batch - (fifth / 127.5 - 1)) < 1e-3).all((1, 2, 3))
    )
    logits = rows["logits"].at[:, 3].set(jax.numpy.where(chosen, value, rows["logits"][:, 3]))
    return rows | {"logits": logits}  # the best class of each image stays plausible

  broken = dataclasses.replace(measured, predict=predict)
  with schema.enter_key("config.evals.test"):
    measure = evals.accuracy(broken, split="test[:16]")
  with pytest.raises(NotFiniteError) as error:
    measure(parts.create_initial_state().params, lambda: None)
  named = measured.open_images(None, "test[:16]").display_name(0 if images == "all" else 5)
  assert str(error.value).startswith(f"config.evals.test: image {named!r}: output 'logits' is not finite")
