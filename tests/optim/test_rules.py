"""Tests of optimizer rules against NumPy in float64 and against Optax."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optimizers import assert_same_updates, example, make, walk
from vit_jax import optim, trees
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy

# Adafactor.


def test_adafactor_stores_rows_and_columns_of_large_kernels_only():
  params = {"large": jnp.zeros((40, 64)), "small": jnp.zeros((31, 64))}
  factored, _, average = jax.tree.leaves(
    optim.adafactor(clipping=1.0).init(params),
    is_leaf=lambda x: isinstance(x, tuple) and hasattr(x, "_fields"),
  )
  assert {trees.count_values(factored.v_row["large"]), trees.count_values(factored.v_col["large"])} == {40, 64}
  assert factored.v["large"].shape == (1,) and factored.v["small"].shape == (31, 64)
  assert average.ema["large"].dtype == jnp.bfloat16


# Against NumPy, float64.


def numpy_adamw(p, gradients, lr, wd, b1=0.9, b2=0.999, eps=1e-8):
  m = v = 0
  for t, g in enumerate(gradients, 1):  # torch.optim.AdamW applies the decay before the step
    p = p * (1 - lr * wd)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    p = p - lr / (1 - b1**t) * m / (np.sqrt(v) / math.sqrt(1 - b2**t) + eps)
  return p


def numpy_nadamw(p, gradients, lr, wd, b1=0.9, b2=0.999, eps=1e-8):
  m = v = 0
  for t, g in enumerate(gradients, 1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    ahead = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    p = p - lr * (ahead / (np.sqrt(v / (1 - b2**t)) + eps) + wd * p)
  return p


def numpy_sgd(p, gradients, lr, wd, momentum=0.9, nesterov=False):
  v = 0
  for g in gradients:
    v = momentum * v + g
    p = p * (1 - lr * wd) - lr * (g + momentum * v if nesterov else v)
  return p


def numpy_lion(p, gradients, lr, wd, b1=0.9, b2=0.99):
  m = 0
  for g in gradients:
    p = p - lr * (np.sign(b1 * m + (1 - b1) * g) + wd * p)
    m = b2 * m + (1 - b2) * g
  return p


def numpy_lamb(p, gradients, lr, wd, b1=0.9, b2=0.999, eps=1e-6):
  """Computes timm's Lamb without its clipping. Parameters without decay have a ratio of 1."""
  m = v = 0
  for t, g in enumerate(gradients, 1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    u = m / (1 - b1**t) / (np.sqrt(v) / math.sqrt(1 - b2**t) + eps) + wd * p
    p = p - lr * (np.linalg.norm(p) / np.linalg.norm(u) if wd else 1) * u
  return p


def numpy_adafactor(p, gradients, lr, wd, b2_cap=0.999):
  """Computes Adafactor without factors, because no axis of the example is long enough."""
  v, m = np.zeros_like(p), 0
  for t, g in enumerate(gradients, 1):
    b2 = min(b2_cap, 1 - t**-0.8)
    v = b2 * v + (1 - b2) * (g * g + 1e-30)
    m = 0.9 * m + 0.1 * g / np.sqrt(v)
    p = p - lr * (m + wd * p)
  return p


@pytest.mark.sample(3)
@pytest.mark.parametrize(
  ("name", "args", "oracle"),
  [
    ("adamw", {}, numpy_adamw),
    ("adamw", {"b1": 0.8, "b2": 0.95, "eps": 1e-3}, numpy_adamw),
    ("nadamw", {}, numpy_nadamw),
    ("nadamw", {"b1": 0.8, "b2": 0.95, "eps": 1e-3}, numpy_nadamw),
    ("sgd", {}, numpy_sgd),
    ("sgd", {"nesterov": True}, numpy_sgd),
    ("sgd", {"momentum": 0.0}, numpy_sgd),
    ("lion", {}, numpy_lion),
    ("lamb", {}, numpy_lamb),
    ("lamb", {"b1": 0.8, "b2": 0.95, "eps": 1e-3}, numpy_lamb),
    ("adafactor", {"momentum_dtype": "float32"}, numpy_adafactor),
    ("adafactor", {"momentum_dtype": "float32", "b2_cap": 0.5}, numpy_adafactor),
  ],
)
def test_rule_matches_its_numpy_definition(name, args, oracle):
  params, gradients = example()
  transformation, _ = make(params, name=name, lr=0.02, weight_decay=0.3, **args)
  after, _, _ = walk(transformation, params, gradients)
  args.pop("momentum_dtype", None)
  for path, value in params.items():
    wd = 0.3 if path.endswith("kernel") else 0
    expected = oracle(
      np.asarray(value, np.float64), [np.asarray(g[path], np.float64) for g in gradients], 0.02, wd, **args
    )
    np.testing.assert_allclose(after[path], expected, rtol=1e-5, atol=1e-6)


def test_nadamw_approaches_the_rule_of_algoperf():
  """The published baseline corrects the biases of both terms of its first moment with the current step."""
  generator, b1, b2 = np.random.default_rng(0), 0.9, 0.999
  m = v = 0.0
  rule = optim.nadamw(b1=b1, b2=b2)
  state = rule.init(jnp.zeros(50))
  for t in range(1, 101):
    g = generator.normal(1.0, 1.0, 50)
    ours, state = rule.update(jnp.asarray(g, jnp.float32), state)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    published = (b1 * m + (1 - b1) * g) / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
    if t > 40:
      np.testing.assert_allclose(ours, published, rtol=0.01, atol=1e-4)
  np.testing.assert_allclose(ours, published, rtol=1e-4)


def test_adamw_matches_optax():
  params, gradients = example()
  transformation, rate = make(
    params, weight_decay=0.05, clip=0.5, schedule=Choice("cosine"), warmup="2", mu_dtype="bfloat16"
  )
  mask = {path: path.endswith("kernel") for path in params}
  theirs = optax.chain(
    optax.clip_by_global_norm(0.5), optax.adamw(rate, weight_decay=0.05, mask=mask, mu_dtype="bfloat16")
  )
  _, ours, state = walk(transformation, params, gradients)
  _, expected, _ = walk(theirs, params, gradients)
  assert_same_updates(ours, expected, 1e-6)
  moments = optax.tree_utils.tree_get(state, "mu")
  assert all(m.dtype == jnp.bfloat16 for m in moments.values())


def test_lamb_with_trust_ratio_all_matches_optax():
  params, gradients = example()
  params["cls"] = jnp.zeros_like(params["cls"])  # its ratio is 1
  transformation, rate = make(params, name="lamb", weight_decay=0.05, trust_ratio="all", clip=0.5, warmup="2")
  mask = {path: path.endswith("kernel") for path in params}
  theirs = optax.chain(optax.clip_by_global_norm(0.5), optax.lamb(rate, weight_decay=0.05, mask=mask))
  _, ours, _ = walk(transformation, params, gradients)
  _, expected, _ = walk(theirs, params, gradients)
  assert_same_updates(ours, expected, 1e-6)


def test_sgd_with_a_trust_ratio_is_lars():
  params, gradients = example()
  transformation, _ = make(params, name="sgd", momentum=0.0, weight_decay=0.1, trust_ratio="decayed")
  _, (update, *_), _ = walk(transformation, params, gradients)
  for path, p in params.items():
    g, ratio = gradients[0][path], 1
    if path.endswith("kernel"):
      g = g + 0.1 * p
      ratio = np.linalg.norm(p) / np.linalg.norm(g)
    np.testing.assert_allclose(update[path], -1e-2 * ratio * g, rtol=1e-5, atol=1e-8)


def test_trust_ratio_without_an_effect_is_an_error():
  with pytest.raises(ConfigError, match=r"config.optim.trust_ratio: 'decayed' has no effect.*weight_decay is 0"):
    make(example()[0], name="lamb")


def test_independent_decay_does_not_depend_on_the_learning_rate():
  params, gradients = example()
  zeros = [jax.tree.map(jnp.zeros_like, g) for g in gradients[:1]]
  for lr in 1e-3, 1e-1:
    _, (update,), _ = walk(make(params, lr=lr, weight_decay=0.01, decay="independent")[0], params, zeros)
    np.testing.assert_allclose(update["head/kernel"], -0.01 * params["head/kernel"], rtol=1e-5)
    _, (update,), _ = walk(make(params, lr=lr, weight_decay=0.01)[0], params, zeros)
    np.testing.assert_allclose(update["head/kernel"], -lr * 0.01 * params["head/kernel"], rtol=1e-5)


def test_compiled_step_equals_the_eager_step():
  params, gradients = example()
  transformation, _ = make(params, weight_decay=0.1, clip=0.1, layer_decay=0.9, frozen=("cls",))
  state = transformation.init(params)
  eager, _ = transformation.update(gradients[0], state, params)
  compiled, _ = jax.jit(transformation.update)(gradients[0], state, params)
  assert_same_updates([compiled], [eager], 1e-6)


def test_logged_rate_is_the_applied_rate():
  params, gradients = example()
  transformation, rate = make(params, name="lion", schedule=Choice("linear"), warmup="2", lr=0.1)
  _, updates, _ = walk(transformation, params, gradients)
  for step, update in enumerate(updates):
    np.testing.assert_allclose(np.abs(update["cls"]).max(), float(rate(step)), rtol=1e-6)
  assert float(rate(2)) == pytest.approx(0.1)
