"""Tests of the metrics of masked patches, against the mean over single images."""

import contextlib

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import evals
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog
from vit_jax.evals.subject import EvalContext
from vit_jax.schema import ConfigError
from vit_jax.training import build

pytestmark = pytest.mark.heavy

SMALL = {"model__name": "ViT-Ti/8", "model__depth": 1, "model__width": 16, "model__heads": 2, "model__hidden": 16}
TASKS = {"masked_patches": "accuracy", "masked_autoencoder": "rmse"}


def parts(name, **changes):
  prepare_dataset("digits")
  keys = {"task__name": name, "task__label_smoothing": "default", "evals__test__name": "masked"}
  keys |= {"task__width": 16, "task__depth": 1, "task__heads": 2} if name == "masked_autoencoder" else {}
  return build.build(runs.run(**(SMALL | keys | changes)), jax.devices())


@pytest.mark.long
@pytest.mark.parametrize("name", TASKS)
def test_figures_are_the_means_over_single_images(name):
  made = parts(name, evals__test__split="test[:40]", evals__test__batch=16)  # the last batch is padded
  params = made.create_initial_state().params
  figures = made.evals["test"].measure(params, lambda: None).figures
  subject = EvalContext(made.model, made.mesh, made.run.data, 40, catalog.open_split)
  with contextlib.closing(subject.open_batches(None, subject.open_images(None, "test[:40]"), 40)) as batches:
    images = np.asarray(next(batches)["image"], np.float32) / 127.5 - 1
  predict = jax.jit(build.build(made.run, jax.devices()[:1]).task.predict)
  params, label = jax.device_get(params), np.zeros(1, np.int32)
  alone = [predict(params, images[i : i + 1], label) for i in range(40)]
  assert figures["images"] == 40
  for figure in ("loss", TASKS[name]):
    assert figures[figure] == pytest.approx(np.mean([float(rows[figure][0]) for rows in alone]), rel=1e-5)
  assert set(figures) == {"loss", TASKS[name], "images"} <= set(evals.list_figure_names(made.run.evals["test"]))


def test_masked_evaluation_of_a_classifier_is_refused():
  prepare_dataset("digits")
  with pytest.raises(ConfigError, match=r"config\.evals\.test\.name.*does not mask patches. Use 'accuracy'"):
    build.build(runs.run(**SMALL, evals__test__name="masked"), jax.devices())


@pytest.mark.parametrize("name", TASKS)
def test_patch_predictions_that_are_not_finite_are_an_error(name):
  made = parts(name, evals__test__split="test[:16]", evals__test__batch=16)
  params = made.create_initial_state().params
  params["norm/bias"] = params["norm/bias"] * np.nan
  with pytest.raises(ConfigError, match=r"config\.evals\.test: image '.*': output 'loss' is not finite"):
    made.evals["test"].measure(params, lambda: None)
