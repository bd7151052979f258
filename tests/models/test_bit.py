"""Tests of vit_jax/models/bit.py against a layer-by-layer formulation in NumPy and XLA."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from tests.models.test_resnet import convolved, group_norm, standardised
from vit_jax import models, schema
from vit_jax.models.published import bit as published
from vit_jax.schema import Choice

pytestmark = pytest.mark.heavy

SMALL = {"stages": (1, 1), "width_factor": 0.5}


def make(name="R50x1", image_size=32, channels=3, classes=5, **arguments):
  """Returns the shapes of a model without drawing its parameters."""
  row = published.NAMES[name]
  choice = schema.bind(Choice(name, arguments), (row.make,))
  return nnx.eval_shape(lambda: row.make(image_size, channels, classes, nnx.Rngs(0), **choice.args))


def model(**arguments):
  """Returns a model with two units and random parameters."""
  return modules.filled(make(**(SMALL | arguments)))


def count(module):
  return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(nnx.state(module)))


def plain(module, x):
  """Computes features and logits from the parameters, layer by layer."""

  def conv(x, part, stride=1, padding=0):
    kernel = standardised(part.kernel[...], "sqrt(var + 1e-10)")
    return np.asarray(convolved(x, kernel, stride, [(padding, padding)] * 2))

  def active(x, norm):
    return np.maximum(group_norm(x, norm, 1e-5), 0)

  x = conv(x, module.root, 2, 3)
  border = ((0, 0), (1, 1), (1, 1), (0, 0))
  x = np.asarray(jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), border))
  for i, stage in enumerate(module.stages):
    for j, unit in enumerate(stage):
      stride = 2 if i > 0 and j == 0 else 1
      before = active(x, unit.norm1)
      y = conv(before, unit.conv1)
      y = conv(active(y, unit.norm2), unit.conv2, stride, 1)
      y = conv(active(y, unit.norm3), unit.conv3)
      x = y + (conv(before, unit.projection, stride) if j == 0 else x)
  x = active(x, module.norm).mean((1, 2))
  return x, x @ np.asarray(module.head.kernel[...]) + np.asarray(module.head.bias[...])


@pytest.mark.parametrize(
  ("sides", "stages", "factor"),
  [((32, 32), (2, 1), 0.5), ((24, 39), (1, 2), 0.5), ((17, 17), (1,), 1.0), ((9, 9), (), 1)],
)
def test_model_is_a_resnet_v2_with_symmetric_padding(sides, stages, factor):
  module = model(image_size=sides, stages=stages, width_factor=factor)
  x = np.random.default_rng(0).standard_normal((2, *sides, 3), dtype=np.float32)
  features, logits = plain(module, x)
  found, captured = jax.jit(models.capture(module, "pre_logits"))(x)
  np.testing.assert_allclose(captured["pre_logits"], features, atol=2e-4 * np.abs(features).max())
  np.testing.assert_allclose(found, logits, atol=2e-4 * np.abs(logits).max())


def test_initial_logits_are_zero_and_kernels_have_unit_gain():
  @jax.jit
  def initial(x):
    module = published.NAMES["R50x1"].make(16, 3, 5, nnx.Rngs(0), stages=(1,), width_factor=0.5)
    unit = module.stages[0][0]
    return module(x), jnp.std(module.root.kernel[...]), [n.scale[...] for n in (module.norm, unit.norm1, unit.norm3)]

  logits, std, scales = initial(modules.images(16))
  assert not np.any(logits) and all(np.all(scale == 1) for scale in scales)
  np.testing.assert_allclose(std, (7 * 7 * 3) ** -0.5, rtol=0.05)


def test_model_without_a_head_returns_the_features():
  whole, headless = model(), model(classes=0)
  assert headless.head is None
  x = modules.images(32)
  _, found = jax.jit(models.capture(whole, ".*"))(x)
  features = modules.run(headless, x)
  assert features.shape == (3, 256) and features.dtype == np.float32
  assert found.keys() == {"root", "stages/0/0", "stages/1/0", "features", "pre_logits", "logits"}
  assert found["root"].shape == (3, 8, 8, 32) and found["stages/1/0"].shape == (3, 4, 4, 256)


def test_outputs_do_not_depend_on_a_key():
  module = modules.compiled(model())
  x = modules.images(32)
  np.testing.assert_array_equal(module(x), module(x, jax.random.key(0)))


def test_bfloat16_computes_in_bfloat16_and_gives_finite_gradients():
  tiny = {"image_size": 16, "stages": (1,)}
  x = modules.images(16)
  expected = modules.run(model(**tiny), x)
  narrow = model(dtype="bfloat16", **tiny)
  logits, found = jax.jit(models.capture(narrow, ".*"))(x)
  assert {value.dtype for name, value in found.items() if name != "logits"} == {jnp.dtype("bfloat16")}
  assert logits.dtype == jnp.float32 and np.abs(expected - logits).max() < 0.1 * np.abs(expected).max()
  graph, params = nnx.split(narrow)
  gradient = jax.jit(jax.grad(lambda params: -jax.nn.log_softmax(nnx.merge(graph, params)(x))[:, 0].mean()))(params)
  for path, leaf in nnx.to_flat_state(gradient):
    assert leaf[...].dtype == jnp.float32 and np.all(np.isfinite(leaf[...])) and np.any(leaf[...]), path


@pytest.mark.parametrize("name", published.NAMES)
def test_every_parameter_has_one_row_in_the_sharding_table(name):
  assert published.NAMES[name].family == "bit" and published.NAMES[name].image_size == 224
  for path, variable in nnx.to_flat_state(nnx.state(make(name))):
    path = "/".join(map(str, path))
    rows = [axes for pattern, axes in published.NAMES[name].sharding if re.fullmatch(pattern, path)]
    assert len(rows) == 1 and len(rows[0]) == len(variable.shape), path
    assert ("fsdp" in rows[0]) == path.endswith("kernel"), path
    assert variable.dtype == np.float32 and isinstance(variable, nnx.Param), path


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      {"width_factor": 0.7},
      r"width_factor 0.7 gives 44.8 channels.* 32 equal groups. .* multiples of 0.5, such as 0.5",
    ),
    ({"width_factor": 0}, r"width_factor: 0.0 is out of range. Allowed: \[0.5, 64\]"),
    ({"stages": (2, 0)}, r"stages\[1\]: 0 is out of range"),
    ({"stages": 3}, r"stages: 3 is not a list of values"),
    ({"dropout": 0.1}, r"dropout: unknown key"),
  ],
)
def test_invalid_arguments_are_errors_with_allowed_values(arguments, message):
  with pytest.raises(schema.ConfigError, match=message):
    make(**arguments)


def test_images_of_another_size_are_rejected():
  with pytest.raises(ValueError, match=r"images have the shape \(16, 16, 3\).*built for \(32, 32, 3\)"):
    model()(modules.images(16))
