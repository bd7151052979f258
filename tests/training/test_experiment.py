"""Intervals and actions of an experiment; test_build has its assembly, test_loop its use."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax.training import build, experiment

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def parts():
  """A run of 12 steps that saves every 3, logs every 2 and keeps every 5."""
  return runs.parts(1, checkpoint__keep_every=5, optim__ema=0.5)


def test_intervals_are_whole_steps_and_kept_steps_are_saved_ones(parts):
  assert (parts.total, parts.save_every, parts.log_every, parts.keep_every) == (12, 3, 2, 6)
  assert parts.epoch_length == parts.images.source.epoch_length == len(parts.images.source)
  assert parts.count_steps(parts.run.total) == 12


def test_the_evaluation_of_the_last_step_is_not_due_before_it(parts):
  assert [step for step in range(13) if parts.find_due_evals(step)] == [6]


def test_an_evaluation_measures_the_weights_and_their_average(parts):
  state = parts.create_initial_state()
  state = dataclasses.replace(state, ema=jax.tree.map(lambda leaf: leaf + 1, state.ema))
  seen = []

  def measure(params, poll):
    seen.append(float(np.sum(params["head/bias"])))
    return "outcome"

  due = {"test": experiment.Eval(1, measure)}
  assert parts.evaluate(due, state, lambda: None) == {"": "outcome", "ema_": "outcome"}
  assert seen == [0.0, 10.0]


def test_given_weights_replace_random_ones_and_their_average(parts):
  random, bias = parts.create_initial_state(), np.arange(10, dtype=np.float32)
  state = parts.create_initial_state({"head/bias": bias, "unknown": bias})
  np.testing.assert_array_equal(state.params["head/bias"], bias)
  np.testing.assert_array_equal(state.ema["head/bias"], bias)
  assert state.params.keys() == random.params.keys()
  np.testing.assert_array_equal(state.params["head/kernel"], random.params["head/kernel"])


def test_splits_of_training_and_evaluations_are_recorded_once(parts):  # `parts` prepares the data
  probe = {"evals.probe.name": "fewshot", "evals.probe.data.name": "digits", "evals.probe.test": "train[:50]"}
  run = runs.run(**probe)

  def list_splits(training):
    return [(each.key, each.name) for each in build.build(run, jax.devices()[:1], training=training).splits]

  own = "config.evals.probe.data"
  of_evals = [("config.data", "test"), (own, "train"), (own, "train[:50]")]
  assert sorted(list_splits(training=True)) == [of_evals[0], ("config.data", "train"), *of_evals[1:]]
  assert sorted(list_splits(training=False)) == of_evals


def test_a_run_from_random_weights_reads_no_others(parts):
  assert (
    parts.read_initial_weights() == ({}, [])
    and parts.load_frozen_weights() == ({}, {})
    and parts.frozen_weight_shapes == {}
  )


def test_training_images_of_one_class_cause_a_warning_if_the_task_learns_classes(parts):
  def with_classes(*classes, learned=True):
    images = types.SimpleNamespace(source=types.SimpleNamespace(classes=classes))
    return dataclasses.replace(parts, images=images, task=types.SimpleNamespace(classes=learned))

  warning = "all training images are of one class, 'a', so the model learns nothing"
  assert with_classes("a").find_class_problem() == warning
  assert with_classes("a", "b").find_class_problem() is None
  assert with_classes("a", learned=False).find_class_problem() is None


def test_initial_values_are_bit_identical_at_the_first_and_the_default_level(monkeypatch):
  lowered = runs.parts(2).program.init.lower()
  low, high = (lowered.compile(compiler_options={"xla_backend_optimization_level": level})() for level in (1, 3))
  monkeypatch.setenv("XLA_FLAGS", "")  # the flag of the tests would take precedence over the level of the run
  own = runs.parts(2).program.init()

  def read_bytes(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]

  assert read_bytes(low) == read_bytes(high) == read_bytes(own)
