"""Tests of vit_jax/models/resnet.py against its definitions in NumPy and plain XLA."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import modules
from vit_jax import models
from vit_jax.models import resnet
from vit_jax.models.published import vit

F32 = jnp.dtype("float32")
rng = np.random.default_rng(0)
STAGES = [(), (1,), (2, 1), (2, 2, 2, 2)]


def normal(*shape):
  return rng.standard_normal(shape, dtype=np.float32)


def standardised(kernel, divisor):
  kernel = np.asarray(kernel, np.float64)
  variance = kernel.var((0, 1, 2))
  divisors = {"std + 1e-5": np.sqrt(variance) + 1e-5, "sqrt(var + 1e-10)": np.sqrt(variance + 1e-10)}
  return ((kernel - kernel.mean((0, 1, 2))) / divisors[divisor]).astype(np.float32)


def group_norm(x, norm, eps):
  """Normalises one image and one group at a time."""
  result = np.empty(x.shape, np.float64)
  size = x.shape[-1] // 32
  for b in range(x.shape[0]):
    for g in range(32):
      part = np.asarray(x[b, :, :, g * size : (g + 1) * size], np.float64)
      result[b, :, :, g * size : (g + 1) * size] = (part - part.mean()) / np.sqrt(part.var() + eps)
  return (result * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])).astype(np.float32)


def convolved(x, kernel, stride, padding):
  return jax.lax.conv_general_dilated(
    x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
  )


@pytest.mark.heavy
@pytest.mark.parametrize("divisor", resnet.DIVISORS)
def test_standardised_kernels_match_numpy_and_have_zero_mean(divisor):
  kernel = 1e-4 * normal(3, 3, 8, 5) + 0.3  # small enough for the epsilon to matter
  found = np.asarray(resnet.standardise(kernel, divisor))
  np.testing.assert_allclose(
    found, standardised(kernel, divisor), atol=2e-3
  )  # float32 represents 0.3 with an error of 3e-8
  np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=1e-3)
  other = next(name for name in resnet.DIVISORS if name != divisor)
  assert np.abs(found - standardised(kernel, other)).max() > 0.05


@pytest.mark.heavy
@pytest.mark.parametrize("divisor", resnet.DIVISORS)
def test_kernel_of_equal_weights_has_a_finite_gradient(divisor):
  gradient = jax.grad(lambda kernel: jnp.sum(resnet.standardise(kernel, divisor) * normal(3, 3, 2, 4)))
  assert np.all(np.isfinite(gradient(jnp.full((3, 3, 2, 4), 0.5))))


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("size", "stride", "padding"), [(7, 2, "same"), (7, 2, 3), (3, 1, 1), (1, 2, "same"), (1, 2, 0)]
)
def test_standardised_convolutions_apply_the_given_padding(size, stride, padding):
  module = modules.layer(
    lambda rngs: resnet.StandardisedConv(3, 8, size, stride, padding, divisor="std + 1e-5", dtype=F32, rngs=rngs)
  )
  kernel = standardised(module.kernel[...], "std + 1e-5")
  for sides in ((12, 12), (9, 10)):
    x = normal(2, *sides, 3)
    expected = convolved(x, kernel, stride, "SAME" if padding == "same" else [(padding, padding)] * 2)
    np.testing.assert_allclose(modules.run(module, x), expected, atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize(("width", "eps"), [(32, 1e-5), (64, 1e-6), (96, 1e-2)])
def test_group_norm_normalises_32_channel_groups_over_space(width, eps):
  norm = modules.layer(lambda rngs: resnet.GroupNorm(width, eps=eps, dtype=F32))
  x = 0.01 * normal(2, 5, 3, width) + 0.5
  np.testing.assert_allclose(norm(x), group_norm(x, norm, eps), atol=1e-3)
  np.testing.assert_allclose(norm(x)[1:], norm(x[1:]), atol=1e-6)  # examples do not mix


@pytest.mark.heavy
def test_statistics_are_float32_for_any_compute_dtype():
  norm = resnet.GroupNorm(32, eps=1e-6, dtype=jnp.dtype("bfloat16"))
  x = normal(2, 8, 8, 32) + 30
  found = norm(jnp.asarray(x, jnp.bfloat16))
  assert found.dtype == jnp.bfloat16
  np.testing.assert_allclose(found.astype(F32), group_norm(np.asarray(x, jnp.bfloat16), norm, 1e-6), atol=0.02)


def plain_stem(stem, x):
  """Computes the stem's output from its parameters, layer by layer."""

  def conv(x, module, stride=1):
    return np.asarray(convolved(x, standardised(module.kernel[...], "std + 1e-5"), stride, "SAME"))

  x = np.maximum(group_norm(conv(x, stem.root, 2), stem.root_norm, 1e-6), 0)
  x = np.asarray(jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"))
  for i, stage in enumerate(stem.stages):
    for j, unit in enumerate(stage):
      stride = 2 if i > 0 and j == 0 else 1
      y = np.maximum(group_norm(conv(x, unit.conv1), unit.norm1, 1e-6), 0)
      y = np.maximum(group_norm(conv(y, unit.conv2, stride), unit.norm2, 1e-6), 0)
      y = group_norm(conv(y, unit.conv3), unit.norm3, 1e-6)
      if j == 0:
        x = group_norm(conv(x, unit.projection, stride), unit.projection_norm, 1e-6)
      x = np.maximum(x + y, 0)
  return x


@pytest.mark.heavy
@pytest.mark.parametrize(("sides", "stages"), [((16, 16), ()), ((20, 17), (1,)), ((16, 22), (2, 1))])
def test_stem_is_a_resnet_v1_with_same_padding(sides, stages):
  stem = modules.layer(lambda rngs: resnet.Stem(3, stages, dtype=F32, rngs=rngs))
  x = normal(2, *sides, 3)
  expected = plain_stem(stem, x)
  assert expected.shape == (2, *resnet.compute_stem_sides(sides, stages), resnet.compute_stem_width(stages))
  np.testing.assert_allclose(modules.run(stem, x), expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.heavy
@pytest.mark.parametrize("stages", STAGES)
def test_computed_sides_and_width_match_a_built_stem(stages):
  for sides in ((224, 224), (33, 64), (31, 7), (1, 97)):
    found = nnx.eval_shape(
      lambda sides=sides: resnet.Stem(3, stages, dtype=F32, rngs=nnx.Rngs(0))(jnp.zeros((1, *sides, 3)))
    )
    assert found.shape == (1, *resnet.compute_stem_sides(sides, stages), resnet.compute_stem_width(stages))


def test_widths_of_the_published_hybrids():
  assert [resnet.compute_stem_width(stages) for _, _, stages in vit.HYBRIDS.values()] == [64, 2048, 2048, 1024, 2048]
  assert resnet.compute_stem_sides((224, 224), (2, 2, 2, 2)) == (7, 7)
  assert resnet.compute_stem_sides((224, 224), (3, 4, 9)) == (14, 14)
  assert resnet.compute_stem_sides((224, 160), ()) == (56, 40)


@pytest.mark.heavy
def test_new_unit_returns_its_shortcut():
  x = normal(2, 4, 4, 128)
  np.testing.assert_array_equal(
    jax.jit(lambda x: resnet.Unit(128, 32, 1, dtype=F32, rngs=nnx.Rngs(0))(x))(x), np.maximum(x, 0)
  )
  shapes = nnx.eval_shape(lambda: resnet.Unit(128, 32, 1, dtype=F32, rngs=nnx.Rngs(0)))
  assert shapes.projection is None and shapes.projection_norm is None


@pytest.mark.parametrize("stages", STAGES)
def test_every_parameter_of_a_stem_has_one_row_in_the_sharding_table(stages):
  model = nnx.eval_shape(lambda: models.create("R26+S/32", 32, depth=1, stages=stages))
  for path, variable in nnx.to_flat_state(nnx.state(model)):
    path = "/".join(map(str, path))
    rows = [axes for pattern, axes in models.find_sharding("R26+S/32") if re.fullmatch(pattern, path)]
    assert len(rows) == 1 and len(rows[0]) == len(variable.shape), path
    assert variable.dtype == F32 and isinstance(variable, nnx.Param), path


def test_parameter_count_of_a_stem_matches_the_formula():
  # The root, then units of 1x1, 3x3 and 1x1 convolutions with three norms. First units add a projection and its norm.
  expected, channels = 7 * 7 * 3 * 64 + 2 * 64, 64
  for i, units in enumerate((3, 4, 9)):
    d = 64 * 2**i
    for j in range(units):
      expected += channels * d + 9 * d * d + d * 4 * d + 2 * (d + d + 4 * d) + (j == 0) * (channels + 2) * 4 * d
      channels = 4 * d
  stem = nnx.eval_shape(lambda: resnet.Stem(3, (3, 4, 9), dtype=F32, rngs=nnx.Rngs(0)))
  assert sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(nnx.state(stem))) == expected


@pytest.mark.heavy
def test_hybrid_in_bfloat16_has_finite_gradients():
  arguments = {"image_size": 16, "width": 16, "depth": 1, "heads": 2, "hidden": 24, "classes": 5, "dtype": "bfloat16"}
  model = modules.filled(nnx.eval_shape(lambda: models.create("R26+S/32", stages=(1,), **arguments)))
  graph, params = nnx.split(model)
  x = modules.images(16)

  def loss(params):
    logits = nnx.merge(graph, params)(x)
    assert logits.dtype == F32
    return -jax.nn.log_softmax(logits)[:, 0].mean()

  gradient = nnx.to_flat_state(jax.jit(jax.grad(loss))(params))
  for path, leaf in gradient:
    assert np.all(np.isfinite(leaf[...])), path
  assert all(np.any(leaf[...]) for path, leaf in gradient if path[0] == "stem")


@pytest.mark.heavy
def test_feature_maps_of_the_stem_are_intermediates():
  arguments = {"image_size": 32, "width": 16, "depth": 1, "heads": 2, "hidden": 24, "classes": 5}
  model = modules.filled(nnx.eval_shape(lambda: models.create("R26+S/32", stages=(2, 1), **arguments)))
  _, found = jax.jit(models.capture(model, "stem/.*"))(modules.images(32))
  assert {name: value.shape for name, value in found.items()} == {
    "stem/root": (3, 8, 8, 64),
    "stem/stages/0/0": (3, 8, 8, 256),
    "stem/stages/0/1": (3, 8, 8, 256),
    "stem/stages/1/0": (3, 4, 4, 512),
  }
