"""Tests of batch normalisation against NumPy and PyTorch, and of its running averages in the trainer."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules, runs
from vit_jax import checkpoints, cli, config, models, rng, trees
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.models.batchnorm import BatchNorm
from vit_jax.parallel import sharding
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy

KEY = jax.random.key(0)


def layer(width=5, **arguments):
  """Returns a layer with random parameters, random running means and positive running variances."""
  norm = modules.layer(
    lambda rngs: BatchNorm(width, **({"eps": 1e-3, "momentum": 0.3, "dtype": "float32"} | arguments))
  )
  norm.var[...] = 0.5 + jnp.abs(norm.var[...])
  return norm


def inputs(*shape, seed=0):
  return 2 + 3 * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_evaluation_normalises_with_unchanged_running_averages():
  norm, x = layer(), inputs(4, 3, 2, 5)
  mean, var = np.asarray(norm.mean[...], np.float64), np.asarray(norm.var[...], np.float64)
  expected = (x - mean) / np.sqrt(var + 1e-3) * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
  np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(norm.mean[...], mean.astype(np.float32))
  np.testing.assert_array_equal(norm.var[...], var.astype(np.float32))


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 5)])
def test_training_normalises_by_batch_and_updates_running_averages(shape):
  norm, x = layer(), inputs(*shape)
  before = np.asarray(norm.mean[...]), np.asarray(norm.var[...])
  flat = x.reshape(-1, 5).astype(np.float64)
  expected = (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-3) * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
  np.testing.assert_allclose(norm(x, KEY), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(norm.mean[...], 0.7 * before[0] + 0.3 * flat.mean(0), rtol=1e-5)
  np.testing.assert_allclose(norm.var[...], 0.7 * before[1] + 0.3 * flat.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_outputs_gradients_and_running_averages_match_pytorch(training):
  torch = pytest.importorskip("torch")
  norm, x, weights = layer(), inputs(4, 3, 2, 5), inputs(4, 3, 2, 5, seed=1)
  tensors = {
    name: torch.tensor(np.array(getattr(norm, name)[...]), requires_grad=name in ("scale", "bias"))
    for name in ("scale", "bias", "mean", "var")
  }
  image = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
  expected = torch.nn.functional.batch_norm(
    image, tensors["mean"], tensors["var"], tensors["scale"], tensors["bias"], training, momentum=0.3, eps=1e-3
  )
  (expected * torch.tensor(weights.transpose(0, 3, 1, 2))).sum().backward()

  graph, params, statistics = nnx.split(norm, nnx.Param, nnx.BatchStat)

  def loss(params, x):
    module = nnx.merge(graph, params, jax.tree.map(jnp.copy, statistics))  # variables that the module may set
    y = module(x, KEY if training else None)
    return (y * weights).sum(), (y, trees.flatten(nnx.state(module, nnx.BatchStat)))

  (_, (found, moved)), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x)
  np.testing.assert_allclose(found, expected.detach().numpy().transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(gradients[1], image.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-5)
  for name, gradient in trees.flatten(gradients[0]).items():
    np.testing.assert_allclose(gradient, tensors[name].grad, rtol=1e-4, atol=1e-4)
  for name in ("mean", "var"):
    np.testing.assert_allclose(moved[name], tensors[name], rtol=1e-5)


def test_variance_is_accurate_for_a_channel_far_from_zero():
  norm = BatchNorm(1, eps=1e-5, momentum=1.0, dtype="float32")
  norm(1e4 + inputs(64, 4, 4, 1), KEY)
  np.testing.assert_allclose(norm.var[...], inputs(64, 4, 4, 1).var(ddof=1), rtol=1e-3)


def test_statistics_are_float32_for_any_compute_dtype():
  half, whole, x = layer(dtype="bfloat16"), layer(), jnp.asarray(inputs(8, 4, 4, 5), jnp.bfloat16)
  y = half(x, KEY)
  np.testing.assert_allclose(y.astype(np.float32), whole(x.astype(np.float32), KEY), rtol=0.01, atol=0.01)
  assert y.dtype == jnp.bfloat16 and half.var[...].dtype == np.float32
  np.testing.assert_array_equal(half.var[...], whole.var[...])


def test_one_value_per_channel_gives_finite_results():
  norm = layer()
  np.testing.assert_allclose(norm(inputs(1, 5), KEY)[0], norm.bias[...], rtol=1e-5)
  assert np.all(np.isfinite(norm.var[...]))


def test_statistics_cover_the_global_batch_when_it_is_sharded():
  norm, x = layer(), inputs(16, 3, 2, 5)
  split = sharding.make_batch_sharding(sharding.make_mesh(config.Mesh(), jax.devices()))
  graph, state = nnx.split(norm)

  @jax.jit
  def call(state, x):
    module = nnx.merge(graph, state)
    return module(x, KEY), module.mean[...], module.var[...]

  for one, eight in zip(call(state, x), call(state, jax.device_put(x, split)), strict=True):
    np.testing.assert_allclose(eight, one, rtol=1e-5, atol=1e-6)


# In the trainer, running averages are stored with the parameters, and the step updates them.

TINY = Choice("efficientnet_b0", {"width_factor": 0.25, "stages": (2, 1), "stochastic_depth": 0.3})
# No Adam: the gradient of a bias that the next norm cancels is rounding noise, which Adam turns into full steps.
PLAIN = {"optim__name": "sgd", "optim__lr": 0.1, "optim__clip": "none", "optim__ema": 0.75}


@functools.cache
def parts(devices=8, **changes):
  """Returns the parts of a small digits run with a small EfficientNet and no augmentation."""
  prepare_dataset("digits")
  run = runs.run(**(PLAIN | changes))
  data = Choice(run.data.name, run.data.args | {"warp": Choice("none")})
  return build.build(build.complete(runs.changed(run, model=TINY, data=data)), jax.devices()[:devices])


def train(made, steps=3, state=None):
  """Returns the state after `steps` steps, and the metrics of each step."""
  state = made.create_initial_state() if state is None else state
  history = []
  with contextlib.closing(made.open_batches(int(state.step))) as batches:
    for _ in range(steps):
      state, metrics = made.step(state, next(batches), {})
      history.append(jax.device_get(metrics))
  return state, history


@pytest.mark.long
def test_running_averages_have_no_optimizer_state_and_no_decay():
  made = parts()
  before = jax.device_get(made.create_initial_state().params)
  state, history = train(made)
  assert made.model.statistics == {path for path in before if path.endswith(("/mean", "/var"))}
  assert len(made.model.statistics) == 2 * (1 + 2 + 2 + 3 + 1)
  for path in made.model.statistics:
    assert np.all(np.isfinite(state.params[path])) and not np.array_equal(state.params[path], before[path]), path
    assert not any(path in name for name in trees.flatten(state.optimizer)), path
  # Variances start at 1. After 3 steps at least 0.9^3 of the start must remain: no weight decay, no optimizer step.
  assert all(np.all(state.params[path] >= 0.9**3 * 0.999) for path in made.model.statistics if path.endswith("var"))
  assert all(np.isfinite(list(metrics.values())).all() for metrics in history)


def test_weight_ema_includes_the_running_averages():
  made = parts()
  state = made.create_initial_state()
  mean = jax.device_get(state.params)
  for _ in range(3):
    state, _ = train(made, 1, state)
    mean = {path: 0.75 * value + 0.25 * np.asarray(state.params[path]) for path, value in mean.items()}
  for path, value in mean.items():
    np.testing.assert_allclose(state.ema[path], value, rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.long
def test_resuming_from_a_checkpoint_gives_the_same_bits(tmp_path):
  made = parts()
  expected, _ = train(made, 4)
  state, _ = train(made, 2)
  with contextlib.closing(checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(made.mesh))) as store:
    store.save(2, state, {})
    store.wait()
    state, _ = store.restore(made.state_shapes)
  state, _ = train(made, 2, state)
  for name, value in trees.flatten(expected).items():
    np.testing.assert_array_equal(trees.flatten(state)[name], value, err_msg=name)


@pytest.mark.long
def test_run_reports_losses_of_weights_and_of_their_ema(tmp_path):
  result = loop.train(parts(), tmp_path)
  assert np.isfinite([result["loss"], result["ema_loss"]]).all() and result["loss"] != result["ema_loss"]


@functools.cache
def train_on_one_device(accumulate):
  """Returns the state and metrics after three steps on one device."""
  return train(parts(1, optim__accumulate=accumulate))


@pytest.mark.long
@pytest.mark.parametrize(("accumulate", "axes"), [(1, {}), (2, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2})])
def test_eight_devices_match_one_in_losses_and_averages(accumulate, axes):
  expected, ones = train_on_one_device(accumulate)
  made = parts(8, optim__accumulate=accumulate, **axes) if axes else parts()
  found, eights = train(made)
  for one, eight in zip(ones, eights, strict=True):
    np.testing.assert_allclose(eight["loss"], one["loss"], rtol=1e-5)
    np.testing.assert_allclose(eight["gradient_norm"], one["gradient_norm"], rtol=1e-4)
  for path, value in expected.params.items():
    np.testing.assert_allclose(found.params[path], value, rtol=1e-4, atol=1e-5, err_msg=path)


@pytest.mark.long
@pytest.mark.parametrize("accumulate", [1, 2])
def test_step_averages_the_statistics_of_micro_batches(accumulate):
  made = parts(1, optim__accumulate=accumulate)
  before = jax.device_get(made.create_initial_state().params)
  model = models.make_functional(models.Description(made.run.model, 32, 10))

  def apply(params, images, key):
    output, statistics = model.outputs(params, images, key)
    return output.logits, statistics

  with contextlib.closing(made.open_batches(0)) as batches:
    images = next(batches)["image"]
  images = made.run.data.normalise(images)
  # Only the choice of dropped blocks depends on the key.
  key = rng.derive_key(made.run.seed, 0, "dropout")
  keys = [key] if accumulate == 1 else [jax.random.fold_in(key, i) for i in range(accumulate)]
  moved = [jax.jit(apply)(before, images[i::accumulate], k)[1] for i, k in enumerate(keys)]
  state, _ = train(made, 1)
  for path in made.model.statistics:
    expected = np.mean([one[path] for one in moved], axis=0)
    np.testing.assert_allclose(state.params[path], expected, rtol=1e-4, atol=1e-6, err_msg=path)
  held = jax.jit(lambda params, images: apply(params, images, None)[1])(before, images)
  assert held.keys() == made.model.statistics
  for path, value in held.items():
    np.testing.assert_array_equal(value, before[path])


@pytest.mark.parametrize(
  ("key", "text"),
  [
    ("frozen", "['.*_norm/mean']"),
    ("lr_multipliers", "[('.*_norm/var', 0.1)]"),
    ("decay_on", "[('.*kernel', 1.0), ('.*/(mean|var)', 1.0)]"),
  ],
)
def test_pattern_that_matches_only_running_averages_is_an_error(key, text):
  with pytest.raises(ConfigError, match="matches no parameter"):
    parts(1, **{f"optim__{key}": text})


def test_running_averages_are_not_counted_as_parameters():
  made = parts()
  counted = sum(shape.size for path, shape in made.state_shapes.params.items() if path not in made.model.statistics)
  assert f"efficientnet_b0: {counted:,} parameters" in made.format_overview()
  printed = cli.format_parameters(made.state_shapes.params, made.model.statistics)
  assert "_norm/scale" in printed and "_norm/var" not in printed
