"""Tests of losses against their definitions in NumPy with float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from vit_jax import losses

pytestmark = pytest.mark.heavy


def softmax(logits, targets):
  shifted = logits - logits.max(-1, keepdims=True)
  return -(targets * (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))).sum(-1)


def sigmoid(logits, targets):
  # -log s(z) = log(1 + exp(-z)), and 1 - s(z) = s(-z).
  return (targets * np.logaddexp(0, -logits) + (1 - targets) * np.logaddexp(0, logits)).sum(-1)


ORACLES = {"softmax": softmax, "sigmoid": sigmoid}
ORACLES["mean_sigmoid"] = lambda logits, targets: sigmoid(logits, targets) / logits.shape[-1]


def batch(scale=5.0, rows=16, classes=11):
  rng = np.random.default_rng(0)
  return scale * rng.standard_normal((rows, classes)), rng.dirichlet(np.ones(classes), rows)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_loss_matches_its_definition_on_soft_targets(name):
  logits, targets = batch()
  loss = losses.LOSSES[name](jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32))
  assert loss.shape == (16,) and loss.dtype == jnp.float32
  np.testing.assert_allclose(loss, ORACLES[name](logits, targets), rtol=2e-6)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_loss_and_gradient_are_finite_at_extreme_logits(name):
  logits = np.array([[1e4, -1e4, 0], [-1e30, 1e30, 0], [1e30, 0, -1e30]], np.float32)
  targets = np.eye(3, dtype=np.float32)
  loss, gradient = jax.vmap(jax.value_and_grad(losses.LOSSES[name]))(logits, targets)
  assert np.isfinite(gradient).all() and np.abs(gradient).max() <= 1 + 1e-6
  np.testing.assert_allclose(loss, ORACLES[name](logits.astype(np.float64), targets), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_bfloat16_logits_are_converted_to_float32_first(name):
  logits, targets = batch()
  short = jnp.asarray(logits, jnp.bfloat16)
  loss = losses.LOSSES[name](short, jnp.asarray(targets, jnp.bfloat16))
  assert loss.dtype == jnp.float32
  exact = ORACLES[name](np.asarray(short, np.float64), np.asarray(jnp.asarray(targets, jnp.bfloat16), np.float64))
  np.testing.assert_allclose(loss, exact, rtol=2e-6)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_gradient_is_the_error_of_the_prediction(name):
  logits, targets = batch()
  gradient = jax.vmap(jax.grad(losses.LOSSES[name]))(*(jnp.asarray(x, jnp.float32) for x in (logits, targets)))
  odds = np.exp(logits)
  predicted = odds / odds.sum(-1, keepdims=True) if name == "softmax" else odds / (1 + odds)
  share = 1 / logits.shape[-1] if name == "mean_sigmoid" else 1
  np.testing.assert_allclose(gradient, share * (predicted - targets), atol=1e-6)


@pytest.mark.parametrize(("amount", "classes"), [(0.1, 10), (0.0, 5), (0.3, 2)])
def test_smoothing_gives_timms_on_and_off_values(amount, classes):
  smoothed = np.asarray(losses.smooth_labels(losses.one_hot(jnp.array([0, classes - 1]), classes), amount))
  off, on = amount / classes, 1 - amount + amount / classes
  np.testing.assert_allclose(smoothed[0], [on] + [off] * (classes - 1), rtol=1e-6)
  np.testing.assert_allclose(smoothed[1], [off] * (classes - 1) + [on], rtol=1e-6)
  np.testing.assert_allclose(smoothed.sum(-1), 1, rtol=1e-6)


def test_one_hot_of_an_invalid_label_is_zero_also_after_smoothing():
  hot = losses.one_hot(jnp.array([2, -1, 3], jnp.int32), 3)
  assert hot.dtype == jnp.float32
  np.testing.assert_array_equal(hot, [[0, 0, 1], [0, 0, 0], [0, 0, 0]])
  np.testing.assert_array_equal(losses.smooth_labels(hot, 0.1)[1:], 0)


def test_one_hot_of_several_labels_marks_each_once():
  rows = np.array([[0, 2, -1, -1], [1, 1, 1, -1], [-1, -1, -1, -1], [3, 2, 1, 0]], np.int32)
  hot = losses.one_hot(jnp.asarray(rows), 4)
  assert hot.dtype == jnp.float32
  np.testing.assert_array_equal(hot, [[v in row for v in range(4)] for row in rows.tolist()])
  shared = losses.normalise_rows(hot)
  np.testing.assert_allclose(shared, [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0] * 4, [0.25] * 4], rtol=1e-6)
  np.testing.assert_array_equal(losses.normalise_rows(hot[1:2]), hot[1:2])


def test_best_class_is_correct_if_no_target_is_higher():
  draw = np.random.default_rng(0)
  logits = draw.normal(size=(400, 6))
  one, other = (draw.integers(0, 2, (400, 6)) for _ in range(2))
  share = draw.uniform(0.51, 1, (400, 1))
  for targets in (one, share * one + (1 - share) * other, np.eye(6)[draw.integers(0, 6, 400)]):
    expected = [t[z.argmax()] == t.max() > 0 for z, t in zip(logits, targets, strict=True)]
    np.testing.assert_array_equal(losses.is_best_positive(jnp.asarray(logits), jnp.asarray(targets)), expected)


def test_kl_divergence_matches_scipy():
  expected, _ = batch()
  predicted = expected[::-1] / 3
  p, q = scipy.special.softmax(expected, -1), scipy.special.softmax(predicted, -1)
  divergence = losses.kl_divergence(jnp.asarray(expected), jnp.asarray(predicted))
  np.testing.assert_allclose(divergence, scipy.special.rel_entr(p, q).sum(-1), rtol=2e-5)
  np.testing.assert_allclose(losses.kl_divergence(jnp.asarray(expected), jnp.asarray(expected)), 0, atol=1e-6)


def test_shares_of_labels_become_targets():
  labels, shares = np.array([[2, 0], [1, -1], [1, 1]]), np.array([[0.7, 0.2], [1.0, 0.5], [0.25, 0.5]], np.float32)
  expected = [[0.2, 0, 0.7], [0, 1, 0], [0, 0.75, 0]]
  np.testing.assert_allclose(losses.encode_shares(jnp.asarray(labels), jnp.asarray(shares), 3), expected, atol=1e-7)
