"""Tests of vit_jax/models/attention_outputs.py inside attention, against NumPy formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax import models
from vit_jax.models import layers
from vit_jax.models.attention import Attention
from vit_jax.models.attention_outputs import OUTPUTS, NormedOutput

pytestmark = pytest.mark.heavy

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def test_context_is_normalised_before_the_output_projection():
  output = NormedOutput(12, 3, layers.Norm("layer", 1e-6, F32), F32)
  module = modules.layer(lambda rngs: Attention(12, 3, output=output, dtype=F32, rngs=rngs))
  x = normal(2, 7, 12)
  _, inside = models.capture(module, "attention/context")(x)
  context = np.asarray(inside["attention/context"]).reshape(2, 7, 12)
  normed = (context - context.mean(-1, keepdims=True)) / np.sqrt(context.var(-1, keepdims=True) + 1e-6)
  normed = normed * module.context_norm.scale[...] + module.context_norm.bias[...]
  out = np.asarray(module.out.kernel[...]).reshape(12, 12)
  np.testing.assert_allclose(module(x), normed @ out + module.out.bias[...], atol=1e-5)


def test_default_output_leaves_the_context_unchanged():
  plain, other = (modules.model(**arguments) for arguments in ({}, {"attention": {"output": "plain"}}))
  images = modules.images()
  np.testing.assert_array_equal(modules.run(plain, images), modules.run(other, images))
  assert OUTPUTS.keys() == {"plain", "normed", "gated"}
