"""Muon against NumPy in float64, and which parameters of the models are its matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import modules
from tests.optimizers import make, walk
from vit_jax.optim import matrices

SHAPES = {
  "attention/query/kernel": (6, 2, 5),
  "attention/out/kernel": (2, 5, 6),
  "mlp/up/kernel": (6, 9),
  "mlp/down/kernel": (9, 6),
  "norm1/scale": (6,),
}
INPUTS = {"query": 6, "out": 10, "up": 6, "down": 9}


def numpy_muon(p, gradients, inputs, lr, wd, beta=0.95, iterations=5):
  """Keller Jordan's iteration on [inputs, outputs], by the singular values: they alone change."""
  p, m = p.reshape(inputs, -1), 0
  for t, g in enumerate(gradients, 1):
    g = g.reshape(p.shape)
    m = beta * m + (1 - beta) * g
    # Optax corrects the momentum for a step ahead, as Nesterov's Adam does.
    look = beta * m / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
    u, s, v = np.linalg.svd(look, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(iterations):
      s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    p = p - lr * (0.2 * np.sqrt(max(p.shape)) * (u * s) @ v + wd * p)
  return p


def drawn(rng, layers):
  return {
    f"blocks/{path}": jax.device_put(rng.standard_normal((layers, *shape)).astype(np.float32))
    for path, shape in SHAPES.items()
  } | {"head/kernel": jax.device_put(rng.standard_normal((6, 4)).astype(np.float32))}


@pytest.mark.heavy
@pytest.mark.parametrize("args", [{}, {"momentum": 0.8, "iterations": 3}])
def test_matrices_of_a_stack_equal_their_definition_and_all_else_is_adam(args):
  rng = np.random.default_rng(0)
  params, gradients = drawn(rng, layers=3), [drawn(rng, layers=3) for _ in range(3)]
  after, _, _ = walk(make(params, name="muon", lr=0.02, weight_decay=0.3, **args)[0], params, gradients)
  adam, _, _ = walk(make(params, lr=0.02, weight_decay=0.3)[0], params, gradients)
  names = {"beta": args.get("momentum", 0.95), "iterations": args.get("iterations", 5)}
  for path, value in params.items():
    if matrices.dimensions(path) is None:
      np.testing.assert_array_equal(after[path], adam[path])
      continue
    for layer, p in enumerate(np.asarray(value, np.float64)):
      slopes = [np.asarray(g[path][layer], np.float64) for g in gradients]
      expected = numpy_muon(p, slopes, INPUTS[path.split("/")[2]], 0.02, 0.3, **names)
      np.testing.assert_allclose(after[path][layer], expected.reshape(p.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.heavy
def test_layers_have_the_same_updates_stacked_and_by_themselves():
  rng = np.random.default_rng(1)
  stacked = [drawn(rng, layers=2) for _ in range(3)]

  def apart(flat):
    own = {p.replace("blocks/", f"blocks/{i}/"): v[i] for p, v in flat.items() if p != "head/kernel" for i in range(2)}
    return own | {"head/kernel": flat["head/kernel"]}

  args = {"name": "muon", "layer_decay": 0.7, "clip": 1.0, "weight_decay": 0.1}
  after, _, _ = walk(make(stacked[0], **args)[0], stacked[0], stacked[1:])
  params, *gradients = map(apart, stacked)
  expected, _, _ = walk(make(params, **args)[0], params, gradients)
  for path, value in apart(after).items():
    np.testing.assert_allclose(value, expected[path], rtol=1e-4, atol=1e-6, err_msg=path)


@pytest.mark.heavy
def test_the_momentum_is_stored_as_asked():
  state = make(drawn(np.random.default_rng(2), layers=1), name="muon", mu_dtype="bfloat16")[0].init(
    drawn(np.random.default_rng(2), layers=1)
  )
  moments = optax.tree_utils.tree_get_all_with_path(state, "mu")
  assert len(moments) == 2
  assert all(leaf.dtype == jnp.bfloat16 for _, tree in moments for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("scan", [False, True])
def test_the_matrices_of_a_vit_are_all_kernels_of_its_blocks_and_no_others(scan):
  shapes = modules.shapes("ViT-Ti/16", scan=scan)
  kernels = {path for path in shapes if matrices.dimensions(path) is not None}
  assert kernels == {path for path in shapes if path.startswith("blocks/") and path.endswith("/kernel")}
  assert len(kernels) == 6 * (1 if scan else 12)
