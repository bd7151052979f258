"""What a stage costs: of a masked autoencoder less than its model."""

from collections.abc import Callable, Mapping

import jax

from vit_jax import flops


def forward_flops(
  objective: Callable, params: Mapping[str, jax.ShapeDtypeStruct], examples: Mapping[str, jax.ShapeDtypeStruct]
) -> int:
  """FLOPs of the forward pass of one of the examples.

  Args:
    objective: of a task, of a model without a mesh, over which one image cannot be split.
    params: shapes by path, the task's own among them.
    examples: shapes of a batch of what `task.examples` gives.
  """
  shapes = {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in params.items()}
  one = {name: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for name, leaf in examples.items()}
  return flops.count(lambda params, examples: objective(params, examples, None)[0], shapes, one)
