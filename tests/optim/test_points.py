"""Schedule-Free and SAM against NumPy in float64, against Optax, and in small runs."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import runs, self_distillation
from tests.optimizers import example, make_optimizer
from tests.stages import CONTEXT
from vit_jax import checkpoints
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import loop, steps

pytestmark = pytest.mark.heavy

LR, STEPS = 0.05, 12
CENTRES = np.random.default_rng(5).normal(size=(STEPS, 4))


def gradient_at(step, p):
  """Returns a gradient that depends on the parameter and differs at each step, for an array of any shape [..., 4]."""
  return np.sin(2 * p) + p - CENTRES[step]


def walk_sequences(p, warmup, b1, wd, lr=LR, b2=0.999, eps=1e-8, limit=None):
  """Computes x, y and z of algorithm 1 (Defazio et al. 2024) for one array. The first rate of our warm-ups is 0."""
  x = z = np.asarray(p, np.float64)
  v, weights, points = 0, [], []
  for t in range(STEPS):
    rate = lr * min(t / warmup, 1) if warmup else lr
    y = (1 - b1) * z + b1 * x
    g = gradient_at(t, y)
    if limit is not None:
      g = g * min(1, limit / np.linalg.norm(g))
    v = b2 * v + (1 - b2) * g**2
    z = z - rate * (g / (np.sqrt(v / (1 - b2 ** (t + 1))) + eps) + wd * y)
    weights.append(rate**2)
    c = weights[-1] / sum(weights) if any(weights) else 0
    x = (1 - c) * x + c * z
    points.append(y)
  return x, z, points


def train(made, params):
  """Returns the parameters after all steps, the points of all gradients, and the state."""
  state, points = made.transformation.init(params), []
  update = jax.jit(made.transformation.update)
  for t in range(STEPS):
    point = made.find_point(state, params) if made.find_point else params
    gradients = {path: jnp.asarray(gradient_at(t, np.asarray(value)), jnp.float32) for path, value in point.items()}
    updates, state = update(gradients, state, params)
    params = optax.apply_updates(params, updates)
    points.append(point)
  return params, points, state


# Schedule-Free.


@pytest.mark.parametrize(("warmup", "b1"), [(0, 0.9), (4, 0.9), (4, 0.0), (12, 0.98)])
def test_schedule_free_follows_the_three_sequences_of_the_paper(warmup, b1):
  params, _ = example()
  args = {"name": "schedule_free", "lr": LR, "b1": b1, "warmup": str(warmup), "weight_decay": 0.3}
  made = make_optimizer(params, STEPS, frozen=("cls",), lr_multipliers=(("head/.*", 0.5),), layer_decay=0.8, **args)
  after, points, state = train(made, params)
  offset = optax.tree_utils.tree_get(state, "offset")
  np.testing.assert_array_equal(after["cls"], params["cls"])
  assert isinstance(offset["cls"], optax.MaskedNode)
  above = {"embedding/kernel": 4, "position/table": 4, "norm/scale": 0, "head/kernel": 0, "head/bias": 0}
  above |= {path: 3 - int(path.split("/")[1]) for path in params if path.startswith("blocks")}
  for path, layers in above.items():
    scale = 0.8**layers * (0.5 if path.startswith("head") else 1)
    wd = 0.3 if path.endswith("kernel") else 0
    # The multipliers change the step of z, but not the weights of the average.
    x, z, ys = walk_sequences(params[path], warmup, b1, wd, LR * scale)
    np.testing.assert_allclose(after[path], x, rtol=1e-4, atol=1e-5, err_msg=path)
    np.testing.assert_allclose(after[path] + offset[path], z, rtol=1e-4, atol=1e-5, err_msg=path)
    for point, y in zip(points, ys, strict=True):
      np.testing.assert_allclose(point[path], y, rtol=1e-4, atol=1e-5, err_msg=path)


def test_schedule_free_clips_the_gradient_at_y():
  params = {"head/kernel": jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)}
  after, _, _ = train(make_optimizer(params, STEPS, name="schedule_free", lr=LR, clip=0.5), params)
  x, _, _ = walk_sequences(params["head/kernel"], 0, 0.9, 0, limit=0.5)
  np.testing.assert_allclose(after["head/kernel"], x, rtol=1e-4, atol=1e-5)


def test_schedule_free_matches_optax():
  """Compares with Optax, which stores y. The rate is constant, because Optax weights an iterate by the next rate."""
  params, _ = example()
  ours, points, _ = train(make_optimizer(params, STEPS, name="schedule_free", lr=LR), params)
  theirs = optax.contrib.schedule_free_adamw(LR)
  state, y = theirs.init(params), params
  for t in range(STEPS):
    for path, value in y.items():
      np.testing.assert_allclose(points[t][path], value, rtol=1e-4, atol=1e-5)
    gradients = {path: jnp.asarray(gradient_at(t, np.asarray(value)), jnp.float32) for path, value in y.items()}
    updates, state = theirs.update(gradients, state, y)
    y = optax.apply_updates(y, updates)
  for path, x in optax.contrib.schedule_free_eval_params(state, y).items():
    np.testing.assert_allclose(ours[path], x, rtol=1e-3, atol=1e-4)


def test_schedule_free_state_is_as_large_as_that_of_adamw():
  params, _ = example()
  sizes = {}
  for name in ("schedule_free", "adamw"):
    state = make_optimizer(params, name=name).transformation.init(params)
    sizes[name] = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
  assert sizes["schedule_free"] == sizes["adamw"]


@pytest.mark.parametrize(
  ("args", "message"),
  [
    ({"schedule": {"name": "cosine"}}, r"schedule\.name: 'cosine' changes the learning rate.*Set schedule to 'const"),
    ({"schedule": {"name": "stair", "at": ("1",), "factors": (0.1,)}}, r"schedule\.name: 'stair' changes"),
    ({"schedule": {"name": "constant", "cooldown": "3"}}, r"schedule\.cooldown: expected 0, got 3\. 'schedule_free'"),
    (
      {"statistics": frozenset({"norm/scale"})},
      r"name: 'schedule_free' does not support batch norms and centres, such as 'norm/scale'",
    ),
  ],
)
def test_schedule_free_refuses_what_makes_no_sense(args, message):
  with pytest.raises(ConfigError, match=message):
    make_optimizer(example()[0], name="schedule_free", **args)


def test_schedule_free_has_no_second_average():
  with pytest.raises(
    ConfigError, match=r"config\.optim\.ema: the parameters of 'schedule_free' are already an average"
  ):
    runs.parts(1, **SMALL["schedule_free"], optim__ema=0.9)
  changes = {"optim__name": "schedule_free", "optim__schedule": "constant", "optim__weight_decay_schedule": "constant"}
  with pytest.raises(
    ConfigError, match=r"optim\.name: task 'dinov2' needs a moving average, but 'schedule_free' does not"
  ):
    self_distillation.parts("dinov2", 1, **changes)


# SAM.


def squares(params, context, examples, key):
  """Returns a loss with noise that depends on the key, a metric, and a statistic of the forward pass."""
  noise = jax.random.normal(key, params["a"].shape)
  value = jnp.sum(examples["x"] * params["a"] ** 4 / 4) + jnp.sum(noise * params["a"]) + 3 * params["b"]
  return value, ({"a": params["a"][0]}, {"mean": params["a"].mean()})


SQUARES = {"a": jnp.asarray([1.0, -2.0, 0.5]), "b": jnp.asarray(2.0), "mean": jnp.asarray(0.0)}


@pytest.mark.parametrize("frozen", [frozenset(), frozenset({"b"})])
def test_sam_computes_the_gradient_after_an_ascent_step(frozen):
  gradient = steps.ascend_before_gradients(steps.make_gradient(squares, frozen | {"mean"}), 0.1)
  key, x = jax.random.key(3), np.array([1.0, 2.0, 3.0])
  found, metrics, statistics = gradient(SQUARES, CONTEXT, {"x": jnp.asarray(x)}, key)
  noise, a = np.asarray(jax.random.normal(key, (3,)), np.float64), np.asarray(SQUARES["a"], np.float64)
  g = np.append(x * a**3 + noise, 0 if frozen else 3)
  ascended = a + 0.1 * g[:3] / np.linalg.norm(g)
  np.testing.assert_allclose(found["a"], x * ascended**3 + noise, rtol=1e-5)
  assert found["b"] == (0 if frozen else 3) and found["mean"] == 0
  # Loss, metrics and statistics are those of the parameters.
  np.testing.assert_allclose(metrics["loss"], (x * a**4 / 4).sum() + (noise * a).sum() + 6, rtol=1e-5)
  assert metrics["a"] == 1 and statistics["mean"] == pytest.approx(a.mean())


def test_sam_without_a_gradient_stays():
  gradient = steps.ascend_before_gradients(lambda params, *_: (jax.tree.map(jnp.zeros_like, params), {}, {}), 0.1)
  assert not any(np.any(value) for value in gradient(SQUARES, CONTEXT, {}, jax.random.key(0))[0].values())


def test_sam_matches_optax():
  made = make_optimizer({"a": SQUARES["a"]}, name="sam", rho=0.1, rule=Choice("sgd", {"momentum": 0.9}))
  assert made.radius == 0.1
  ascent = optax.chain(optax.contrib.normalize(), optax.sgd(0.1))
  theirs = optax.contrib.sam(optax.sgd(1e-2, momentum=0.9), ascent, opaque_mode=True)

  def plain(params, *_):
    return jax.grad(lambda p: jnp.sum(p["a"] ** 4))(params), {}, {}

  gradient = steps.ascend_before_gradients(plain, made.radius)
  ours = expected = {"a": SQUARES["a"]}
  state, their_state = made.transformation.init(ours), theirs.init(expected)
  for _ in range(5):
    updates, state = made.transformation.update(gradient(ours, CONTEXT, {}, None)[0], state, ours)
    ours = optax.apply_updates(ours, updates)
    grads = plain(expected)[0]
    updates, their_state = theirs.update(grads, their_state, expected, grad_fn=lambda p, _: plain(p)[0])
    expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(ours["a"], expected["a"], rtol=1e-6)


def test_sam_passes_arguments_to_its_rule():
  for rule in ({"name": "sgd", "momentum": 0.0}, "lion", {"b1": 0.5}):
    params, gradients = example()
    name, args = (rule, {}) if isinstance(rule, str) else (rule.get("name", "adamw"), dict(rule))
    args.pop("name", None)
    ours = make_optimizer(params, name="sam", rule=rule, weight_decay=0.1).transformation
    plain = make_optimizer(params, name=name, weight_decay=0.1, **args).transformation
    found, expected = (each.update(gradients[0], each.init(params), params)[0] for each in (ours, plain))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
  with pytest.raises(ConfigError, match=r"config\.optim\.rule\.name: unknown name 'muon'.*Allowed: adamw, nadamw, sgd"):
    make_optimizer(params, name="sam", rule={"name": "muon"})


# Runs.

VIT = {"model__name": "ViT-Ti/8", "model__depth": 2, "model__width": 16, "model__heads": 2, "model__hidden": 32}
SMALL = {
  "schedule_free": VIT | {"optim__name": "schedule_free", "optim__schedule": "constant", "optim__weight_decay": 0.1},
  "sam": VIT | {"optim__name": "sam", "optim__rho": 0.1},
}


def after(parts, count=4):
  """Returns the state after some steps."""
  step, state = parts.compile(), parts.create_initial_state()
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, count):
      state, _ = step(state, batch, {})
  return jax.device_get(state)


@pytest.fixture(scope="module")
def alone():
  return {name: after(runs.parts(1, **changes)) for name, changes in SMALL.items()}


MESHES = [{}, {"mesh__data": 2, "mesh__fsdp": 4}, {"mesh__data": 4, "mesh__tensor": 2}, {"optim__accumulate": 2}]


@pytest.mark.long
@pytest.mark.sample(4)
@pytest.mark.parametrize("changes", MESHES, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_run_gives_the_same_parameters_on_any_mesh(alone, name, changes):
  found = after(runs.parts(8, **SMALL[name] | changes))
  for path, value in found.params.items():
    np.testing.assert_allclose(value, alone[name].params[path], atol=3e-4, err_msg=path)


def test_offsets_have_the_shardings_of_their_parameters():
  shapes = runs.parts(8, **SMALL["schedule_free"], mesh__data=2, mesh__fsdp=4).state_shapes
  offset = optax.tree_utils.tree_get(shapes.optimizer, "offset")
  assert {path: leaf.sharding for path, leaf in offset.items()} == {
    path: leaf.sharding for path, leaf in shapes.params.items()
  }
  assert any("fsdp" in leaf.sharding.spec for leaf in offset.values())


def test_step_of_sam_costs_two_gradients():
  parts = {name: runs.parts(1, **VIT, optim__name=name) for name in ("adamw", "sam")}
  counted = {name: each.compile().cost_analysis()["flops"] for name, each in parts.items()}
  assert 1.8 < counted["sam"] / counted["adamw"] < 2  # augmentation and update are not repeated
  assert parts["sam"].training_flops == 2 * parts["adamw"].training_flops


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_restart_has_the_same_bits(tmp_path, name):
  parts = runs.parts(8, **SMALL[name], optim__warmup=3, optim__layer_decay=0.8)
  whole = loop.train(parts, tmp_path / "whole")
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 7), tmp_path / "again")
  again = loop.train(parts, tmp_path / "again")
  assert again["weights_sha256"] == whole["weights_sha256"] and again["top1"] == whole["top1"]


def test_saved_weights_of_schedule_free_are_the_evaluated_average(tmp_path):
  parts = runs.parts(1, **SMALL["schedule_free"])
  result = loop.train(parts, tmp_path)
  weights, about = checkpoints.read_weights(tmp_path)
  state = after(parts, parts.total)
  offset = optax.tree_utils.tree_get(state.optimizer, "offset")
  assert "weights" not in about and np.any(offset["head/kernel"])
  for path, value in weights.items():
    np.testing.assert_array_equal(value, state.params[path])
  measured = parts.evals["test"].measure({path: jnp.asarray(value) for path, value in weights.items()}, lambda: None)
  assert result["top1"] == measured.figures["top1"]
  assert not any(name.startswith("ema_") for name in result)
