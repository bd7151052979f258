"""Tests of EfficientNet against a formulation in PyTorch that reads tensors by timm's names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import importers, models, trees
from vit_jax.models import Description
from vit_jax.models.batchnorm import BatchNorm
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy

# Contains shortcuts in blocks with and without expansion, and kernels of both sizes. 24 px give sides of 12, 6 and 3.
SHRUNK = {"width_factor": 0.3, "stages": (2, 1, 2)}
KEY = jax.random.key(0)


def shapes(name="efficientnet_b0", image_size=24, classes=5, **arguments):
  """Returns a model with shapes instead of values."""
  return nnx.eval_shape(lambda: models.create(name, image_size, classes=classes, **arguments))


def make_small(name="efficientnet_b0", **arguments):
  """Returns a small model with random parameters and positive running variances."""
  model = modules.filled(shapes(name, **(SHRUNK | arguments)))
  for _, module in nnx.iter_modules(model):
    if isinstance(module, BatchNorm):
      module.var.set_value(0.5 + jnp.abs(module.var[...]))
  return model


# A second formulation: PyTorch's functions on the tensors of a timm file.


def describe(model_name, **arguments):
  return Description(Choice(model_name, SHRUNK | arguments), 24, 5)


def export(model_name, values):
  """Converts values by path to tensors by timm's names."""
  return importers.export_tensors({path: np.asarray(v) for path, v in values.items()}, describe(model_name), "timm")


def reference(torch, tensors, images, same, eps, training):
  """Computes logits from tensors by timm's names. Training updates the running averages in `tensors`."""
  function = torch.nn.functional

  def convolution(x, name, stride=1, groups=1):
    weight = tensors[f"{name}.weight"]
    size = weight.shape[-1]
    border = [(size - 1) // 2] * 4
    if same:
      border = []
      for side in (x.shape[3], x.shape[2]):  # torch names the last axis first
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        border += [total // 2, total - total // 2]
    return function.conv2d(
      function.pad(x, border), weight, tensors.get(f"{name}.bias"), stride, groups=x.shape[1] if groups else 1
    )

  def norm(x, name):
    statistics = (tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"])
    return function.batch_norm(
      x, *statistics, tensors[f"{name}.weight"], tensors[f"{name}.bias"], training, momentum=0.1, eps=eps
    )

  def block(x, name, stride):
    y, number = x, 1
    if f"{name}.conv_pwl.weight" in tensors:
      y, number = function.silu(norm(convolution(y, f"{name}.conv_pw", groups=0), f"{name}.bn1")), 2
    y = function.silu(norm(convolution(y, f"{name}.conv_dw", stride), f"{name}.bn{number}"))
    gate = function.silu(convolution(y.mean((2, 3), keepdim=True), f"{name}.se.conv_reduce", groups=0))
    y = y * torch.sigmoid(convolution(gate, f"{name}.se.conv_expand", groups=0))
    last = "conv_pwl" if number == 2 else "conv_pw"
    y = norm(convolution(y, f"{name}.{last}", groups=0), f"{name}.bn{number + 1}")
    return x + y if stride == 1 and x.shape == y.shape else y

  x = function.silu(norm(convolution(images, "conv_stem", 2, groups=0), "bn1"))
  for i, blocks in enumerate(SHRUNK["stages"]):
    for j in range(blocks):
      x = block(x, f"blocks.{i}.{j}", (1, 2, 2)[i] if j == 0 else 1)
  x = function.silu(norm(convolution(x, "conv_head", groups=0), "bn2")).mean((2, 3))
  return function.linear(x, tensors["classifier.weight"], tensors["classifier.bias"])


KINDS = pytest.mark.parametrize(
  ("name", "same", "eps"), [("efficientnet_b0", False, 1e-5), ("tf_efficientnet_b0", True, 1e-3)]
)


def convert_to_torch(torch, name, model, images):
  """Returns the model's tensors by timm's names, and the images in PyTorch's layout."""
  tensors = {
    key: torch.tensor(value, requires_grad="running" not in key)
    for key, value in export(name, trees.flatten(nnx.state(model))).items()
  }
  return tensors, torch.tensor(images.transpose(0, 3, 1, 2).copy())


@KINDS
def test_logits_match_pytorch(name, same, eps):
  torch = pytest.importorskip("torch")
  model, images = make_small(name), modules.images(24, 4)
  expected = reference(torch, *convert_to_torch(torch, name, model, images), same, eps, training=False)
  np.testing.assert_allclose(modules.run(model, images), expected.detach(), rtol=1e-4, atol=1e-4)


@KINDS
def test_training_matches_pytorch_in_logits_gradients_and_averages(name, same, eps):
  torch = pytest.importorskip("torch")
  model = make_small(name, dropout=0.0, stochastic_depth=0.0, momentum=0.1)
  images, weights = modules.images(24, 4), np.random.default_rng(1).standard_normal((4, 5), dtype=np.float32)
  tensors, theirs = convert_to_torch(torch, name, model, images)
  expected = reference(torch, tensors, theirs, same, eps, training=True)
  (expected * torch.tensor(weights)).sum().backward()

  graph, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)

  def loss(params):
    module = nnx.merge(graph, params, jax.tree.map(jnp.copy, statistics))
    logits = module(images, KEY)
    return (logits * weights).sum(), (logits, nnx.state(module, nnx.BatchStat))

  (_, (logits, moved)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  np.testing.assert_allclose(logits, expected.detach(), rtol=1e-4, atol=1e-4)
  found = export(name, trees.flatten(gradients) | trees.flatten(moved))
  assert found.keys() == tensors.keys()
  for key, value in found.items():
    other = tensors[key].numpy() if "running" in key else tensors[key].grad.numpy()
    np.testing.assert_allclose(value, other, rtol=1e-3, atol=2e-4 * max(1, np.abs(other).max()), err_msg=key)


# The module.


def test_padding_modes_differ_only_if_the_padding_is_asymmetric():
  one, other = make_small(padding="symmetric"), make_small(padding="same")
  images = modules.images(24)
  assert np.abs(modules.run(one, images) - modules.run(other, images)).max() > 1e-3
  # On odd sides, a stride of 2 needs equal padding on both ends: 25 becomes 13, 7 and 4 pixels after each stride.
  one, other = (
    make_small(padding="symmetric", image_size=25, stages=(1, 1)),
    make_small(padding="same", image_size=25, stages=(1, 1)),
  )
  np.testing.assert_allclose(
    modules.run(one, modules.images(25)), modules.run(other, modules.images(25)), rtol=1e-5, atol=1e-5
  )


def test_bfloat16_is_close_and_returns_float32():
  images = modules.images(24, 8)
  half, whole = modules.run(make_small(dtype="bfloat16"), images), modules.run(make_small(), images)
  assert half.dtype == np.float32
  assert np.abs(half - whole).max() < 0.1 * np.abs(whole).max()


@pytest.mark.long
def test_model_without_classes_returns_the_input_of_the_head():
  model = make_small(classes=0)
  features, found = models.capture(model, "pre_logits", "features", "stages/*/*")(modules.images(24))
  assert features.shape == (3, 384) and features.dtype == np.float32
  np.testing.assert_array_equal(features, found["pre_logits"])
  np.testing.assert_array_equal(features, found["features"])
  assert [found[f"stages/{i}/{j}"].shape[1] for i, j in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1))] == [12, 12, 6, 3, 3]


def test_images_may_be_rectangular_with_any_number_of_channels():
  model = modules.filled(shapes(image_size=(16, 32), channels=1, **SHRUNK))
  assert modules.run(model, np.zeros((2, 16, 32, 1), np.float32)).shape == (2, 5)
  with pytest.raises(ValueError, match="the model was built for"):
    model(np.zeros((2, 32, 16, 1), np.float32))


@pytest.mark.parametrize(
  "rates", [{"stochastic_depth": 0.9, "dropout": 0.0}, {"stochastic_depth": 0.0, "dropout": 0.9}]
)
def test_dropout_and_stochastic_depth_depend_only_on_the_key(rates):
  model, calm = make_small(**rates), make_small(stochastic_depth=0.0, dropout=0.0)
  run, still = modules.compiled(model), modules.compiled(calm)
  images, keys = modules.images(24, 8), (jax.random.key(1), jax.random.key(2))
  first, second = (run(images, key) for key in keys)
  assert np.abs(first - second).max() > 1e-3
  np.testing.assert_array_equal(run(images, keys[0]), first)
  np.testing.assert_array_equal(still(images, keys[0]), still(images, keys[1]))
  np.testing.assert_array_equal(run(images), still(images))


def test_initial_values_have_the_distributions_of_the_original_code():
  model = models.create("efficientnet_b0", 32, stages=(1, 1), classes=100)
  block = model.stages[1][0]
  for kernel, fan in (
    (model.stem.kernel, 9 * 32),
    (block.expand.kernel, 96),
    (block.depthwise.kernel, 9),
    (block.excite.kernel, 96),
    (model.top.kernel, 1280),
  ):
    np.testing.assert_allclose(np.std(kernel[...]), (2 / fan) ** 0.5, rtol=0.08)
  bound = np.abs(model.head.kernel[...]).max()
  assert 0.099 < bound <= 0.1
  assert np.all(block.expand_norm.scale[...] == 1) and np.all(block.expand_norm.var[...] == 1)
  assert not np.any(block.squeeze.bias[...]) and not np.any(model.head.bias[...])


@pytest.mark.parametrize("stages", [(), (1,) * 8])
def test_number_of_stages_out_of_range_is_an_error(stages):
  with pytest.raises(ConfigError, match="Allowed: 1 to 7 numbers of blocks"):
    shapes(stages=stages)
