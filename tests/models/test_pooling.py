"""Tests of vit_jax/models/pooling.py against NumPy formulas."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax.models import pooling
from vit_jax.models.layers import zeros

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
x = np.random.default_rng(0).standard_normal((2, 5, 12), dtype=np.float32)


def softmax(x):
  e = np.exp(x - x.max())
  return e / e.sum()


def test_seqpool_is_a_weighted_mean_of_tokens():
  module = modules.layer(lambda rngs: pooling.SeqPool(12, kernel_init=zeros, dtype=F32, rngs=rngs))
  score = np.asarray(module.score.kernel[...])[:, 0]
  expected = [sum(w * token for w, token in zip(softmax(tokens @ score), tokens, strict=True)) for tokens in x]
  np.testing.assert_allclose(module(x), expected, atol=1e-5)


def test_map_attends_to_all_tokens_with_one_learned_query():
  init = {"bias_init": zeros}
  module = modules.layer(lambda rngs: pooling.Map(12, 3, 20, eps=1e-6, gelu="erf", dtype=F32, rngs=rngs, **init))
  a = module.attention
  for tokens, found in zip(x, np.asarray(module(x)), strict=True):
    z = np.array(a.out.bias[...])
    for h in range(3):
      query = np.asarray(module.probe[...]) @ a.query.kernel[:, h] + a.query.bias[h]
      keys = tokens @ a.key.kernel[:, h] + a.key.bias[h]
      values = tokens @ a.value.kernel[:, h] + a.value.bias[h]
      z = z + softmax(np.asarray(keys @ query) / math.sqrt(4)) @ values @ a.out.kernel[h]
    normed = (z - z.mean()) / np.sqrt(z.var() + 1e-6) * module.norm.scale[...] + module.norm.bias[...]
    hidden = np.asarray(normed @ module.mlp.up.kernel[...] + module.mlp.up.bias[...])
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    np.testing.assert_allclose(found, z + hidden @ module.mlp.down.kernel[...] + module.mlp.down.bias[...], atol=1e-4)
