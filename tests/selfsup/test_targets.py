"""Targets against NumPy in float64, loops included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.selfsup import device_counts
from vit_jax.selfsup import targets

pytestmark = pytest.mark.heavy
DRAW = np.random.default_rng(0)
LOGITS = DRAW.normal(size=(24, 40)).astype(np.float32) * 0.3


def sinkhorn(logits, temperature, iterations):
  """The algorithm as the paper writes it, without any protection against overflow."""
  q = np.exp(np.asarray(logits, np.longdouble) / temperature)
  q /= q.sum()
  for _ in range(iterations):
    q = q / q.sum(0, keepdims=True) / q.shape[1]
    q = q / q.sum(1, keepdims=True) / q.shape[0]
  return (q * q.shape[0]).astype(np.float64)


def test_a_centred_softmax_is_its_definition():
  center = DRAW.normal(size=40).astype(np.float32)
  expected = scipy.special.softmax((LOGITS.astype(float) - center) / 0.04, -1)
  np.testing.assert_allclose(targets.center_softmax(LOGITS, center, 0.04), expected, rtol=2e-5, atol=1e-7)


def test_the_center_follows_the_mean_of_valid_rows():
  center, valid = DRAW.normal(size=40).astype(np.float32), DRAW.random(24) < 0.5
  np.testing.assert_allclose(targets.update_center(center, LOGITS), 0.9 * center + 0.1 * LOGITS.mean(0), atol=1e-6)
  expected = 0.8 * center + 0.2 * LOGITS[valid].mean(0)
  rows = np.where(valid[:, None], LOGITS, np.nan)  # nothing of the other rows is read
  np.testing.assert_allclose(targets.update_center(center, rows, 0.8, valid), expected, atol=1e-6)
  np.testing.assert_array_equal(targets.update_center(center, LOGITS, 0.8, np.zeros(24, bool)), center)


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_sinkhorn_is_the_algorithm_of_the_paper(iterations):
  expected = sinkhorn(LOGITS, 0.07, iterations)
  result = targets.sinkhorn(LOGITS, 0.07, iterations)
  np.testing.assert_allclose(result, expected, atol=1e-6 * expected.max())
  np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-6)


def test_many_iterations_use_all_prototypes_equally():
  np.testing.assert_allclose(targets.sinkhorn(LOGITS, 0.1, 200).sum(0), 24 / 40, rtol=1e-3)


def test_axes_before_the_last_are_rows():
  stacked = targets.sinkhorn(LOGITS.reshape(12, 2, 40), 0.07)
  np.testing.assert_allclose(stacked.reshape(24, 40), targets.sinkhorn(LOGITS, 0.07), rtol=1e-6)


@pytest.mark.parametrize("padding", [0.0, 1e4, -1e30, np.nan, np.inf])
def test_padding_rows_have_no_influence_and_no_target(padding):
  rows = np.concatenate([LOGITS[:10], np.full((3, 40), padding, np.float32), LOGITS[10:]])
  valid = np.arange(27) // 10 * 10 + np.arange(27) % 10 >= 0
  valid[10:13] = False
  result = targets.sinkhorn(rows, 0.07, valid=valid)
  np.testing.assert_allclose(result[valid], targets.sinkhorn(LOGITS, 0.07), rtol=1e-5, atol=1e-8)
  assert not np.asarray(result[10:13]).any()


def test_without_valid_rows_all_targets_are_zero():
  assert not np.asarray(targets.sinkhorn(LOGITS, 0.07, valid=np.zeros(24, bool))).any()


def test_large_logits_neither_overflow_nor_lose_a_prototype():
  # A common term and a term for each prototype, both far beyond the exponents of float32.
  shifts = 300 * DRAW.normal(size=40).astype(np.float32)
  result = targets.sinkhorn(LOGITS + 1000 + shifts, 0.07)
  np.testing.assert_allclose(result, sinkhorn(LOGITS, 0.07, 3), atol=2e-3)
  assert np.isfinite(result).all()


def test_targets_are_float32_without_gradient():
  short = jnp.asarray(LOGITS, jnp.bfloat16)
  for function in (lambda x: targets.center_softmax(x, x[0], 0.07), lambda x: targets.sinkhorn(x, 0.07)):
    assert function(short).dtype == jnp.float32
    assert not np.asarray(jax.grad(lambda x, function=function: jnp.square(function(x)).sum())(LOGITS)).any()


def test_zero_iterations_are_an_error():
  with pytest.raises(ValueError, match="iterations: expected at least 1"):
    targets.sinkhorn(LOGITS, 0.07, 0)


def test_results_are_equal_on_one_and_eight_devices():
  logits = DRAW.normal(size=(16, 2, 40)).astype(np.float32) * 0.3
  valid = DRAW.random((16, 2)) < 0.7
  valid[4:6] = False  # a device without any row
  device_counts.compare(lambda x, valid: targets.sinkhorn(x, 0.07, valid=valid), logits, valid)
  device_counts.compare(lambda x, valid: targets.update_center(jnp.ones(40), x, 0.9, valid), logits, valid)
  device_counts.compare(lambda x: targets.center_softmax(x, jnp.ones(40), 0.05), logits)
