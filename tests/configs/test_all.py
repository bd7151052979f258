"""Every shipped config: it says how to start it, it builds, and shrunk it trains two steps."""

import contextlib
import inspect
import itertools
import re

import jax
import numpy as np
import pytest

from tests import recipes
from vit_jax.sweeps import study
from vit_jax.training import build, loop

DATA = ("digits", "folder")  # whose data are here
RECIPES = [name for name in recipes.NAMES if name not in DATA]
SWEPT = [name for name in recipes.NAMES if hasattr(recipes.module(name), "sweep")]


@pytest.fixture(scope="module")
def local(photos):
  """Flags of the recipes whose data are here."""
  return {"digits": {}, "folder": {"data__path": photos}}


@pytest.mark.long
@pytest.mark.parametrize("name", DATA)
def test_a_config_trains_two_steps(name, local, tmp_path):
  run = recipes.run(name, **recipes.SHRUNK, **local[name])
  result = loop.train(build.build(run, jax.devices()), tmp_path)
  assert result["steps"] == 2
  assert np.isfinite(result["loss"])


@pytest.mark.long
@pytest.mark.sample(10)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_two_steps_and_measures_every_image(name):
  parts = build.build(recipes.narrow(name), jax.devices(), recipes.pictures)
  state = parts.create_initial_state()
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, 2):
      state, metrics = parts.step(state, batch, {})
      assert np.isfinite(metrics["loss"])
  assert int(state.step) == 2
  figures = list(parts.evals.values())[-1].measure(state.params, lambda: None).figures
  assert figures["images"] == 16
  assert all(np.isfinite(value) for value in figures.values()) and len(figures) > 1


@pytest.mark.long
@pytest.mark.parametrize("name", DATA)
def test_a_config_builds_as_it_is(name, local):
  run = recipes.run(name, **local[name], **({"batch": 16} if name == "folder" else {}))
  parts = build.build(run, jax.devices())
  assert parts.total > 0
  assert run.model.name in parts.format_overview()


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_config_says_how_to_start_it(name):
  module = recipes.module(name)
  assert re.search(rf"--config={name}[:\s]", module.__doc__)  # the form of a clone and of an installed package
  assert inspect.getdoc(module.get_config)


@pytest.mark.parametrize("name", SWEPT)
def test_every_trial_of_a_sweep_is_possible(name):
  overrides = {"init__from": "weights.npz"} if name in ("finetune", "vtab") else {}
  trials = recipes.trials(name, **overrides)
  assert [trial.error for trial in trials if trial.config is None] == []
  assert len(trials) == len(study.load_sweep(recipes.path(name)).trials)


def test_the_digits_sweep_names_three_seeds():
  sweep = study.load_sweep(recipes.path("digits"))
  assert [changes["seed"] for changes in sweep.trials] == [0, 1, 2]
  assert sweep.decide is None
