"""Tests of vit_jax/models/attention.py: outputs against NumPy formulas, gradients against those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax.models import attention as formulations
from vit_jax.models.attention import Attention, Softmax

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("bias", ["all", "query_value", "none"])
def test_attention_matches_its_numpy_definition(bias):
  module = modules.layer(lambda rngs: Attention(12, 3, bias=bias, dtype=F32, rngs=rngs))
  x = normal(2, 7, 12)
  np.testing.assert_allclose(module(x), modules.attention(module, x, x), atol=1e-5)


def test_cross_attention_matches_its_numpy_definition():
  module = modules.layer(lambda rngs: Attention(12, 3, dtype=F32, rngs=rngs))
  x, memory = normal(2, 4, 12), normal(2, 7, 12)
  np.testing.assert_allclose(module(x, memory), modules.attention(module, x, memory), atol=1e-5)


def test_attention_dropout_acts_on_the_weights():
  module = modules.layer(lambda rngs: Attention(12, 3, kernel=Softmax(0.5), dtype=F32, rngs=rngs))
  x = np.ones((1, 6, 12), np.float32)  # equal values: the output depends only on the sum of the remaining weights
  runs = np.stack([module(x, key=jax.random.key(i)) for i in range(200)])
  assert np.std(runs, axis=0).min() > 1e-3
  np.testing.assert_allclose(runs.mean((0, 2)), np.asarray(module(x)).mean(1), atol=0.15)


def test_gradients_of_weighted_values_match_jax():
  logits, values, weight = 3 * normal(2, 3, 5, 7), normal(2, 7, 3, 4), normal(2, 5, 3, 4)

  def plain(logits, values):
    return jnp.einsum("bhqn,bnhk->bqhk", jax.nn.softmax(logits, axis=-1), values)

  expected, back = jax.vjp(plain, logits, values)
  result, ours = jax.vjp(formulations.average_values, logits, values)
  np.testing.assert_allclose(result, expected, atol=1e-6)
  for found, wanted in zip(ours(jnp.asarray(weight)), back(jnp.asarray(weight)), strict=True):
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_bfloat16_gradients_are_within_rounding_error():
  logits, values, weight = 3 * normal(1, 2, 9, 40), normal(1, 40, 2, 8), normal(1, 9, 2, 8)
  half = [jnp.asarray(x, jnp.bfloat16) for x in (logits, values, weight)]
  exact = [np.asarray(x, np.float32) for x in half]
  _, back = jax.vjp(formulations.average_values, *exact[:2])
  _, rough = jax.vjp(formulations.average_values, *half[:2])
  for found, wanted in zip(rough(half[2]), back(exact[2]), strict=True):
    assert np.abs(np.asarray(found, np.float32) - wanted).max() < 0.02 * np.abs(wanted).max()
