"""Tests that random streams are equal for equal names and numbers, and different otherwise."""

import itertools

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import rng

pytestmark = pytest.mark.heavy


def test_keys_depend_only_on_seed_step_and_name():
  cases = list(itertools.product((0, 1), (0, 1, 1000), ("dropout", "augment")))
  keys = [tuple(np.asarray(jax.random.key_data(rng.derive_key(*case)))) for case in cases]
  again = [
    tuple(np.asarray(jax.random.key_data(jax.jit(rng.derive_key, static_argnums=(0, 2))(*case)))) for case in cases
  ]
  assert keys == again
  assert len(set(keys)) == len(cases)


def test_numpy_generators_depend_only_on_seed_name_and_numbers():
  cases = list(itertools.product((0, 1), ("crop", "flip"), (0, 5), (0, 7)))
  draws = [rng.make_numpy_generator(*case).random() for case in cases]
  assert draws == [rng.make_numpy_generator(*case).random() for case in cases]
  assert len(set(draws)) == len(cases)


def test_python_generators_depend_only_on_seed_name_and_numbers():
  one = rng.make_python_generator(3, "a", 1, 2).random()
  assert one == rng.make_python_generator(3, "a", 1, 2).random()
  others = [
    rng.make_python_generator(*key).random()
    for key in ((4, "a", 1, 2), (3, "b", 1, 2), (3, "a", 2, 1), (3, "a", 1, 2, 0))
  ]
  assert len({one, *others}) == 5
  # Draws of neighbouring numbers are uniform and uncorrelated.
  numbers = np.array([rng.make_python_generator(0, "a", 0, i).random() for i in range(20_000)])
  np.testing.assert_allclose(np.quantile(numbers, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.012)
  assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03


def test_parameter_keys_match_flax():
  ours, theirs = rng.Keys(jax.random.key(7)), nnx.Rngs(params=jax.random.key(7))
  for _ in range(3):
    np.testing.assert_array_equal(jax.random.key_data(ours.params()), jax.random.key_data(theirs.params()))
