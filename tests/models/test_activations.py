"""Tests of sharding constraints on activations, and of functions that run on each device's shard."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import config
from vit_jax.models import activations
from vit_jax.parallel import sharding

pytestmark = pytest.mark.heavy


def test_without_a_mesh_activations_and_functions_are_unchanged():
  x = jnp.ones((8, 2, 4), np.float32)
  assert activations.constrain(x) is x
  assert activations.run_per_device(abs) is abs


def test_function_runs_on_the_shard_of_each_device():
  grid = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2), jax.devices())
  shapes = []

  def function(x, bias):
    shapes.append((x.shape, bias.shape))
    return x + bias

  def outer(x, bias):
    with activations.shard_activations(
      sharding.make_batch_sharding(grid), lambda path, value: value, lambda f: sharding.map_per_device(grid, f)
    ):
      return activations.run_per_device(function)(activations.constrain(x), bias)

  x, bias = np.arange(8 * 2 * 4.0).reshape(8, 2, 4), np.arange(4.0)
  result = jax.jit(outer)(x, bias)
  np.testing.assert_array_equal(result, x + bias)
  assert shapes[0] == ((2, 2, 2), (2,))
  assert result.sharding.is_equivalent_to(NamedSharding(grid, PartitionSpec(("data", "fsdp"), None, "tensor")), 3)
