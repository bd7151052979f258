"""Tests of Muon against NumPy in float64, and of the selection of its matrices."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import modules, runs
from tests.optimizers import make, walk
from vit_jax.optim import matrices
from vit_jax.planning import hlo
from vit_jax.schema import ConfigError
from vit_jax.training import loop

SHAPES = {
  "attention/query/kernel": (6, 2, 5),
  "attention/out/kernel": (2, 5, 6),
  "mlp/up/kernel": (6, 9),
  "mlp/down/kernel": (9, 6),
  "norm1/scale": (6,),
}
INPUTS = {"query": 6, "out": 10, "up": 6, "down": 9}


def numpy_muon(p, gradients, inputs, lr, wd, beta=0.95, iterations=5):
  """Computes Keller Jordan's iteration on [inputs, outputs] by its singular values, the only values that change."""
  p, m = p.reshape(inputs, -1), 0
  for g in gradients:
    g = g.reshape(p.shape)
    m = beta * m + (1 - beta) * g
    look = beta * m + (1 - beta) * g  # Nesterov momentum
    u, s, v = np.linalg.svd(look, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(iterations):
      s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    p = p - lr * (0.2 * np.sqrt(max(p.shape)) * (u * s) @ v + wd * p)
  return p


def draw_arrays(rng, layers):
  return {
    f"blocks/{path}": jax.device_put(rng.standard_normal((layers, *shape)).astype(np.float32))
    for path, shape in SHAPES.items()
  } | {"head/kernel": jax.device_put(rng.standard_normal((6, 4)).astype(np.float32))}


@pytest.mark.heavy
@pytest.mark.parametrize("args", [{}, {"momentum": 0.8, "iterations": 3}])
def test_stacked_matrices_match_muon_and_other_parameters_adam(args):
  rng = np.random.default_rng(0)
  params, gradients = draw_arrays(rng, layers=3), [draw_arrays(rng, layers=3) for _ in range(3)]
  after, _, _ = walk(
    make(params, name="muon", dtype="float32", lr=0.02, weight_decay=0.3, **args)[0], params, gradients
  )
  adam, _, _ = walk(make(params, lr=0.02, weight_decay=0.3)[0], params, gradients)
  names = {"beta": args.get("momentum", 0.95), "iterations": args.get("iterations", 5)}
  for path, value in params.items():
    if matrices.count_axes(path) is None:
      np.testing.assert_array_equal(after[path], adam[path])
      continue
    for layer, p in enumerate(np.asarray(value, np.float64)):
      slopes = [np.asarray(g[path][layer], np.float64) for g in gradients]
      expected = numpy_muon(p, slopes, INPUTS[path.split("/")[2]], 0.02, 0.3, **names)
      np.testing.assert_allclose(after[path][layer], expected.reshape(p.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.heavy
def test_stacked_and_separate_layers_have_the_same_updates():
  rng = np.random.default_rng(1)
  stacked = [draw_arrays(rng, layers=2) for _ in range(3)]

  def unstack(flat):
    own = {p.replace("blocks/", f"blocks/{i}/"): v[i] for p, v in flat.items() if p != "head/kernel" for i in range(2)}
    return own | {"head/kernel": flat["head/kernel"]}

  args = {"name": "muon", "dtype": "float32", "layer_decay": 0.7, "clip": 1.0, "weight_decay": 0.1}
  after, _, _ = walk(make(stacked[0], **args)[0], stacked[0], stacked[1:])
  params, *gradients = map(unstack, stacked)
  expected, _, _ = walk(make(params, **args)[0], params, gradients)
  for path, value in unstack(after).items():
    np.testing.assert_allclose(value, expected[path], rtol=1e-4, atol=1e-6, err_msg=path)


@pytest.mark.heavy
def test_bfloat16_updates_are_rounded_once():
  rng = np.random.default_rng(3)
  params, gradient = draw_arrays(rng, layers=2), draw_arrays(rng, layers=2)
  updates = [walk(make(params, name="muon", lr=1.0, dtype=kind)[0], params, [gradient])[1][0]
             for kind in ("float32", "bfloat16")]  # fmt: skip
  for path, exact in updates[0].items():
    expected = exact if matrices.count_axes(path) is None else exact.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_array_equal(updates[1][path], expected)


@pytest.mark.heavy
def test_momentum_is_stored_in_mu_dtype():
  state = make(draw_arrays(np.random.default_rng(2), layers=1), name="muon", mu_dtype="bfloat16")[0].init(
    draw_arrays(np.random.default_rng(2), layers=1)
  )
  moments = [found for name in ("mu", "trace") for found in optax.tree_utils.tree_get_all_with_path(state, name)]
  assert len(moments) == 2
  assert all(leaf.dtype == jnp.bfloat16 for _, tree in moments for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("scan", [False, True])
def test_matrices_of_a_vit_are_exactly_the_kernels_of_its_blocks(scan):
  shapes = modules.shapes("ViT-Ti/16", scan=scan)
  kernels = {path for path in shapes if matrices.count_axes(path) is not None}
  assert kernels == {path for path in shapes if path.startswith("blocks/") and path.endswith("/kernel")}
  assert len(kernels) == 6 * (1 if scan else 12)


@pytest.mark.parametrize("path", ["root/conv/kernel", "head/kernel"])
def test_model_without_matrices_is_an_error(path):
  with pytest.raises(
    ConfigError, match=r"config\.optim\.name: this model has no attention or MLP matrices.*Use 'adamw'"
  ):
    make({path: np.zeros((4, 4), np.float32)}, name="muon")


# Runs.

VIT = {"model__name": "ViT-Ti/8", "model__depth": 3, "model__width": 16, "model__heads": 2, "model__hidden": 32}
VIT |= {"optim__name": "muon", "optim__dtype": "float32", "model__scan": True, "total": 6}


def run(devices=8, **changes):
  """Returns the parts of a small run with Muon."""
  return runs.parts(devices, **VIT | changes)


def collectives(parts):
  """Counts the collectives of each kind in a compiled step."""
  return {kind: traffic.calls for kind, traffic in hlo.read_program(parts.compile().as_text()).collectives.items()}


@pytest.mark.heavy
@pytest.mark.parametrize(
  "changes", [{}, {"mesh__data": 2, "mesh__fsdp": 4}, {"mesh__data": 4, "mesh__tensor": 2}], ids=str
)
def test_iterations_on_matrices_need_no_communication(changes):
  one, five = (collectives(run(optim__iterations=count, **changes)) for count in (1, 5))
  assert one == five
  if not changes:  # gathers the results of two matrix shapes; AdamW gathers no array
    assert five["all-gather"] == 2 and "all-gather" not in collectives(run(optim__name="adamw", optim__dtype="default"))


def after(parts, count=4):
  """Returns the parameters after some steps."""
  step, state = parts.compile(), parts.create_initial_state()
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, count):
      state, _ = step(state, batch, {})
  return jax.device_get(state.params)


@pytest.fixture(scope="module")
def alone():
  return after(run(1))


MESHES = [
  {},
  {"mesh__data": 4, "mesh__fsdp": 2},
  {"mesh__data": 2, "mesh__tensor": 4},
  {"optim__accumulate": 2},
  {"model__remat": "full"},
]


@pytest.mark.long
@pytest.mark.sample(2)
@pytest.mark.parametrize("changes", MESHES, ids=str)
def test_run_gives_the_same_parameters_on_any_mesh(alone, changes):
  for path, value in after(run(8, **changes)).items():
    np.testing.assert_allclose(value, alone[path], atol=3e-4, err_msg=path)


@pytest.mark.long
def test_restart_has_the_same_bits_and_keeps_frozen_parameters(tmp_path):
  parts = run(optim__frozen="['blocks/mlp/up/kernel']", optim__layer_decay=0.8)
  whole = loop.train(parts, tmp_path / "whole")
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 4), tmp_path / "again")
  assert loop.train(parts, tmp_path / "again")["weights_sha256"] == whole["weights_sha256"]
  before, now = jax.device_get(parts.create_initial_state().params), after(parts)
  moved = {path for path in before if not np.array_equal(before[path], now[path])}
  assert "blocks/mlp/up/kernel" not in moved
  assert {"blocks/mlp/down/kernel", "blocks/attention/query/kernel", "head/kernel", "embedding/kernel"} <= moved
