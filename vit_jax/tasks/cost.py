"""Cost of a task and of a model: FLOPs of the forward and the backward pass.

A task can cost more or less than a forward pass of its model. A masked autoencoder encodes fewer patches.
Self-distillation encodes several crops.
"""

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import numpy as np

from vit_jax import models
from vit_jax.models import flops
from vit_jax.shapes import Array, Count, Float, PRNGKey
from vit_jax.tasks.task import Batch, Context, ContextShapes, Objective, Params

T = TypeVar("T")


def count_forward_flops(
  objective: Callable[[Params, Context, Batch, PRNGKey | None], Objective],
  params: Mapping[str, jax.ShapeDtypeStruct],
  context: ContextShapes,
  examples: Mapping[str, jax.ShapeDtypeStruct],
) -> int:
  """Counts the FLOPs of the forward pass of a task for one example.

  Args:
    objective: objective of a task. Its model must have no mesh, because few images cannot be split over devices.
    params: shapes of all parameters by path, including those of the task.
    context: shapes of the values that the task does not differentiate.
    examples: shapes of a micro-batch that `task.examples` returns.

  Returns:
    The number of FLOPs. Each multiply-accumulate counts as two.
  """
  shapes = _remove_shardings((dict(params), *context, dict(examples)))
  return flops.count_flops(_make_loss(objective), *shapes) // _count_rows(examples)


def count_training_flops(
  objective: Callable[[Params, Context, Batch, PRNGKey | None], Objective],
  params: Mapping[str, jax.ShapeDtypeStruct],
  context: ContextShapes,
  examples: Mapping[str, jax.ShapeDtypeStruct],
) -> int:
  """Counts the FLOPs of the forward and the backward pass of a task for one example, without recomputation.

  They are fewer than three forward passes if a part of the task, such as a teacher, has no backward pass.

  Args:
    objective, params, context, examples: see `count_forward_flops`.
  """
  gradient = jax.grad(_make_loss(objective))
  shapes = _remove_shardings((dict(params), *context, dict(examples)))
  return flops.count_flops(gradient, *shapes) // _count_rows(examples)


def _make_loss(
  objective: Callable[[Params, Context, Batch, PRNGKey | None], Objective],
) -> Callable[[Params, Count, Mapping[str, Params], Params, Batch], Float[Array, ""]]:
  """Returns the loss as a function of (params, fields of the context, examples)."""

  def loss(
    params: Params, step: Count, frozen_weights: Mapping[str, Params], average: Params, examples: Batch
  ) -> Float[Array, ""]:
    return objective(params, Context(step, frozen_weights, average), examples, None)[0]

  return loss


def _remove_shardings(shapes: T) -> T:
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shapes)


def _count_rows(examples: Mapping[str, jax.ShapeDtypeStruct]) -> int:
  return next(iter(examples.values())).shape[0]


@functools.cache
def count_model_flops(description: models.Description) -> int:
  """Counts the FLOPs of the forward pass of a model for one image.

  Each multiply-accumulate counts as two FLOPs.

  Example:
    from vit_jax import models, schema
    from vit_jax.tasks import cost

    description = models.Description(schema.Choice("ViT-B/16"), image_size=224, classes=1000)
    cost.count_model_flops(description) / 1e9  # 35.1 GFLOPs
  """
  model, size = models.make_functional(description), description.image_size
  sides = (size, size) if isinstance(size, int) else size
  image = jax.ShapeDtypeStruct((1, *sides, description.channels), np.float32)
  return flops.count_flops(lambda params, images: model.outputs(params, images)[0].logits, model.shapes(), image)
