"""Tests of clipping by tensor and by module against PyTorch's `clip_grad_norm_`."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.optimizers import example, make, walk
from vit_jax import trees
from vit_jax.optim import clipping
from vit_jax.schema import ConfigError


def clip(gradients, limit, of, stacked=()):
  return clipping.clip_norms(limit, of, stacked).update(gradients, None)[0]


def torch_clip(gradients, limit):
  """Returns the gradients that PyTorch clips in one call."""
  tensors = [torch.nn.Parameter(torch.zeros(gradient.shape)) for gradient in gradients]
  for tensor, gradient in zip(tensors, gradients, strict=True):
    tensor.grad = torch.tensor(np.asarray(gradient))
  torch.nn.utils.clip_grad_norm_(tensors, limit)
  return [tensor.grad.numpy() for tensor in tensors]


def draw():
  generator = np.random.default_rng(0)
  paths = ["blocks/0/kernel", "norm/scale", "task/mask_token", "task/dino_head/layer0/kernel", "task/dino_head/bias"]
  scales = [0.1, 3.0, 1.0, 0.01, 0.02]
  return {
    path: jnp.asarray(scale * generator.normal(size=(4, 6)), jnp.float32)
    for path, scale in zip([*paths, "task/ibot_head/bias"], [*scales, 2.0], strict=True)
  }


@pytest.mark.heavy
def test_each_tensor_is_clipped_by_its_own_norm():
  gradients = draw()
  clipped = clip(gradients, 1.0, "tensor")
  for path, gradient in gradients.items():
    np.testing.assert_allclose(clipped[path], torch_clip([gradient], 1.0)[0], rtol=1e-6)


@pytest.mark.heavy
def test_each_layer_of_a_stack_is_clipped_as_a_tensor():
  gradients = {"blocks/kernel": draw()["norm/scale"] * jnp.array([[0.01], [1], [2], [0.1]])}
  clipped = clip(gradients, 1.0, "tensor", stacked={"blocks/kernel"})["blocks/kernel"]
  expected = np.concatenate(torch_clip([gradients["blocks/kernel"][:1]], 1.0))
  np.testing.assert_allclose(clipped[:1], expected, rtol=1e-6)
  for i, row in enumerate(gradients["blocks/kernel"]):
    np.testing.assert_allclose(clipped[i], torch_clip([row], 1.0)[0], rtol=1e-6)


@pytest.mark.heavy
def test_model_and_each_head_are_clipped_by_their_own_norm():
  gradients = draw()
  modules = (
    ["blocks/0/kernel", "norm/scale", "task/mask_token"],
    ["task/dino_head/layer0/kernel", "task/dino_head/bias"],
    ["task/ibot_head/bias"],
  )
  clipped = clip(gradients, 1.0, "module")
  for paths in modules:
    for path, expected in zip(paths, torch_clip([gradients[path] for path in paths], 1.0), strict=True):
      np.testing.assert_allclose(clipped[path], expected, rtol=1e-6, err_msg=path)
  np.testing.assert_array_equal(clipped["task/dino_head/bias"], gradients["task/dino_head/bias"])  # below the limit


@pytest.mark.parametrize(
  ("path", "module"),
  [
    ("blocks/0/kernel", "model"),
    ("cls", "model"),
    ("task/mask_token", "model"),
    ("task/head/last/kernel", "task/head"),
    ("task/head/bias", "task/head"),
  ],
)
def test_module_is_the_model_or_a_part_of_the_task(path, module):
  assert clipping.find_module(path) == module


@pytest.mark.heavy
@pytest.mark.parametrize("by", ["tensor", "module"])
def test_optimizer_clips_before_its_rule_without_frozen_parameters(by):
  params, gradients = example()
  args = {"name": "sgd", "momentum": 0.0, "lr": 1.0, "clip": 0.1, "clip_by": by, "frozen": ("embedding/.*",)}
  _, (update, *_), _ = walk(make(params, **args)[0], params, gradients[:1])
  moving = {path: g for path, g in gradients[0].items() if not path.startswith("embedding")}
  for path, expected in clip(moving, 0.1, by).items():
    np.testing.assert_allclose(update[path], -expected, rtol=1e-6)
  assert not np.any(update["embedding/kernel"])
  assert sorted(trees.flatten(update)) == sorted(params)


def test_clip_by_without_a_limit_is_an_error():
  with pytest.raises(ConfigError, match=r"config\.optim\.clip_by: 'tensor' has no effect without clip"):
    make(example()[0], clip_by="tensor")
