"""Tests of relative positions in attention against NumPy. `test_rotary.py` tests the rotations."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax.models.attention import Attention
from vit_jax.models.query_key import QueryKey

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("bias", ["all", "query_value", "none"])
def test_relative_positions_match_their_numpy_definition(bias):
  part = QueryKey(4, relative=7)
  module = modules.layer(lambda rngs: Attention(12, 3, query_key=part, bias=bias, dtype=F32, rngs=rngs))
  x = normal(2, 7, 12)
  assert module.offsets.shape == (13, 4) and not part.transforms_keys
  np.testing.assert_allclose(module(x), modules.attention(module, x, x), atol=1e-5)
