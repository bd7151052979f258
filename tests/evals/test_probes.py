"""Tests of vit_jax/evals/probes.py against least squares of NumPy and scikit-learn, and counted draws."""

import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

from vit_jax.evals import probes
from vit_jax.schema import ConfigError


def problem(rows=40, width=7, classes=5, seed=0):
  """Returns features around a centre for each class with uneven scale and offset, and shuffled labels."""
  rng = np.random.default_rng(seed)
  labels = rng.permutation(np.arange(rows) % classes)
  features = rng.standard_normal((classes, width))[labels] + rng.standard_normal((rows, width))
  return (features * rng.uniform(0.1, 10, width) + rng.normal(0, 5, width)).astype(np.float32), labels


def standardised(features):
  x = features.astype(np.float64)
  return (x - x.mean(0)) / (x.std(0) + 1e-5)


def least_squares(features, labels, classes, l2):
  """Solves with the penalty as additional rows: |[X; sqrt(l2) I] W - [Y; 0]|^2, by singular values."""
  x = np.concatenate([standardised(features), np.full((len(features), 1), 100.0)], 1)
  y = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
  width = x.shape[1]
  rows = np.concatenate([x, np.sqrt(l2) * np.eye(width)])
  return np.linalg.lstsq(rows, np.concatenate([y, np.zeros((width, classes))]), rcond=None)[0]


@pytest.mark.parametrize(("rows", "width"), [(40, 7), (40, 39), (40, 40), (12, 30), (5, 3)])
def test_weights_minimise_the_penalised_squares_for_any_shape(rows, width):
  features, labels = problem(rows, width)
  for l2, probe in zip((0.5, 1024.0), probes.fit_ridge(features, labels, 5, (0.5, 1024.0)), strict=True):
    np.testing.assert_allclose(probe.weights, least_squares(features, labels, 5, l2), atol=1e-6)


def test_scores_match_scikit_learn_with_a_free_intercept():
  features, labels = problem(200, 6)
  x = standardised(features)
  theirs = Ridge(alpha=1024.0).fit(x, np.where(labels[:, None] == np.arange(5), 1.0, -1.0)).predict(x)
  (probe,) = probes.fit_ridge(features, labels, 5)
  # The weight of the constant is penalised too, by 1024 / 100^2 of one row: 0.05 % of a mean over 200.
  np.testing.assert_allclose(probes.compute_scores(probe, features), theirs, atol=1e-3)


def test_chunked_computation_matches_the_whole(monkeypatch):
  features, labels = problem(50, 6)
  (whole,) = probes.fit_ridge(features, labels, 5)
  expected = probes.compute_scores(whole, features)
  monkeypatch.setattr(probes, "ROWS", 7)
  (parts,) = probes.fit_ridge(features, labels, 5)
  np.testing.assert_allclose(parts.weights, whole.weights, atol=1e-7)
  np.testing.assert_allclose(probes.compute_scores(parts, features), expected, rtol=1e-5, atol=1e-6)


def test_class_without_images_and_constant_feature_are_supported():
  features, labels = problem(40, 7)
  features[:, 2] = 0
  keep = labels != 3
  (probe,) = probes.fit_ridge(features[keep], labels[keep], 5)
  assert np.isfinite(probe.weights).all() and (probes.compute_scores(probe, features).argmax(1) != 3).all()
  np.testing.assert_allclose(
    probe.weights[:, 3], least_squares(features[keep], labels[keep], 5, 1024.0)[:, 3], atol=1e-6
  )


def test_large_offset_does_not_reduce_accuracy():
  features, labels = problem(60, 5)
  (plain,) = probes.fit_ridge(features.astype(np.float64), labels, 5)
  (moved,) = probes.fit_ridge(features.astype(np.float64) + 1e6, labels, 5)
  np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-6)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("count", [1, 5, 40, 100])
def test_distance_weighted_neighbours_match_scikit_learn(count, monkeypatch):
  (features, labels), (others, _) = problem(60, 6), problem(50, 6, seed=1)
  others = np.concatenate([others, 3 * features[:7]])  # of the same angle, so the distance is zero
  theirs = KNeighborsClassifier(min(count, 60), weights="distance", algorithm="brute").fit(unit(features), labels)
  monkeypatch.setattr(probes, "ROWS", 9)
  ((value, ours),) = probes.nearest_neighbours(features, labels, 5, neighbours=(count,))
  assert value == count
  np.testing.assert_array_equal(ours(others), theirs.predict(unit(others)))


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_softmax_weighted_neighbours_match_dino(temperature):
  (features, labels), (others, _) = problem(80, 6), problem(50, 6, seed=1)
  similarity = unit(others).astype(np.float64) @ unit(features).T.astype(np.float64)
  settings = probes.nearest_neighbours(
    features, labels, 5, neighbours=(10, 20, 200), weights="softmax", temperature=temperature
  )
  for count, ours in settings:
    expected = []
    for row in similarity:
      nearest, votes = np.argsort(-row)[:count], np.zeros(5)
      for i in nearest:
        votes[labels[i]] += np.exp(row[i] / temperature)
      expected.append(votes.argmax())
    np.testing.assert_array_equal(ours(others), expected)


def test_draw_is_the_start_of_a_permutation_of_each_class():
  labels = np.array([2, 0, 1, 0, 2, 2, 0, 1, 0])
  generator = np.random.default_rng(7)
  orders = [generator.permutation(rows) for rows in ([1, 3, 6, 8], [2, 7], [0, 4, 5])]
  for shots in (1, 2, 3, 10):
    expected = [row for order in orders for row in order[:shots]]
    assert probes.draw_shots(labels, 3, shots, 7).tolist() == expected
  assert probes.draw_shots(labels, 3, 3, 7).tolist() != probes.draw_shots(labels, 3, 3, 8).tolist()


def test_every_image_is_drawn_equally_often():
  labels = np.zeros(6, int)
  counts = np.bincount(np.concatenate([probes.draw_shots(labels, 1, 2, seed) for seed in range(3000)]), minlength=6)
  assert np.abs(counts - 1000).max() < 4 * np.sqrt(3000 * (1 / 3) * (2 / 3))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda x, y: probes.draw_shots(y, 5, 0, 0), "shots: 0. Allowed: 1 and more"),
    (lambda x, y: probes.draw_shots(y, 4, 1, 0), "label from 0 to 3"),
    (lambda x, y: probes.draw_shots(np.stack([y, y], 1), 5, 1, 0), "label from 0 to 4"),
    (lambda x, y: probes.fit_ridge(x, y[1:], 5), r"features have shape \(40, 7\), labels \(39,\)"),
    (lambda x, y: probes.fit_ridge(x[:0], y[:0], 5), "at least one image"),
    (lambda x, y: probes.fit_ridge(np.where(x == x[3, 2], np.nan, x), y, 5), "features are not finite"),
    (lambda x, y: probes.fit_ridge(x, y, 5, (1.0, 0.0)), "l2: 0.0. Allowed: above 0"),
  ],
)
def test_invalid_arguments_are_an_error(call, message):
  with pytest.raises(ConfigError, match=message):
    call(*problem())


def of_patches(rows=300, width=6, classes=4):
  """Returns features, and shares of one or two classes. Some shares sum to less than one."""
  (features, labels), draw = problem(rows, width, classes), np.random.default_rng(3)
  shares = 0.7 * np.eye(classes)[labels] + 0.3 * np.eye(classes)[draw.integers(0, classes, rows)]
  return features, (shares * draw.choice([0.0, 0.5, 1.0], (rows, 1))).astype(np.float32)


def as_pixels(features, shares):
  """Returns (standardised features, class, weight) with one row for each nonzero share."""
  row, label = np.nonzero(shares)
  weight = shares[row, label].astype(np.float64)
  x = features[row].astype(np.float64)
  mean = np.average(x, 0, weight)
  return (x - mean) / (np.sqrt(np.average((x - mean) ** 2, 0, weight)) + 1e-5), label, weight


@pytest.mark.parametrize("l2", [0.5, 30.0])
def test_least_squares_of_shares_match_pixels_in_scikit_learn(l2, monkeypatch):
  features, shares = of_patches()
  monkeypatch.setattr(probes, "ROWS", 77)
  probe = probes.ridge_of_shares(features, shares, l2=l2)
  x, label, weight = as_pixels(features, shares)
  x = np.concatenate([x, np.full((len(x), 1), 100.0)], 1)
  theirs = Ridge(alpha=l2, fit_intercept=False).fit(x, np.where(label[:, None] == np.arange(4), 1.0, -1.0), weight)
  np.testing.assert_allclose(probe.weights, theirs.coef_.T, atol=1e-5)
  kernel, bias = probes.fold_standardisation(probe)
  np.testing.assert_allclose(features @ kernel + bias, probes.compute_scores(probe, features), rtol=1e-3, atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize("l2", [0.1, 10.0])
def test_logistic_regression_of_shares_matches_pixels_in_scikit_learn(l2):
  features, shares = of_patches()
  probe = probes.logistic_of_shares(features, shares, l2=l2)
  x, label, weight = as_pixels(features, shares)
  theirs = LogisticRegression(C=1 / l2, max_iter=10_000, tol=1e-8).fit(x, label, weight)
  ours = probe.weights - probe.weights.mean(1, keepdims=True)  # a common offset of all scores has no effect
  np.testing.assert_allclose(ours[:-1], theirs.coef_.T - theirs.coef_.T.mean(1, keepdims=True), atol=5e-3)
  np.testing.assert_allclose(100 * ours[-1], theirs.intercept_ - theirs.intercept_.mean(), atol=5e-3)


@pytest.mark.parametrize("name", probes.OF_SHARES)
@pytest.mark.parametrize(
  ("change", "expected_message"),
  [
    (lambda x, shares: (x, shares * [1, 0, 0, 0]), "fewer than two classes"),
    (lambda x, shares: (x, 0 * shares), "fewer than two classes"),
    (lambda x, shares: (x * np.where(np.arange(6), 1, np.nan), shares), "features are not finite"),
  ],
)
def test_shares_without_two_classes_or_finite_features_are_an_error(name, change, expected_message):
  with pytest.raises(ConfigError, match=expected_message):
    probes.OF_SHARES[name](*change(*of_patches()))


@pytest.mark.parametrize("scale", [1e30, -1e38])
def test_features_with_overflowing_norms_are_refused(scale):
  features = np.ones((4, 3), np.float32)
  probes.check_finite(features)
  features[2, 1] = scale
  with pytest.raises(ConfigError, match=re.escape(f"features are as large as {abs(scale):.3g}")):
    probes.check_finite(features)
