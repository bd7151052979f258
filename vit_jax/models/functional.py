"""Models as pure functions of flat parameters, {path: array}. Only models/ depends on other parts of Flax."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

from vit_jax import rng, trees
from vit_jax.config import extensions
from vit_jax.models import activations, contract, parameters
from vit_jax.models.description import Description
from vit_jax.models.output import Features, Output, select_features
from vit_jax.models.published.model import Registered
from vit_jax.parallel import sharding
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Shaped, Tensor

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Model:
  """A model with pure methods that may be traced. `make_functional` creates it.

  Attributes:
    description: name, arguments and sizes, with all defaults filled in.
    statistics: paths of parameters that the model updates itself, such as running averages.
    patch: side of the patches into which images may be cut, or None if this is not supported.
    prefix: {name: number} of the tokens in front of the patches, in their order.
    sharded: function that returns the context manager for tracing the model.
  """

  description: Description
  statistics: frozenset[str]
  patch: int | None
  prefix: Mapping[str, int]
  _graph: nnx.GraphDef[Any] = dataclasses.field(repr=False)
  _abstract: parameters.State = dataclasses.field(repr=False)
  sharded: Callable[[], contextlib.AbstractContextManager[None]] = dataclasses.field(
    default=contextlib.nullcontext, repr=False
  )

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns initial parameters by path, including statistics.

    Args:
      key: random key.
    """
    return trees.flatten(nnx.state(_make(self.description, key)))

  def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and types of the parameters by path."""
    return {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in trees.flatten(self._abstract).items()}

  def count_layers_above(self) -> dict[str, int | Float[np.ndarray, "L ..."] | None] | None:
    """Returns the number of layers between each parameter and the logits, see `parameters.count_layers_above`."""
    return parameters.count_layers_above(self.description.published.order, self.shapes())

  def create(self, params: Mapping[str, Shaped[Tensor | jax.ShapeDtypeStruct, "..."]]) -> nnx.Module:
    """Returns the module with given parameters, for interactive use.

    Args:
      params: {path: array}. Paths of other components, such as a task's decoder, are ignored.
    """
    own = {path: params[path] for path in trees.flatten(self._abstract)}
    return nnx.merge(self._graph, trees.unflatten(self._abstract, own))

  def outputs(
    self,
    params: Mapping[str, Shaped[Tensor, "..."]],
    images: Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"],
    key: PRNGKey | None = None,
    **masks: Callable[[Tensor], Tensor] | Integer[Tensor, "B M"],
  ) -> tuple[Output, dict[str, Float[Array, "..."]]]:
    """Computes the outputs for a batch of images.

    Args:
      params: {path: array} of all parameters. Other paths are ignored.
      images: normalised images, (B, H, W, C). If `patch` is not None, they may be cut into patches, (B, N, P P C).
      key: random key of dropout and stochastic depth, for training. None selects evaluation, which updates no
        statistics.
      **masks: arguments for Transformers with patches as tokens. `corrupt` is a function [B, N, D] -> [B, N, D] that
        changes the embeddings before positions are added. `visible` (B, M) contains the numbers of the patches that the
        blocks process.

    Returns:
      The outputs, and {path: statistic} after this batch.
    """
    module = self.create(params)
    assert isinstance(module, contract.ImageModel)
    with self.sharded():
      output = module.outputs(images, key, **masks)
    return output, trees.flatten(nnx.state(module, nnx.BatchStat))

  def select_features(self, kind: Features) -> Callable[[Output], Float[Array, "B F"]]:
    """Returns the function from an output to the features of each image, see `output.select_features`.

    Args:
      kind: kind of features.
    """
    return select_features(kind, self.prefix)

  def place_on(self, grid: jax.sharding.Mesh) -> "Model":
    """Returns the same model with activations that are sharded over a mesh.

    Args:
      grid: the mesh.
    """
    choice = self.description.model
    gather = sharding.make_gather(self.description.published.sharding, grid, np.dtype(choice.args["dtype"]))
    per_device = functools.partial(sharding.map_per_device, grid)
    return dataclasses.replace(
      self,
      sharded=functools.partial(activations.shard_activations, sharding.make_batch_sharding(grid), gather, per_device),
    )


def make_functional(description: Description) -> Model:
  """Returns the model of a description.

  Args:
    description: name, arguments and sizes.

  Raises:
    ConfigError: if an argument is invalid, or if a registered model violates its contract.

  Example:
    import jax
    import jax.numpy as jnp
    from vit_jax import models, rng, schema

    choice = schema.Choice("ViT-Ti/16", {"depth": 2})
    model = models.make_functional(models.Description(choice, image_size=64, classes=10))
    params = model.init(rng.make_key(0))
    output, statistics = model.outputs(params, jnp.zeros((1, 64, 64, 3)))
    output.logits.shape  # (1, 10)
  """
  row = description.published
  # The registered function is part of the cache key, because a session may register a name again with other code.
  return _create_model(description.bind(), row.maker if isinstance(row, Registered) else None)


@functools.lru_cache(maxsize=64)
def _create_model(description: Description, registered: Callable[..., nnx.Module] | None) -> Model:
  name = description.model.name
  extension = extensions.find_registration("model", name) if registered else None
  file = extension.file if extension else ""
  call = functools.partial(extensions.call_function, file, flag=f"model {name}") if file else _call
  module = call(nnx.eval_shape, lambda: _make(description, rng.make_key(0)))
  graph, abstract = nnx.split(module)
  statistics = frozenset(trees.flatten(nnx.filter_state(abstract, nnx.BatchStat)))
  patch, prefix = contract.find_patch(name, module), contract.find_prefix(name, module)
  if registered:
    sizes = (description.image_size, description.channels, description.classes, description.model.args["dtype"])
    call(contract.check_outputs, name, module, *sizes, prefix)
  return Model(description, statistics, patch, prefix, graph, abstract)


def _call(function: Callable[..., Result], *arguments: object) -> Result:
  return function(*arguments)


def _make(description: Description, key: PRNGKey) -> nnx.Module:
  sizes = (description.image_size, description.channels, description.classes)
  return description.published.make(*sizes, rng.Keys(key), **description.model.args)
