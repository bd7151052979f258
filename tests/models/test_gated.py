"""Tests of vit_jax/models/gated.py: inside attention against the NumPy definition, and in training."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules, runs
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.models.attention import Attention
from vit_jax.models.gated import Gate
from vit_jax.models.layers import Norm
from vit_jax.training import build

pytestmark = pytest.mark.heavy
F32 = jnp.dtype("float32")
WIDTH, HEADS = 12, 3


def test_gate_multiplies_each_channel_of_each_head():
  gate = Gate(WIDTH, HEADS, Norm("layer", 1e-6, F32), F32)
  module = modules.layer(lambda rngs: Attention(WIDTH, HEADS, output=gate, dtype=F32, rngs=rngs))
  x = np.random.default_rng(0).standard_normal((2, 5, WIDTH), np.float32)

  def project(linear):
    return np.einsum("bnd,dhk->bnhk", x, linear.kernel[...]) + (0 if linear.bias is None else linear.bias[...])

  assert module.gate.bias is None and module.gate.kernel.shape == (WIDTH, HEADS, WIDTH // HEADS)
  q, k, v = (project(linear) for linear in (module.query, module.key, module.value))
  context = np.einsum("bhqn,bnhk->bqhk", modules.softmax(np.einsum("bqhk,bnhk->bhqn", q, k) / 4**0.5), v)
  context = context / (1 + np.exp(-project(module.gate)))
  expected = np.einsum("bqhk,hkd->bqd", context, module.out.kernel[...]) + module.out.bias[...]
  np.testing.assert_allclose(module(x), expected, atol=1e-5)


@pytest.mark.parametrize("how", [{"scan": True, "remat": "projections"}, {"attention": {"name": "fused"}}], ids=str)
def test_gated_model_computes_the_same_if_scanned_or_fused(how):
  gated = {"width": 64, "heads": 2, "depth": 2, "attention": {"output": "gated"}}
  attention = {"attention": {"output": "gated"} | how.get("attention", {})}
  plain, other = modules.model(**gated), modules.model(**(gated | how | attention))
  other = modules.stacked(plain, other) if "scan" in how else nnx.merge(nnx.graphdef(other), nnx.state(plain))
  images = modules.images()
  np.testing.assert_allclose(modules.run(other, images), modules.run(plain, images), atol=1e-4)


SMALL = {
  "model.name": "ViT-Ti/8", "model.depth": "2", "model.width": "16", "model.heads": "2", "model.hidden": "32",
  "model.attention.output": "gated", "batch": "64", "total": "12", "optim.lr": "1e-2", "optim.warmup": "0",
}  # fmt: skip


def train(devices, **changes):
  """Returns the losses of all steps, and the final parameters."""
  prepare_dataset("digits")
  parts = build.build(runs.run(small=SMALL, **changes), jax.devices()[:devices])
  step, state, losses = parts.compile(), parts.create_initial_state(), []
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, parts.total):
      state, metrics = step(state, batch, {})
      losses.append(float(metrics["loss"]))
  return losses, jax.device_get(state.params)


@pytest.mark.long
def test_gated_model_trains_the_same_on_a_mesh():
  losses, params = train(1)
  meshed, other = train(8, mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
  assert losses[-1] < losses[0]
  np.testing.assert_allclose(meshed, losses, rtol=1e-3)
  assert params["blocks/0/attention/gate/kernel"].shape == other["blocks/0/attention/gate/kernel"].shape == (16, 2, 8)
