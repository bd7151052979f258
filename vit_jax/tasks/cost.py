"""FLOPs of the forward pass of a task and of a model; a masked autoencoder costs less than its model."""

import functools
from collections.abc import Callable, Mapping

import jax
import numpy as np

from vit_jax import flops, models


def forward_flops(
  objective: Callable, params: Mapping[str, jax.ShapeDtypeStruct], examples: Mapping[str, jax.ShapeDtypeStruct]
) -> int:
  """Counts the FLOPs of the forward pass of a task for one example.

  Args:
    objective: of a task, of a model without a mesh, over which one image cannot be split.
    params: shapes by path, the task's own among them.
    examples: shapes of a batch of what `task.examples` gives.

  Returns:
    FLOPs, two for each multiply-accumulate.
  """
  shapes = {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in params.items()}
  one = {name: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for name, leaf in examples.items()}
  return flops.count(lambda params, examples: objective(params, examples, None)[0], shapes, one)


@functools.cache
def of_model(description: models.Description) -> int:
  """Counts the FLOPs of the forward pass of a model for one image, two for each multiply-accumulate."""
  model, size = models.functional(description), description.image_size
  sides = (size, size) if isinstance(size, int) else size
  image = jax.ShapeDtypeStruct((1, *sides, description.channels), np.float32)
  return flops.count(lambda params, images: model.outputs(params, images)[0].logits, model.shapes(), image)
