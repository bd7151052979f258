"""Tests of trial generation by products, zips and samples, and of errors of a sweep."""

import numpy as np
import pytest

from vit_jax import config
from vit_jax.schema import ConfigError


def test_product_has_every_combination_once():
  rows = config.product({"optim.lr": (0.1, 0.2), "seed": range(3)})
  pairs = [(row["optim.lr"], row["seed"]) for row in rows]
  assert pairs == [(0.1, 0), (0.1, 1), (0.1, 2), (0.2, 0), (0.2, 1), (0.2, 2)]
  assert config.product({}) == [{}]


def test_zip_pairs_values_and_requires_equal_lengths():
  assert config.zipped({"a": (1, 2), "b": ["x", "y"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
  with pytest.raises(ConfigError, match=r"the same number of values, got \{'a': 2, 'b': 3\}"):
    config.zipped({"a": (1, 2), "b": (1, 2, 3)})


def test_sample_depends_on_its_seed_and_extends_smaller_samples():
  space = {"lr": config.log_uniform(1e-4, 1e-1), "p": config.uniform(0.2, 0.4), "model": ("a", "b")}
  rows = config.sample(400, space, seed=3)
  assert rows == config.sample(400, space, seed=3)
  assert rows[:7] == config.sample(7, space, seed=3)
  assert rows[:7] != config.sample(7, space, seed=4)
  rates = np.array([row["lr"] for row in rows])
  assert 1e-4 <= rates.min() <= rates.max() <= 1e-1
  # Each of the three decades has a third of the rates.
  assert np.abs(np.histogram(np.log10(rates), 3, (-4, -1))[0] / 400 - 1 / 3).max() < 0.08
  shares = np.array([row["p"] for row in rows])
  assert 0.2 <= shares.min() <= shares.max() <= 0.4
  assert abs(shares.mean() - 0.3) < 0.01
  assert {row["model"] for row in rows} == {"a", "b"}


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: config.log_uniform(0, 1), "0 to 1 is not a range to draw from by logarithm"),
    (lambda: config.uniform(2, 1), "2 to 1 is not a range"),
    (lambda: config.sample(1, {"a": "abc"}), "a is 'abc'. Allowed: a list to choose from"),
    (lambda: config.sample(1, {"a": ()}), r"a is \(\)"),
    (lambda: config.Sweep([]), "the list of trials is empty"),
    (lambda: config.Sweep({"seed": 1}), "trials is {'seed': 1}. Allowed: a list of changes"),
    (lambda: config.Sweep([1]), r"trials is \[1\]"),
    (lambda: config.Sweep([{1: 2}]), "trials has the key 1. Allowed: keys of the config"),
    (lambda: config.Sweep([{}], decide=3), "decide is 3. Allowed: a figure"),
    (lambda: config.product({"lr": 0.1}), "lr is 0.1. Allowed: a list of values"),
    (lambda: config.sample(2, {"lr": 0.1}), "lr is 0.1. Allowed: a list to choose from"),
    (lambda: config.Sweep([{}], decide=None, final=[{}]), "no metric selects it"),
  ],
)
def test_invalid_arguments_are_errors_with_allowed_values(make, message):
  with pytest.raises(ConfigError, match=message):
    make()
